"""Arbitrary files and headers cause no exception except ConfigError."""

import string
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.errors import ConfigError
from exporter.web.pages import Request
from exporter.web.web_config import BasicAuth, WebSecurity
from tests.ports import LOCALHOST
from tests.web.test_authentication import ALICE

WORDS = ("tls_server_config", "basic_auth_users", "cert_file", "key", "null", "~", "a")
YAML = st.lists(
    st.sampled_from([*WORDS, ": ", "\n", "  ", "- ", "{", "}", "[", "]", ", ", "&a ", "*a", "!!int ", "|\n"])
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to write to."""
    return tmp_path_factory.mktemp("any") / "web.yml"


@given(st.one_of(st.binary(), st.text().map(str.encode), YAML.map("".join).map(str.encode)))
def test_any_file_is_accepted_or_refused_with_a_config_error(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    try:
        WebSecurity(file)
    except ConfigError as error:
        assert str(error).startswith(f"--web.config.file: {file}: ")  # noqa: PT017 (it may as well be none)


@given(st.one_of(st.text(), st.text(string.printable).map(lambda text: f"Basic {text}")))
def test_refuses_any_other_authorization_header(header: str) -> None:
    assert BasicAuth({"alice": ALICE}, lambda *_: False).verdict(header) is HTTPStatus.UNAUTHORIZED


@given(peer=st.text(), host=st.text())
def test_accepts_any_text_as_peer_and_host(peer: str, host: str) -> None:
    assert Request(path="/", peer=peer, host=host).may_see_private in (True, False)
    assert not Request(path="/", peer=LOCALHOST, host=f"x{host}".replace(":", "")).may_see_private
