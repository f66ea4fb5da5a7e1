"""Pages by path, invalid requests, and limits of their size."""

import contextlib
import gzip
import re

import pytest

from exporter.web.pages import Request
from tests.web.serving import OPENMETRICS, Counting, Web


def test_answers_503_before_the_first_collection(web: Web) -> None:
    assert (web.get().status, web.get("/-/ready").status, web.get("/-/healthy").status) == (503, 503, 200)


@pytest.mark.usefixtures("collector")
def test_serves_metrics_after_the_first_collection(web: Web) -> None:
    answer = web.get()

    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert answer.body.splitlines()[-1] == b"answer 1.0"
    assert int(answer.headers["Content-Length"]) == len(answer.body)
    assert [web.get(path).status for path in ("/-/ready", "/readyz", "/-/healthy", "/healthz")] == [200] * 4


def test_is_not_healthy_if_the_main_loop_has_stopped(web: Web) -> None:
    web.healthy = False

    assert web.get("/-/healthy").status == 503


def test_the_landing_page_links_to_the_other_pages(web: Web) -> None:
    answer = web.get("/")

    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert re.findall(rb'href="([^"]+)">(\w+)<', answer.body.partition(b"</nav>")[0]) == [
        (b"/", b"Node"),
        (b"/metrics", b"Metrics"),
        (b"/status", b"Status"),
        (b"/incidents", b"Incidents"),
        (b"/events", b"Events"),
        (b"/runbooks", b"Runbooks"),
        (b"/-/healthy", b"Healthy"),
        (b"/-/ready", b"Ready"),
    ]


def test_serves_the_metrics_at_another_path(web: Web, collector: Counting) -> None:
    site = web.site("/mps<metrics>")

    assert site.answer(Request(path="/mps<metrics>")).status == 200
    assert site.answer(Request(path="/metrics")).status == 404
    assert b'href="/mps&lt;metrics&gt;"' in site.answer(Request(path="/")).body
    assert collector.renders == 1


def test_serves_the_metrics_at_the_root(web: Web, collector: Counting) -> None:
    assert web.site("/").answer(Request(path="/")).body.endswith(b"answer 1.0\n")
    assert collector.renders == 1


def test_an_internal_error_is_logged_and_ends_its_request_only(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    web.sight = None  # type: ignore[assignment]

    for path, body in {"/status": b"internal error", "/api/v1/status": b'"errorType": "internal"'}.items():
        answer = web.get(path)
        assert (answer.status, body in answer.body) == (500, True)
        assert capsys.readouterr().out.count("request_failed") == 1
    assert web.get("/-/healthy").status == 200


def test_an_error_of_the_system_is_not_taken_for_a_client_that_has_gone(
    web: Web, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreadable(*_: object) -> bytes:
        raise FileNotFoundError("a template")

    monkeypatch.setattr("exporter.page.page.Page.node", unreadable)
    assert web.get("/").status == 500
    assert "FileNotFoundError" in capsys.readouterr().out


@pytest.mark.usefixtures("collector")
def test_answers_404_for_an_unknown_path_and_ignores_the_query_of_a_scrape(web: Web) -> None:
    for path in ("/nowhere", "/metrics/", "/-/reload", "/-/quit", "/../etc/passwd", "*"):
        answer = web.get(path)
        assert answer.status == 404
        assert path.encode() not in answer.body
    assert web.get("/metrics?name[]=answer").status == 200


@pytest.mark.usefixtures("collector")
def test_serves_openmetrics_if_accepted(web: Web) -> None:
    answer = web.get(Accept=OPENMETRICS)

    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert answer.body.endswith(b"# EOF\n")


@pytest.mark.usefixtures("collector")
def test_compresses_if_gzip_is_accepted(web: Web, subtests: pytest.Subtests) -> None:
    plain = web.get().body
    accepting = ("gzip", "gzip, deflate", "br;q=1.0, gzip;q=0.8", "*", "GZIP", "gzip, *;q=0")
    for header in (*accepting, "", "identity", "gzip;q=0", "gzip; q=0.0", "xgzip"):
        with subtests.test(header=header):
            answer = web.get(Accept_Encoding=header)
            gzipped = answer.headers.get("Content-Encoding") == "gzip"
            assert gzipped is (header in accepting)
            assert (gzip.decompress(answer.body) if gzipped else answer.body) == plain
            assert int(answer.headers["Content-Length"]) == len(answer.body)


@pytest.mark.usefixtures("collector")
def test_answers_head_without_a_body(web: Web) -> None:
    get, head = web.get(), web.get(method="HEAD")

    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", get.headers["Content-Length"])
    assert head.headers["Content-Type"] == get.headers["Content-Type"]


@pytest.mark.usefixtures("collector")
def test_refuses_all_other_methods(web: Web, subtests: pytest.Subtests) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "QUIT", "get"):
        with subtests.test(method=method):
            head, _, body = web.raw(f"{method} /metrics HTTP/1.1\r\n\r\n".encode()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.0 405 ")
            assert b"\r\nAllow: GET, HEAD\r\n" in head
            assert body == b"method not allowed: use GET or HEAD\n"
            assert web.get().status == 200


@pytest.mark.usefixtures("collector")
def test_answers_after_an_invalid_request(
    web: Web, capfd: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for request in (
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\xff\xfe\0 HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: \xff\xfe\0\r\n\r\n",
        b"",
    ):
        with subtests.test(request=request[:40]):
            web.raw(request)
            assert web.get().status == 200
            assert "".join(capfd.readouterr()) == ""


def test_limits_the_size_of_a_request(web: Web, subtests: pytest.Subtests) -> None:
    for request, status in (
        (b"GET /" + b"x" * (1 << 17) + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 17) + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + (b"X: " + b"y" * 30_000 + b"\r\n") * 5 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + (b"X: " + b"y" * 10_000 + b"\r\n") * 5 + b"\r\n", b"200"),
    ):
        with subtests.test(request=request[:40]), web.connect() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(request)
            assert connection.recv(12).split()[1] == status


@pytest.mark.usefixtures("collector")
def test_answers_any_accept_header_in_a_known_format(web: Web, subtests: pytest.Subtests) -> None:
    for accept in (
        "application/openmetrics-text;version=x",
        "application/openmetrics-text;version=2." + "9" * 5000,
        "application/openmetrics-text;version=0.0.0",
        "application/openmetrics-text;version=2.0.0;escaping=everything",
        "text/plain;version=x;escaping=\u00e4",
        "text/plain;version=",
        ",;=,;=,",
        "\0",
    ):
        with subtests.test(accept=accept[:60]):
            request = f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n"
            head, _, body = web.raw(request.encode()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.0 200")
            assert b"answer 1.0" in body
            assert len(head) < 500


@pytest.mark.usefixtures("collector")
def test_a_folded_header_adds_no_header_to_the_answer(web: Web) -> None:
    accept = b"Accept: application/openmetrics-text;version=2.\r\n Set-Cookie: a=b"

    head, _, _ = web.raw(b"GET /metrics HTTP/1.1\r\n" + accept + b"\r\n\r\n").partition(b"\r\n\r\n")

    assert b"Set-Cookie" not in head
