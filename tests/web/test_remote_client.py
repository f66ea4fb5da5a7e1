"""`report --prometheus`: the connection to Prometheus, credentials and errors."""

import contextlib
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import main
from exporter.errors import ServiceError
from exporter.remote_client import Prometheus
from exporter.web.pages import Answer
from tests.ports import LOCALHOST
from tests.web.certificates import Authority
from tests.web.serving import serving
from tests.web.test_tls import MUTUAL, PASSWORD, USERS

REACHED = "no API of Prometheus answers there (HTTP 404)"
"""What the report states if an exporter has accepted its credentials."""

Run = Callable[..., tuple[int, str]]
Secure = Callable[[str], str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without credentials, and a host name `node1` that leads to this machine."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        return resolve(LOCALHOST if host == "node1" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the report, and returns its exit code and stderr."""

    def ran(*arguments: str) -> tuple[int, str]:
        code = main(["report", "--prometheus", *arguments])
        return code, capsys.readouterr().err

    return ran


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Serve the same answer to all requests."""
    with serving() as web:
        web.replaceable.answer = lambda _: answer  # type: ignore[method-assign]
        yield f"http://{LOCALHOST}:{web.server.port}"


@contextlib.contextmanager
def talking(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """Return the URL of a server that accepts one connection, and passes it to a function in a thread."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
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


def test_does_not_wait_for_ever_for_an_answer_that_comes_byte_by_byte() -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        while not over.wait(0.01):
            connection.sendall(b" ")

    with talking(drip) as url:
        with pytest.raises(ServiceError, match=r"no complete answer within 0\.5 s"):
            Prometheus(url, timeout=0.5).vector("up", 0)
        over.set()


def test_closes_the_connection_when_an_answer_is_cut_off() -> None:
    with (
        # A connection that is closed with unread data is reset.
        talking(lambda connection: connection.recv(1)) as url,
        pytest.raises(ServiceError, match="no valid HTTP response"),
    ):
        Prometheus(url, timeout=30).vector("up", 0)
    gc.collect()  # A socket that is still open warns, and warnings fail.


def test_reports_another_service(run: Run, subtests: pytest.Subtests) -> None:
    other = "no API of Prometheus answers there"
    for status, body, expected in (
        (HTTPStatus.OK, b"<html>", other),
        (HTTPStatus.OK, b'{"data": 7}', other),
        (HTTPStatus.OK, b"[" * 1_000_000, other),
        (HTTPStatus.FOUND, b"", f"{other} (HTTP 302)"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, b'{"error": "\\u001b[2Ja"}', "\N{REPLACEMENT CHARACTER}[2Ja"),
    ):
        with subtests.test(body=body[:40], status=status):
            with answering(Answer(status, body, headers={"Location": "http://x/"})) as url:
                code, problem = run(url)
            assert code == 1
            assert expected in problem
            assert "\x1b" not in problem


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
    run: Run, secure: Secure, home: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = secure(USERS)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))

    write_netrc(home, host="node2")
    assert "add `machine localhost login USER password PASSWORD` to ~/.netrc" in run(url)[1]
    write_netrc(home, "wrong")
    assert "the password of user alice in ~/.netrc was refused" in run(url)[1]
    write_netrc(home)
    assert REACHED in run(url)[1]


def test_uses_a_client_certificate(
    run: Run, secure: Secure, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = secure(MUTUAL)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    client = authority.issue("client", "DNS:client")
    both = tmp_path / "client.pem"
    both.write_text(client.cert.read_text() + client.key.read_text())

    code, problem = run(url)
    assert code == 1
    assert "--cert" in problem
    assert REACHED in run(url, "--cert", str(both))[1]


def test_reports_a_certificate_that_is_not_trusted(
    run: Run, secure: Secure, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = secure("")
    code, problem = run(url)
    assert code == 1
    assert "the certificate is not trusted" in problem
    assert "SSL_CERT_FILE" in problem

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    assert "Use a host name that the certificate contains" in run(url.replace("localhost", "node1"))[1]
    assert REACHED in run(url)[1]


def test_reports_the_wrong_scheme(run: Run, secure: Secure) -> None:
    assert "if the server uses TLS, use https://" in run(secure("").replace("https", "http"))[1]
    with serving() as web:
        url = f"https://{LOCALHOST}:{web.server.port}"
        assert "the server does not use TLS; use http://" in run(url)[1]


def test_rejects_invalid_arguments(run: Run, subtests: pytest.Subtests) -> None:
    for arguments, expected in {
        ("http://node1:x",): "expected an address",
        ("http://node1/?a=b",): "expected an address",
        ("http://node1", "--cert", "/x"): "needs --prometheus https://",
        ("https://node1", "--cert", "/nowhere"): "expected PEM",
    }.items():
        with subtests.test(arguments=arguments):
            code, problem = run(*arguments)
            assert code == 2
            assert expected in problem


def test_reports_a_netrc_file_that_others_can_read(run: Run, home: Path) -> None:
    write_netrc(home)
    (home / ".netrc").chmod(0o644)

    code, problem = run("http://localhost:1")

    assert code == 2
    assert "~/.netrc cannot be used" in problem
