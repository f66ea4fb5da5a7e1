"""Valid and invalid web config files, compared with promtool.

The cases are those of exporter-toolkit's own tests (web/testdata), and some more.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.errors import ConfigError
from exporter.web.web_config import WebSecurity, _File
from tests.tools import needed
from tests.web.certificates import Authority

TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
MUTUAL = TLS + "  client_auth_type: RequireAndVerifyClientCert\n"
HASH = "$2y$10$qRTBuFoULoYNA7AQ/F3ck.trZBPyjV64.oA4ZsSBCIWvXuvQlQTuu"

GOOD = (
    "",
    "# nothing yet\n",
    "tls_server_config:\nbasic_auth_users: {}\n",
    TLS,
    TLS + '  client_auth_type: "NoClientCert"\n',
    MUTUAL,
    MUTUAL + "  client_ca_file: authority.pem\n",
    TLS + "  min_version: TLS13\n",
    "tls_server_config:\n  cert_file: {directory}/server.pem\n  key_file: server.key\n",
    f"basic_auth_users:\n  alice: {HASH}\n  yes: {HASH}\n  1: {HASH}\n",
    TLS + f"basic_auth_users: {{alice: {HASH}}}\n",
)
NAMED = MUTUAL + "  client_ca_file: authority.pem\n  client_allowed_sans: [prometheus.example, 10.0.0.1]\n"

BAD = {
    "hello\n": "must be a mapping",
    "- tls_server_config\n": "must be a mapping",
    "tls_server_config: {\n": "line 2: invalid YAML",
    "\udcff": "invalid YAML: UnicodeDecodeError",
    "[" * 2000: "invalid YAML",
    TLS + "  key_file: server.key\n": "line 2: .*duplicate key",
    f"basic_auth_users:\n  a: {HASH}\n  a: {HASH}\n": "line 2: .*duplicate key",
    "basic_auth_excluded_paths: [/]\n": "basic_auth_excluded_paths: not supported",
    "tls_server_config:\n  cert_filse: server.pem\n": "tls_server_config.cert_filse: not supported",
    "tls_server_config:\n  cert_file: ''\n  key_file: server.key\n": "cert_file: missing",
    "tls_server_config:\n  cert_file: server.pem\n  key_file: ''\n": "key_file: missing",
    "tls_server_config: {cert_file: '', client_auth_type: x}\n": "cert_file: missing",
    "tls_server_config: {cert_file: some, key_file: server.key}\n": r"cert_file: cannot read .*/some: ",
    "tls_server_config: {cert_file: server.pem, key_file: some}\n": "key_file: cannot read .*/some: ",
    "tls_server_config: {cert_file: ., key_file: server.key}\n": "cert_file: cannot read .*: ",
    "tls_server_config: {cert_file: empty.pem, key_file: server.key}\n": "empty.pem is no PEM certificate",
    "tls_server_config: {cert_file: server.pem, key_file: empty.pem}\n": "empty.pem is no PEM private key",
    "tls_server_config: {cert_file: server.pem, key_file: authority.key}\n": "is not the private key",
    "tls_server_config: {cert_file: server.pem, key_file: locked.key}\n": "needs no passphrase",
    TLS + "  client_ca_file: authority.pem\n": "client_ca_file: needs client_auth_type",
    TLS + "  client_ca_file: some\n": "client_ca_file: cannot read .*/some: ",
    TLS + "  client_auth_type: Maybe\n": "client_auth_type: 'Maybe' is not supported; use NoClientCert or RequireAnd",
    TLS + "  client_allowed_sans: [a]\n": "client_allowed_sans: needs client_auth",
    TLS + "  min_version: TLS111\n": "min_version: 'TLS111' is not supported; use TLS12 or TLS13",
    "rate_limit: {interval: 1s, burst: 1}\n": "rate_limit: not supported",
    TLS + "basic_auth_users: {john: doe}\n": r"basic_auth_users\.john: not a bcrypt hash.*htpasswd",
    "basic_auth_users: {john: }\n": r"basic_auth_users\.john: not a bcrypt hash",
    f"basic_auth_users: {{john: {HASH.replace('10', '32')}}}\n": "not a bcrypt hash",
    f"basic_auth_users: [{HASH}]\n": "basic_auth_users: must be a mapping",
    "tls_server_config: {cert_file: {}}\n": "cert_file: must be a single value",
    TLS + "  client_allowed_sans: a\n": "client_allowed_sans: must be a list of",
}

STRICTER = {
    "tls_server_config: {min_version: TLS13}\n": "cert_file: missing",
    TLS + "  max_version: TLS13\n": "max_version: not supported; remove it",
    TLS + "  min_version: TLS10\n": "'TLS10' is not supported; use TLS12 or TLS13",
    TLS + "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n": "cipher_suites: not supported",
    "http_server_config: {http2: true}\n": "http_server_config: not supported",
    TLS + "  client_auth_type: VerifyClientCertIfGiven\n": "'VerifyClientCertIfGiven' is not supported; use NoClient",
    f'basic_auth_users: {{"a:b": {HASH}}}\n': "a:b: invalid user name: .* colon",
}
"""promtool accepts these. The setting would have no effect or no use."""

NEWER = {
    MUTUAL + "  client_ca_file: empty.pem\n": "client_ca_file: .*contains no PEM certificate",
    MUTUAL + "  client_allowed_sans: []\n": "client_allowed_sans: must be a list of one or more names; without it, all",
    "tls_server_config: {cert: x, key: y}\n": r"tls_server_config\.cert: not supported",
}
"""promtool 2.42 is older than the key or the rule."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the files that the cases name."""
    directory = tmp_path_factory.mktemp("web")
    issued = Authority(directory).issue("issued", "DNS:localhost")
    issued.cert.rename(directory / "server.pem")
    issued.key.rename(directory / "server.key")
    (directory / "empty.pem").write_text("-----\n")
    lock = ("pkey", "-in", directory / "server.key", "-aes128", "-passout", "pass:x", "-out", directory / "locked.key")
    subprocess.run([needed("openssl"), *lock], check=True)
    return directory


def written(text: str, directory: Path) -> Path:
    path = directory / "web.yml"
    path.write_bytes(text.replace("{directory}", str(directory)).encode(errors="surrogateescape"))
    return path


def problem_of(text: str, directory: Path) -> str | None:
    try:
        WebSecurity(written(text, directory))
    except ConfigError as error:
        return str(error)
    return None


def test_accepts_a_valid_file(directory: Path, subtests: pytest.Subtests) -> None:
    for text in (*GOOD, NAMED):
        with subtests.test(text=text):
            assert problem_of(text, directory) is None


def test_error_names_the_place_and_the_problem(directory: Path, subtests: pytest.Subtests) -> None:
    for text, expected in {**BAD, **STRICTER, **NEWER}.items():
        with subtests.test(text=text):
            problem = problem_of(text, directory)
            assert problem is not None
            assert problem.startswith(f"--web.config.file: {directory}/web.yml: ")
            assert re.search(expected, problem), problem
            assert "\n" not in problem


def test_promtool_agrees_except_for_the_listed_differences(directory: Path, subtests: pytest.Subtests) -> None:
    for text in (*GOOD, *BAD, *STRICTER):
        with subtests.test(text=text):
            command = [needed("promtool"), "check", "web-config", written(text, directory)]
            done = subprocess.run(command, capture_output=True, check=False)
            assert (done.returncode == 0) is (text not in BAD), done.stderr


def test_errors_contain_no_secret(directory: Path) -> None:
    for text in (
        "basic_auth_users: {a: doe1}",
        f"basic_auth_users: {{a: {HASH}x}}",
        "basic_auth_users:\n  a: doe1\n b: doe1",
        "tls_server_config:\n  key: |\n  MIIE",
        TLS + "  key: MIIE",
    ):
        problem = problem_of(text, directory)
        assert problem
        assert not any(secret in problem for secret in ("doe1", "MIIE", HASH)), problem


def test_refuses_a_missing_file_and_one_without_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yml: cannot be read: No such file"):
        WebSecurity(tmp_path / "none.yml")
    with pytest.raises(ConfigError, match=r"/dev/zero: cannot be read: larger than"):
        WebSecurity(Path("/dev/zero"))


@pytest.mark.parametrize("name", ["server.pem", "server.key", "authority.pem"])
def test_a_file_may_disappear_while_it_is_read(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = directory / name
    content = lost.read_bytes()
    read = _File.read

    def read_and_remove(file: _File, path: Path) -> bytes:
        found = read(file, path)
        if path == lost:
            lost.unlink()
        return found

    monkeypatch.setattr(_File, "read", read_and_remove)
    try:
        assert problem_of(MUTUAL + "  client_ca_file: authority.pem", directory)
    finally:
        lost.write_bytes(content)


@pytest.mark.parametrize("missing", ["yaml", "bcrypt"])
def test_error_names_the_missing_extra(missing: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    problem = problem_of(f"basic_auth_users: {{a: {HASH}}}", directory)

    assert problem
    assert "pip install 'cuda-mps-exporter[web]'" in problem
