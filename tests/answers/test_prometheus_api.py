"""The report's connection to Prometheus: deadlines, credentials and TLS."""

import contextlib
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards import prometheus_api
from dashboards.prometheus_api import Prometheus, ReportError
from tests.answers.conftest import Run, one_line
from tests.ports import LOCALHOST
from tests.web.certificates import Authority
from tests.web.serving import serving
from tests.web.test_tls import MUTUAL, PASSWORD, USERS

REACHED = "no API of Prometheus answers there (HTTP 404)"
"""What the report states if an exporter has accepted its credentials."""

Secure = Callable[[str], str]
Problem = Callable[..., str]


@pytest.fixture
def problem(run: Run) -> Problem:
    """Return a function that runs the report with a URL, and returns the line that it prints."""

    def problem_of(url: str, *arguments: str) -> str:
        code, text, line = run("--prometheus", url, *arguments)
        assert (code, text) == (1, "")
        return one_line(line, f"report.py: {url}: ")

    return problem_of


@pytest.fixture(autouse=True)
def node1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name `node1` that leads to this machine."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        return resolve(LOCALHOST if host == "node1" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@contextlib.contextmanager
def talking(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """Return the URL of a server that accepts one connection, and passes it to a function in a thread."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            talk(connection)

    with socket.create_server((LOCALHOST, 0)) as listening:
        server = threading.Thread(target=serve)
        server.start()
        yield f"http://{LOCALHOST}:{listening.getsockname()[1]}"
        server.join()


def write_netrc(home: Path, password: str = PASSWORD, host: str = "localhost") -> None:
    file = home / ".netrc"
    file.write_text(f"machine {host} login alice password {password}\n")
    file.chmod(0o600)


OK = b"HTTP/1.1 200 OK\r\n"


def test_does_not_wait_for_ever(subtests: pytest.Subtests) -> None:
    for start, part in (
        (OK + b"\r\n", b" "),
        (OK, b"a"),
        (b"", b"H"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ):
        over = threading.Event()

        def drip(
            connection: socket.socket, start: bytes = start, part: bytes = part, over: threading.Event = over
        ) -> None:
            connection.sendall(start)
            while not over.wait(0.01):
                connection.sendall(part)

        with subtests.test(start=start, part=part), talking(drip) as url, contextlib.ExitStack() as ending:
            ending.callback(over.set)
            others = threading.enumerate()
            with pytest.raises(ReportError, match=r"no complete answer within 0\.5 s"):
                Prometheus(url, timeout=0.5).vector("up", 0)
            assert all(each.daemon for each in threading.enumerate() if each not in others), "the report would not end"


def test_reports_what_is_no_http(problem: Problem, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.setattr(prometheus_api, "MAX_ANSWER_BYTES", 1000)
    invalid = "no valid HTTP response"
    for answer, expected in (
        (b"", invalid),
        (b"SSH-2.0-x\r\n", invalid),
        (b"HTTP/1.1 \xb2\xb2\xb2 \x1b[2J\r\n\r\n", invalid),
        (b"HTTP/1.1 " + b"2" * 100_000, invalid),
        (OK + b"a: b\r\n" * 1000 + b"\r\n", invalid),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", invalid),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 1000 + b"\r\n{", invalid),
        (OK + b"Content-Length: -1\r\n\r\n{", REACHED[:-11]),
        (OK + b"Content-Length: 900\r\n\r\n{", REACHED[:-11]),
        (OK + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b", REACHED[:-11]),
        (OK + b"\r\n" + b" " * 1001, "the answer is longer than 1000 bytes"),
    ):

        def send(connection: socket.socket, answer: bytes = answer) -> None:
            connection.recv(1 << 16)
            connection.sendall(answer)

        with subtests.test(answer=answer[:60]), talking(send) as url:
            assert expected in problem(url)


def test_closes_the_connection_when_an_answer_is_cut_off() -> None:
    def cut_off(connection: socket.socket) -> None:
        connection.sendall(OK + b"\r\n")
        connection.recv(1)  # A connection that is closed with unread data is reset.

    with talking(cut_off) as url, pytest.raises(ReportError, match="no valid HTTP response"):
        Prometheus(url, timeout=30).vector("up", 0)
    gc.collect()  # A socket that is still open warns, and warnings fail.


def test_reports_that_nothing_listens(problem: Problem) -> None:
    with socket.socket() as bound:
        bound.bind((LOCALHOST, 0))
        line = problem(f"http://{LOCALHOST}:{bound.getsockname()[1]}")
    assert "cannot connect: Connection refused; check that Prometheus runs there" in line


# Credentials


@pytest.fixture
def secure(tmp_path: Path, authority: Authority) -> Iterator[Secure]:
    """Return a function that serves with more lines in a web config file, and returns the URL."""
    certificate = authority.issue("server", "DNS:localhost")
    with contextlib.ExitStack() as closing:

        def serve(more: str) -> str:
            file = tmp_path / "web.yml"
            tls = f"tls_server_config:\n  cert_file: {certificate.cert}\n  key_file: {certificate.key}\n"
            file.write_text(tls + more.replace("{authority}", str(authority.cert)))
            return f"https://localhost:{closing.enter_context(serving(config=file)).server.port}"

        yield serve


def test_uses_the_password_of_the_netrc_file(
    problem: Problem, secure: Secure, home: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = secure(USERS)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))

    write_netrc(home, host="node2")
    assert "add `machine localhost login USER password PASSWORD` to ~/.netrc" in problem(url)
    write_netrc(home, "wrong")
    assert "the password of user alice in ~/.netrc was refused" in problem(url)
    write_netrc(home)
    assert REACHED in problem(url)


def test_uses_a_client_certificate(
    problem: Problem, secure: Secure, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = secure(MUTUAL)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    client = authority.issue("client", "DNS:client")
    both = tmp_path / "client.pem"
    both.write_text(client.cert.read_text() + client.key.read_text())

    assert "--cert" in problem(url)
    assert REACHED in problem(url, "--cert", str(both))


def test_reports_a_certificate_that_is_not_trusted(
    problem: Problem, secure: Secure, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = secure("")
    assert "the certificate is not trusted" in problem(url)
    assert "name the file of its CA in SSL_CERT_FILE" in problem(url)

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    assert "Use a host name that the certificate contains" in problem(url.replace("localhost", "node1"))
    assert REACHED in problem(url)


def test_reports_the_wrong_scheme(problem: Problem, secure: Secure) -> None:
    assert "if the server uses TLS, use https://" in problem(secure("").replace("https", "http"))
    with serving() as web:
        url = f"https://{LOCALHOST}:{web.server.port}"
        assert "the server does not use TLS; use http://" in problem(url)


def test_reports_a_netrc_file_that_others_can_read(run: Run, home: Path) -> None:
    write_netrc(home)
    (home / ".netrc").chmod(0o644)

    code, _, line = run("--prometheus", "http://localhost:1")

    assert code == 2
    assert "~/.netrc cannot be used" in line
