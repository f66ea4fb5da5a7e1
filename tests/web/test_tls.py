"""TLS, passwords and reload of the web config file, over real connections."""

import contextlib
import http.client
import json
import re
import shlex
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from errno import EMFILE
from pathlib import Path
from unittest.mock import Mock

import bcrypt
import pytest

from exporter.config.settings import Config
from tests.eventually import eventually
from tests.ports import LOCALHOST
from tests.tools import needed
from tests.web.certificates import Authority, Certificate
from tests.web.serving import Answer, Counting, Web, ask, read_all, serving
from tests.web.test_authentication import basic

PASSWORD = "wonderland"
USERS = f"basic_auth_users: {{alice: '{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}'}}\n"
MUTUAL = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {authority}\n"

Serve = Callable[[str], "Secured"]


class Secured:
    """A server with a web config file, and a client of it."""

    def __init__(self, web: Web, path: Path, authority: Authority) -> None:
        self.server = web.server
        self.plain = web.get
        self.path = path
        self.authority = authority
        web.exposition.publish(Counting())

    @property
    def problem(self) -> str:
        """Why the last reload failed; empty if it did not."""
        security = self.server._security
        return (security and security._problem) or ""

    def trusting(self, client: Certificate | None = None, **versions: ssl.TLSVersion) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts the authority and can have its own certificate."""
        context = ssl.create_default_context(cafile=str(self.authority.cert))
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        for name, version in versions.items():
            setattr(context, name, version)
        return context

    def get(self, path: str = "/metrics", context: ssl.SSLContext | None = None, **headers: str) -> Answer:
        """Send one request over TLS."""
        connection = http.client.HTTPSConnection(
            LOCALHOST, self.server.port, timeout=30, context=context or self.trusting()
        )
        with contextlib.closing(connection):
            return ask(connection, path, **headers)

    def refuses(self, context: ssl.SSLContext) -> bool:
        """Return whether a client gets no answer. TLS 1.3 reports the refusal after the handshake."""
        try:
            self.get(context=context)
        except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
            return True
        return False


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    """The server's certificate."""
    return authority.issue("server", f"IP:{LOCALHOST}")


@pytest.fixture
def serve(authority: Authority, certificate: Certificate, tmp_path: Path) -> Iterator[Serve]:
    """Starts servers with a web config file."""
    with contextlib.ExitStack() as closing:

        def start(text: str) -> Secured:
            path = tmp_path / "web.yml"
            path.write_text(text.replace("{authority}", str(authority.cert)))
            return Secured(closing.enter_context(serving(config=path)), path, authority)

        yield start


@pytest.fixture(scope="module")
def tls(certificate: Certificate) -> str:
    """A web config file with TLS."""
    return f"tls_server_config:\n  cert_file: {certificate.cert}\n  key_file: {certificate.key}\n"


def test_serves_metrics_over_tls_only(serve: Serve, tls: str) -> None:
    secured = serve(tls)

    assert secured.server.origins == [f"https://{LOCALHOST}:{secured.server.port}"]
    assert secured.get().body.endswith(b"answer 1.0\n")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        secured.plain()


def test_a_client_has_the_timeout_for_each_part_of_a_long_answer(
    serve: Serve, tls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of TLS waits until the client has read all of it."""
    sizes, write = list[int](), ssl.SSLSocket.send

    def send(self: ssl.SSLSocket, data: bytes, flags: int = 0) -> int:
        if self.server_side:
            sizes.append(len(data))
        return write(self, data, flags)

    secured = serve(tls)
    monkeypatch.setattr("exporter.web.server.CHUNK_BYTES", 16)
    monkeypatch.setattr(ssl.SSLSocket, "send", send)
    assert secured.get().body.endswith(b"answer 1.0\n")
    assert max(sizes) == 16


def test_accepts_the_configured_tls_versions_only(serve: Serve, tls: str) -> None:
    for written, spoken in {"": {"TLSv1.2", "TLSv1.3"}, "  min_version: TLS13\n": {"TLSv1.3"}}.items():
        secured = serve(tls + written)
        only = {
            "TLSv1.2": secured.trusting(maximum_version=ssl.TLSVersion.TLSv1_2),
            "TLSv1.3": secured.trusting(minimum_version=ssl.TLSVersion.TLSv1_3),
        }
        assert {name for name, context in only.items() if not secured.refuses(context)} == spoken


def test_admits_only_client_certificates_of_the_authority(
    serve: Serve, tls: str, authority: Authority, tmp_path: Path
) -> None:
    secured = serve(tls + MUTUAL)

    assert secured.get(context=secured.trusting(authority.issue("client"))).status == 200
    assert secured.refuses(secured.trusting())
    assert secured.refuses(secured.trusting(Authority(tmp_path, "other").issue("client")))


def test_admits_only_the_allowed_names_of_a_client_certificate(
    serve: Serve, tls: str, authority: Authority, subtests: pytest.Subtests
) -> None:
    allowed = "prometheus.example, '2001:db8::1', a@b.example, 'spiffe://node/prometheus'"
    secured = serve(tls + MUTUAL + f"  client_allowed_sans: [{allowed}]\n")
    for admitted, names in (
        (False, []),
        (False, ["DNS:other.example"]),
        (True, ["DNS:prometheus.example"]),
        (True, ["DNS:other.example", "IP:2001:db8::1"]),
        (True, ["email:a@b.example"]),
        (True, ["URI:spiffe://node/prometheus"]),
    ):
        with subtests.test(names=names):
            assert secured.refuses(secured.trusting(authority.issue("client", *names))) is not admitted


@pytest.mark.parametrize("say", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"], ids=repr)
def test_answers_a_scrape_beside_stalled_handshakes(
    serve: Serve, tls: str, say: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.web.server.IDLE_SECONDS", 600.0)
    secured = serve(tls)
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            connection = stack.enter_context(socket.create_connection((LOCALHOST, secured.server.port), timeout=30))
            connection.sendall(say)

        assert [secured.get().status for _ in range(3)] == [200] * 3
        eventually(few_threads)  # replaced connections end before their timeout


def few_threads() -> None:
    assert sum(thread.name == "request" for thread in threading.enumerate()) <= Config().max_requests


def test_answers_a_scrape_beside_clients_silent_after_the_handshake(serve: Serve, tls: str) -> None:
    secured = serve(tls)
    with contextlib.ExitStack() as stack:
        for _ in range(Config().max_requests + 20):
            connection = socket.create_connection((LOCALHOST, secured.server.port), timeout=30)
            stack.enter_context(secured.trusting().wrap_socket(connection, server_hostname=LOCALHOST))

        assert secured.get().status == 200


def test_closes_a_connection_without_a_handshake_after_the_timeout(
    serve: Serve, tls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.web.server.IDLE_SECONDS", 0.1)
    with socket.create_connection((LOCALHOST, serve(tls).server.port), timeout=30) as connection:
        assert read_all(connection) == b""


def test_each_path_requires_the_password(serve: Serve, subtests: pytest.Subtests) -> None:
    secured = serve(USERS)
    for path in ("/metrics", "/", "/-/healthy", "/-/ready", "/healthz", "/status", "/nowhere"):
        with subtests.test(path=path):
            answer = secured.plain(path)
            assert (answer.status, answer.body) == (401, b"unauthorized\n")
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")
            statuses = [
                secured.plain(path, Authorization=basic(*login)).status
                for login in (("alice", "wrong"), ("bob", PASSWORD), ("alice", PASSWORD))
            ]
            assert statuses == [401, 401, 404 if path == "/nowhere" else 200]


def test_shows_private_pages_to_users_and_clients_with_a_required_certificate_under_any_host_name(
    serve: Serve, tls: str, authority: Authority
) -> None:
    answer = serve(USERS).plain("/status", Host="node1", Authorization=basic("alice", PASSWORD))
    assert (answer.status, b"DAEMON" in answer.body) == (200, True)
    for policy, status in ((MUTUAL, 200), ("", 403)):
        secured = serve(tls + policy)
        assert secured.get("/status", secured.trusting(authority.issue("client")), Host="node1").status == status


def test_a_certificate_does_not_replace_a_password(serve: Serve, tls: str, authority: Authority) -> None:
    secured = serve(tls + MUTUAL + USERS)
    known = secured.trusting(authority.issue("client"))

    assert secured.get(context=known).status == 401
    assert secured.get(context=known, Authorization=basic("alice", PASSWORD)).status == 200


@pytest.fixture
def own(authority: Authority, tmp_path: Path) -> Certificate:
    """A certificate that a test can replace."""
    issued = authority.issue("own", f"IP:{LOCALHOST}")
    return Certificate(issued.cert.rename(tmp_path / "own.pem"), issued.key.rename(tmp_path / "own.key"))


def shown(secured: Secured) -> bytes:
    """Return the certificate of the server."""
    with (
        socket.create_connection((LOCALHOST, secured.server.port), timeout=30) as connection,
        secured.trusting().wrap_socket(connection, server_hostname=LOCALHOST) as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True) or b""


def test_uses_a_new_certificate_after_its_key_is_replaced_too(
    serve: Serve, own: Certificate, authority: Authority
) -> None:
    secured = serve("tls_server_config: {cert_file: own.pem, key_file: own.key}\n")
    before = shown(secured)
    new = authority.issue("new", f"IP:{LOCALHOST}")
    wanted = ssl.PEM_cert_to_DER_cert(new.cert.read_text())

    new.cert.replace(own.cert)
    assert shown(secured) == before
    assert "own.key is not the private key of the certificate" in secured.problem

    new.key.replace(own.key)
    assert shown(secured) == wanted != before
    assert not secured.problem


def test_adds_and_reloads_users_and_adds_tls_without_a_restart(serve: Serve, tls: str) -> None:
    secured = serve("")
    assert secured.plain().status == 200
    for name in ("alice", "carol"):
        secured.path.write_text(USERS.replace("alice", name))
        statuses = {user: secured.plain(Authorization=basic(user, PASSWORD)).status for user in ("alice", "carol")}
        assert statuses == {"alice": 401, "carol": 401} | {name: 200}

    secured.path.write_text(tls + USERS)
    assert secured.get().status == 401


@pytest.mark.parametrize("text", ["basic_auth_users: {a: b}", "{", "", "# later\n", None])
def test_keeps_the_protection_if_the_file_is_invalid_or_protects_less(
    serve: Serve, tls: str, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    secured = serve(tls + USERS)
    if text is None:
        secured.path.unlink()
    else:
        secured.path.write_text(text)

    assert [secured.get(Authorization=basic("alice", PASSWORD)).status for _ in range(3)] == [200] * 3
    assert secured.get().status == 401
    assert secured.problem.startswith(f"--web.config.file: {secured.path}: ")
    assert capsys.readouterr().out.count("web_config_reload_failed") == 1
    secured.path.write_text("[another problem]")
    assert secured.get().status == 401
    assert capsys.readouterr().out.count("web_config_reload_failed") == 1


def test_reads_an_unchanged_file_again_after_a_failure(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    secured = serve(USERS)
    secured.path.write_text(USERS.replace("alice", "carol"))
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.open", Mock(side_effect=OSError(EMFILE, "Too many open files")))
        assert secured.plain(Authorization=basic("alice", PASSWORD)).status == 200
        assert "Too many open files" in secured.problem
    assert secured.plain(Authorization=basic("alice", PASSWORD)).status == 401
    assert not secured.problem


def test_keeps_required_client_certificates_without_a_restart(serve: Serve, tls: str, authority: Authority) -> None:
    secured = serve(tls + MUTUAL)

    secured.path.write_text(tls)

    assert secured.refuses(secured.trusting())
    assert "no longer requires client certificates; restart the exporter" in secured.problem
    assert not secured.refuses(secured.trusting(authority.issue("client")))


def test_reads_unchanged_files_once(serve: Serve, tls: str, capsys: pytest.CaptureFixture[str]) -> None:
    secured = serve(tls)
    for _ in range(3):
        secured.get()

    assert "web_config_reloaded" not in capsys.readouterr().out


def test_the_documented_commands_read_another_node(serve: Serve, authority: Authority, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "start.md").read_text().partition("\n## Other nodes\n")[2]
    with_password, with_certificate = (
        re.findall(rf"^    (curl {option} .*)$", page, re.MULTILINE) for option in ("--netrc", "--cacert")
    )
    certificate, client = authority.issue("node1", "DNS:node1.example"), authority.issue("client")
    tls = f"tls_server_config:\n  cert_file: {certificate.cert}\n  key_file: {certificate.key}\n"
    (line,) = re.findall("`(machine .*?)`", page)
    netrc = tmp_path / ".netrc"
    netrc.write_text(line.replace("USER", "alice").replace("password PASSWORD", f"password {PASSWORD}"))
    netrc.chmod(0o600)
    files = {"ca.pem": authority.cert, "client.pem": client.cert, "client.key": client.key}

    answers = list[str]()
    for more, commands in ((USERS, with_password), (MUTUAL, with_certificate)):
        port = serve(tls + more).server.port
        for command in commands:
            program, *words = (str(files.get(word, word)) for word in shlex.split(command))
            here = ("-qsSf", "--cacert", str(authority.cert), "--connect-to", f"::{LOCALHOST}:{port}")
            done = subprocess.run(
                [needed(program), *here, *words],
                capture_output=True,
                text=True,
                env={"HOME": str(tmp_path), "NO_PROXY": "*"},
                check=False,
            )
            assert done.returncode == 0, done.stderr
            answers.append(done.stdout)

    text, incidents, same = answers
    assert "CLIENTS" in text.upper()
    assert json.loads(incidents)["data"] == []
    assert same.splitlines()[0] == text.splitlines()[0]
