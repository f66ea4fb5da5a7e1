"""Valid and invalid web config files, compared with promtool.

The cases are those of exporter-toolkit's own tests (web/testdata), and some more.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.errors import ConfigError
from exporter.web.web_config import WebSecurity, _File
from tests.tools import needed
from tests.web.certificates import Authority

SERVER = "cert_file: server.pem\n  key_file: server.key"
TLS = f"tls_server_config:\n  {SERVER}\n"
HASH = "$2y$10$qRTBuFoULoYNA7AQ/F3ck.trZBPyjV64.oA4ZsSBCIWvXuvQlQTuu"


@dataclass(frozen=True, slots=True)
class Case:
    """A file, the expected error (None for a valid file), and why promtool's result differs, if it does."""

    name: str
    text: str
    problem: str | None = None
    differs: str | None = None


STRICTER = "the exporter is stricter: the setting would have no effect or no use"
NEWER = "promtool 2.42 is older than the key or the rule"

GOOD = (
    Case("empty", ""),
    Case("a_comment", "# nothing yet\n"),
    Case("empty_sections", "tls_server_config:\nbasic_auth_users: {}\n"),
    Case("tls", TLS),
    Case("no_client_certificates", TLS + '  client_auth_type: "NoClientCert"\n'),
    Case("client_certificates_of_system_authorities", TLS + "  client_auth_type: RequireAndVerifyClientCert\n"),
    Case(
        "client_certificates",
        TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n",
    ),
    Case(
        "allowed_names",
        TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n"
        "  client_allowed_sans: [prometheus.example, 10.0.0.1]\n",
        differs=NEWER,
    ),
    Case("a_version", TLS + "  min_version: TLS13\n"),
    Case("an_absolute_path", "tls_server_config:\n  cert_file: {directory}/server.pem\n  key_file: server.key\n"),
    Case("users", f"basic_auth_users:\n  alice: {HASH}\n  yes: {HASH}\n  1: {HASH}\n"),
    Case("tls_and_users", TLS + f"basic_auth_users: {{alice: {HASH}}}\n"),
)

BAD = (
    Case("a_word", "hello\n", "must be a mapping"),
    Case("a_list", "- tls_server_config\n", "must be a mapping"),
    Case("no_yaml", "tls_server_config: {\n", "line 2: invalid YAML"),
    Case("bytes", "\\xff", "invalid YAML: UnicodeDecodeError"),
    Case("deep", "[" * 2000, "invalid YAML"),
    Case("twice", TLS + "  key_file: server.key\n", "line 2: .*duplicate key"),
    Case("two_users_of_a_name", f"basic_auth_users:\n  a: {HASH}\n  a: {HASH}\n", "line 2: .*duplicate key"),
    Case("unknown_section", "basic_auth_excluded_paths: [/]\n", "basic_auth_excluded_paths: not supported"),
    Case(
        "misspelt_key",
        "tls_server_config:\n  cert_filse: server.pem\n",
        "tls_server_config.cert_filse: not supported",
    ),
    Case("no_certificate", "tls_server_config:\n  cert_file: ''\n  key_file: server.key\n", "cert_file: missing"),
    Case("no_key", "tls_server_config:\n  cert_file: server.pem\n  key_file: ''\n", "key_file: missing"),
    Case("nothing_but_a_policy", "tls_server_config: {cert_file: '', client_auth_type: x}\n", "cert_file: missing"),
    Case(
        "nothing_but_a_version",
        "tls_server_config: {min_version: TLS13}\n",
        "cert_file: missing",
        STRICTER,
    ),
    Case(
        "absent_certificate",
        "tls_server_config: {cert_file: some, key_file: server.key}\n",
        r"cert_file: cannot read .*/some: ",
    ),
    Case(
        "absent_key", "tls_server_config: {cert_file: server.pem, key_file: some}\n", "key_file: cannot read .*/some: "
    ),
    Case("a_directory", "tls_server_config: {cert_file: ., key_file: server.key}\n", "cert_file: cannot read .*: "),
    Case(
        "not_a_certificate",
        "tls_server_config: {cert_file: empty.pem, key_file: server.key}\n",
        "empty.pem is no PEM cert",
    ),
    Case(
        "not_a_key",
        "tls_server_config: {cert_file: server.pem, key_file: empty.pem}\n",
        "is no PEM private key",
    ),
    Case("another_key", "tls_server_config: {cert_file: server.pem, key_file: authority.key}\n", "is not the private"),
    Case("a_locked_key", "tls_server_config: {cert_file: server.pem, key_file: locked.key}\n", "needs no passphrase"),
    Case(
        "authority_without_policy", TLS + "  client_ca_file: authority.pem\n", "client_ca_file: needs client_auth_type"
    ),
    Case("absent_authority", TLS + "  client_ca_file: some\n", "client_ca_file: cannot read .*/some: "),
    Case(
        "no_authority_in_the_file",
        TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: empty.pem\n",
        "client_ca_file: .*contains no PEM certificate",
        NEWER,
    ),
    Case(
        "unknown_policy",
        TLS + "  client_auth_type: Maybe\n",
        "client_auth_type: 'Maybe' is not supported; use NoClientCert or RequireAnd",
    ),
    Case(
        "allowed_names_without_policy", TLS + "  client_allowed_sans: [a]\n", "client_allowed_sans: needs client_auth"
    ),
    Case(
        "no_allowed_names",
        TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: []\n",
        "client_allowed_sans: must be a list of one or more names; without it, all are allowed",
        NEWER,
    ),
    Case(
        "unknown_version",
        TLS + "  min_version: TLS111\n",
        "min_version: 'TLS111' is not supported; use TLS12 or TLS13",
    ),
    Case("inline", "tls_server_config: {cert: x, key: y}\n", r"tls_server_config\.cert: not supported", NEWER),
    Case("latest_version", TLS + "  max_version: TLS13\n", "max_version: not supported; remove it", STRICTER),
    Case("broken_version", TLS + "  min_version: TLS10\n", "'TLS10' is not supported; use TLS12 or TLS13", STRICTER),
    Case("ciphers", TLS + "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n", "cipher_suites: not supported", STRICTER),
    Case("rate_limit", "rate_limit: {interval: 1s, burst: 1}\n", "rate_limit: not supported"),
    Case("http2", "http_server_config: {http2: true}\n", "http_server_config: not supported", STRICTER),
    Case(
        "optional_client_certificates",
        TLS + "  client_auth_type: VerifyClientCertIfGiven\n",
        "'VerifyClientCertIfGiven' is not supported; use NoClientCert or RequireAndVerifyClientCert",
        STRICTER,
    ),
    Case(
        "a_plain_password", TLS + "basic_auth_users: {john: doe}\n", r"basic_auth_users\.john: not a bcrypt hash.*htp"
    ),
    Case("no_password", "basic_auth_users: {john: }\n", r"basic_auth_users\.john: not a bcrypt hash"),
    Case("a_costly_hash", f"basic_auth_users: {{john: {HASH.replace('10', '32')}}}\n", "not a bcrypt hash"),
    Case("a_name_with_a_colon", f'basic_auth_users: {{"a:b": {HASH}}}\n', "a:b: invalid user name: .* colon", STRICTER),
    Case("a_list_of_users", f"basic_auth_users: [{HASH}]\n", "basic_auth_users: must be a mapping"),
    Case("a_mapping_for_a_name", "tls_server_config: {cert_file: {}}\n", "cert_file: must be a single value"),
    Case(
        "a_word_for_a_list",
        TLS + "  client_allowed_sans: a\n",
        "client_allowed_sans: must be a list of one or more names",
    ),
)


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


def written(case: Case, directory: Path) -> Path:
    """Write the case to a file."""
    path = directory / f"{case.name}.yml"
    path.write_bytes(
        case.text.replace("{directory}", str(directory)).replace("\\xff", "\udcff").encode(errors="surrogateescape")
    )
    return path


def accepts(path: Path) -> bool:
    try:
        WebSecurity(path)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_accepts_a_valid_file(case: Case, directory: Path) -> None:
    WebSecurity(written(case, directory))


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_error_names_the_place_and_the_problem(case: Case, directory: Path) -> None:
    path = written(case, directory)

    with pytest.raises(ConfigError) as caught:
        WebSecurity(path)

    problem = str(caught.value)
    assert problem.startswith(f"--web.config.file: {path}: ")
    assert case.problem is not None
    assert re.search(case.problem, problem), problem
    assert "\n" not in problem


def test_errors_contain_no_secret(directory: Path) -> None:
    secrets = ("doe1", "MIIE", HASH)
    for text in (
        "basic_auth_users: {a: doe1}",
        f"basic_auth_users: {{a: {HASH}x}}",
        "basic_auth_users:\n  a: doe1\n b: doe1",
        "tls_server_config:\n  key: |\n  MIIE",
        TLS + "  key: MIIE",
    ):
        path = directory / "secret.yml"
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            WebSecurity(path)
        assert not any(secret in str(caught.value) for secret in secrets), str(caught.value)


def test_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yml: cannot be read: No such file"):
        WebSecurity(tmp_path / "none.yml")


def test_refuses_a_file_without_end() -> None:
    with pytest.raises(ConfigError, match=r"/dev/zero: cannot be read: larger than"):
        WebSecurity(Path("/dev/zero"))


@pytest.mark.parametrize("name", ["server.pem", "server.key", "authority.pem"])
def test_a_file_may_disappear_while_it_is_read(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem"
    path = written(Case("disappearing", text), directory)
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
        with pytest.raises(ConfigError, match=r"--web\.config\.file: "):
            WebSecurity(path)
    finally:
        lost.write_bytes(content)


@pytest.mark.parametrize("missing", ["yaml", "bcrypt"])
def test_error_names_the_missing_extra(missing: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(Case("extra", f"basic_auth_users: {{a: {HASH}}}"), directory)
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(ConfigError, match=r"pip install 'cuda-mps-exporter\[web\]'"):
        WebSecurity(path)


@pytest.mark.parametrize("case", [each for each in (*GOOD, *BAD) if each.differs != NEWER], ids=lambda case: case.name)
def test_promtool_agrees_except_for_the_listed_differences(case: Case, directory: Path) -> None:
    path = written(case, directory)
    done = subprocess.run([needed("promtool"), "check", "web-config", path], capture_output=True, check=False)

    assert ((done.returncode == 0) == accepts(path)) is (case.differs is None), done.stderr
