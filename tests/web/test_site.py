"""Pages by path."""

import gzip
import re

import pytest

from exporter.web.handler import Request
from tests.eventually import eventually
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
    assert re.findall(rb'href="([^"]+)">(\w+)<', answer.body) == [
        (b"/metrics", b"Metrics"),
        (b"/status", b"Status"),
        (b"/api/v1/incidents", b"Incidents"),
        (b"/api/v1/events", b"Events"),
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
    web.status = None  # type: ignore[assignment]

    assert web.raw(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
    assert web.get("/-/healthy").status == 200
    eventually(lambda: _told("request_failed", capsys))


def _told(event: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert event in capsys.readouterr().out


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
    accepting = ("gzip", "gzip, deflate", "br;q=1.0, gzip;q=0.8", "*", "GZIP")
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
