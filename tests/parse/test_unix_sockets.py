"""The kernel's table of unix sockets, and who in it takes connections."""

import pytest

from exporter.parse.proc import listening_unix_sockets

HEAD = "Num       RefCount Protocol Flags    Type St Inode Path\n"


def row(path: str, flags: str = "00010000", state: str = "01") -> str:
    return f"00000000a907fcd5: 00000002 00000000 {flags} 0005 {state} 5325 {path}".rstrip() + "\n"


def test_those_that_take_connections_are_told() -> None:
    """As an R580 daemon shows, with one client connected."""
    table = (
        HEAD
        + row("/run/mps/control_privileged")
        + row("/run/mps/control")
        + row("/run/mps/control", flags="00000000", state="03")
        + row("", state="03", flags="00000000")
    )
    assert list(listening_unix_sockets(table)) == ["/run/mps/control_privileged", "/run/mps/control"]


def test_a_path_may_have_blanks() -> None:
    assert list(listening_unix_sockets(HEAD + row("/run/a  b/control"))) == ["/run/a  b/control"]


def test_an_abstract_name_is_no_path() -> None:
    assert list(listening_unix_sockets(row("@/run/mps/control"))) == ["@/run/mps/control"]


@pytest.mark.parametrize("text", ["", HEAD, "00010000", "00010000 00010000 00010000 00010000\n", row(""), "\n\n", "\0"])
def test_what_is_no_row_is_passed_over(text: str) -> None:
    assert list(listening_unix_sockets(text)) == []


def test_flags_elsewhere_are_not_the_flags() -> None:
    assert list(listening_unix_sockets(row("/run/00010000/control", flags="00000000"))) == []
