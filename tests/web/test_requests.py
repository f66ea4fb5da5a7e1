"""Invalid requests, and limits of their size."""

import contextlib

import pytest

from tests.web.serving import Web


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
