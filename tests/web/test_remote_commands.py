"""`status --url` and `incidents --url`: the answers of another node's exporter, credentials and errors."""

import contextlib
import gc
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import main
from exporter.errors import ServiceError
from exporter.model.node import Node
from exporter.remote_client import RemoteExporter
from exporter.web.pages import Answer
from tests.builders import AT, DAEMON, three_clients
from tests.incidents.values import blocked, ended
from tests.ports import LOCALHOST
from tests.status import incident_json, status_json
from tests.web.certificates import Authority
from tests.web.serving import Web, serving
from tests.web.test_tls import MUTUAL, PASSWORD, USERS

ENDED = ended(id="old")
OPEN = blocked(id="new", detected_at=AT + 9)

Run = Callable[..., tuple[int, str, str]]
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
    """Return a function that runs a command, and returns its exit code, stdout and stderr."""

    def ran(*arguments: str) -> tuple[int, str, str]:
        code = main([arguments[0], "--config.file=", *arguments[1:]])
        output = capsys.readouterr()
        return code, output.out, output.err

    return ran


@pytest.fixture
def url(web: Web) -> str:
    """The URL of a node with two incidents."""
    web.history.add(Node(incidents={each.id: each for each in (ENDED, OPEN)}), ())
    return f"http://{LOCALHOST}:{web.server.port}"


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


def test_status_shows_another_node_or_one_daemon_of_it_in_words_or_as_json(run: Run, url: str) -> None:
    code, text, problem = run("status", "--url", url)
    assert (code, problem) == (0, "")
    assert DAEMON in text
    code, text, _ = run("status", "--json", "--url", f"{url}/")
    assert code == 0
    assert len(json.loads(text)["daemons"]) == len(three_clients().daemons)
    assert run("status", "--daemon", DAEMON, "--url", url)[0] == 0
    code, _, problem = run("status", "--daemon", "other", "--url", url)
    assert code == 1
    assert problem == f"cuda-mps-exporter: no daemon other is here; there are: {DAEMON}\n"


def test_does_not_wait_for_ever_for_an_answer_that_comes_byte_by_byte() -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        while not over.wait(0.01):
            connection.sendall(b" ")

    with talking(drip) as url:
        with pytest.raises(ServiceError, match=r"no complete answer within 0\.5 s"):
            RemoteExporter(url, timeout=0.5).query("status")
        over.set()


def test_closes_the_connection_when_an_answer_is_cut_off() -> None:
    with (
        # A connection that is closed with unread data is reset.
        talking(lambda connection: connection.recv(1)) as url,
        pytest.raises(ServiceError, match="no valid HTTP response"),
    ):
        RemoteExporter(url).query("status")
    gc.collect()  # A socket that is still open warns, and warnings fail.


def test_incidents_lists_those_of_another_node_or_shows_one(run: Run, url: str) -> None:
    for arguments, ids in {
        (): ["new", "old"],
        ("--open",): ["new"],
        ("--limit", "1"): ["new"],
        ("--daemon", "other"): [],
    }.items():
        code, text, _ = run("incidents", "--json", *arguments, "--url", url)
        assert [each["id"] for each in json.loads(text)] == ids
        assert code == int("new" in ids)
    code, text, _ = run("incidents", "old", "--url", url)
    assert code == 0
    assert text.startswith("old: memory fault")
    assert "unknown incident" in run("incidents", "other", "--url", url)[2]


def test_reports_that_nothing_listens(run: Run) -> None:
    with socket.socket() as bound:
        bound.bind((LOCALHOST, 0))
        port = bound.getsockname()[1]
        code, _, problem = run("status", "--url", f"http://{LOCALHOST}:{port}")

    assert code == 1
    assert f"{LOCALHOST}:{port}: cannot connect: Connection refused" in problem
    assert "--web.listen-address" in problem


def test_reports_that_names_are_private(run: Run, web: Web) -> None:
    for command in ("status", "incidents"):
        code, _, problem = run(command, "--url", f"http://node1:{web.server.port}")
        assert code == 1
        assert "only to local or authenticated visitors" in problem
        assert "--web.config.file" in problem


def test_reports_another_service(run: Run, subtests: pytest.Subtests) -> None:
    other = "another service answers there"
    for status, body, expected in (
        (HTTPStatus.OK, b"<html>", other),
        (HTTPStatus.OK, b'{"data": 7}', other),
        (HTTPStatus.OK, b"[" * 1_000_000, other),
        (HTTPStatus.FOUND, b"", f"{other} (HTTP 302)"),
        (HTTPStatus.NOT_FOUND, b"not found", "does not support --url; update it"),
        (HTTPStatus.OK, b'{"data": {"version": 1}}', "the service is of another version"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, b'{"error": "\\u001b[2Ja"}', "\N{REPLACEMENT CHARACTER}[2Ja"),
    ):
        with subtests.test(body=body[:40], status=status):
            with answering(Answer(status, body, headers={"Location": "http://x/"})) as url:
                code, _, problem = run("status", "--url", url)
            assert code == 1
            assert expected in problem
            assert "\x1b" not in problem


def test_removes_escape_sequences_from_the_answer(run: Run) -> None:
    document = status_json(three_clients()) | {"summary": "\x1b[2J\nwell"}
    fault = incident_json(OPEN) | {"title": "\x1b[2J\nfault"}
    for command, data in (("status", document), ("incidents", [fault | {"verdict": "\x1b["}])):
        for form in ((), ("--json",)):
            with answering(Answer(HTTPStatus.OK, json.dumps({"data": data}).encode())) as url:
                code, text, _ = run(command, *form, "--url", url)
            assert code == (command == "incidents")
            assert text.strip()
            assert "\x1b" not in text


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
    assert "add `machine localhost login USER password PASSWORD` to ~/.netrc" in run("status", "--url", url)[2]
    write_netrc(home, "wrong")
    assert "the password of user alice in ~/.netrc was refused" in run("status", "--url", url)[2]
    write_netrc(home)
    assert run("status", "--url", url)[0] == 0


def test_uses_a_client_certificate(
    run: Run, secure: Secure, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = secure(MUTUAL)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    client = authority.issue("client", "DNS:client")
    both = tmp_path / "client.pem"
    both.write_text(client.cert.read_text() + client.key.read_text())

    code, _, problem = run("status", "--url", url)
    assert code == 1
    assert "--cert" in problem
    assert run("status", "--url", url, "--cert", str(both))[0] == 0


def test_reports_a_certificate_that_is_not_trusted(
    run: Run, secure: Secure, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = secure("")
    code, _, problem = run("status", "--url", url)
    assert code == 1
    assert "the certificate is not trusted" in problem
    assert "SSL_CERT_FILE" in problem

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    assert (
        "Use a host name that the certificate contains" in run("status", "--url", url.replace("localhost", "node1"))[2]
    )
    assert run("status", "--url", url)[0] == 0


def test_reports_the_wrong_scheme(run: Run, secure: Secure, url: str) -> None:
    assert "if the server uses TLS, use https://" in run("status", "--url", secure("").replace("https", "http"))[2]
    assert "the server does not use TLS; use http://" in run("status", "--url", url.replace("http", "https"))[2]


def test_rejects_invalid_arguments(run: Run, subtests: pytest.Subtests) -> None:
    for arguments, expected in {
        ("--url", "node1:10677"): "expected an address such as http://node1:10677",
        ("--url", "http://node1:x"): "expected an address",
        ("--url", "http://node1/?a=b"): "expected an address",
        ("--url", "http://alice:secret@node1:10677"): "put it into ~/.netrc",
        ("--url", "http://node1", "--pipe-directory", "/x"): "not allowed with --pipe-directory",
        ("--url", "http://node1", "--cert", "/x"): "needs --url https://",
        ("--url", "https://node1", "--cert", "/nowhere"): "expected PEM",
        ("--cert", "/x"): "needs --url https://",
    }.items():
        with subtests.test(arguments=arguments):
            code, _, problem = run("status", *arguments)
            assert code == 2
            assert expected in problem
            assert "secret" not in problem


def test_reports_a_netrc_file_that_others_can_read(run: Run, home: Path) -> None:
    write_netrc(home)
    (home / ".netrc").chmod(0o644)

    code, _, problem = run("status", "--url", "http://localhost:1")

    assert code == 2
    assert "~/.netrc cannot be used" in problem
