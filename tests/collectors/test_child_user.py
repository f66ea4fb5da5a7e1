"""A child runs as the intended user, and without the exporter's capabilities."""

import ctypes
import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import child as collectors_child
from exporter.collectors.child import CAP_SETGID, CAP_SETUID, NOGROUP, OWN_USER, User, user
from exporter.collectors.control_client import ControlClient
from exporter.collectors.pipe_dir import on_host
from tests.tools import not_here

TENANT, OTHER, UNKNOWN = 65534, 65533, 3_000_000_000
PR_SET_KEEPCAPS = 8
CAPSET_VERSION = 0x20080522

SCRIPT = """
import subprocess
from exporter.collectors.child import keep_capabilities_from_children
assert keep_capabilities_from_children()
print(subprocess.run(["grep", "CapAmb", "/proc/self/status"], capture_output=True, text=True, check=True).stdout)
"""


@pytest.fixture
def _root() -> None:
    if os.geteuid() != 0:
        not_here("only root can switch to another user")


def test_children_get_no_ambient_capabilities() -> None:
    output = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout

    assert int(output.split()[1], 16) == 0


def test_no_uid_and_the_own_uid_are_the_own_user() -> None:
    assert user(None) is OWN_USER
    assert user(os.geteuid()) is OWN_USER


@pytest.mark.usefixtures("_root")
def test_a_user_has_the_groups_of_the_password_database() -> None:
    known = pwd.getpwuid(TENANT)

    assert user(TENANT) == User(TENANT, known.pw_gid, tuple(os.getgrouplist(known.pw_name, known.pw_gid)))


@pytest.mark.usefixtures("_root")
def test_an_unknown_user_has_no_group_of_the_exporter() -> None:
    assert user(UNKNOWN) == User(UNKNOWN, NOGROUP, (NOGROUP,))


def test_names_the_missing_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors_child, "_STATUS", Path(os.devnull))

    with pytest.raises(PermissionError, match=r"it takes CAP_SETUID and CAP_SETGID to start a process as UID \d+"):
        user(os.geteuid() + 1)


@pytest.mark.usefixtures("_root")
def test_can_switch_the_user_with_both_capabilities_and_without_root() -> None:
    assert as_user_with_both_capabilities(lambda: str(user(OTHER).uid)) == str(OTHER)


def test_a_program_of_root_has_none_of_the_exporters_capabilities(everybodys: Path) -> None:
    program = everybodys / "control"
    program.write_text("#!/bin/sh\nexec grep -E '^(Uid|NoNewPrivs|Cap(Inh|Prm|Eff|Amb)):' /proc/self/status\n")
    program.chmod(0o755)

    output = as_user_with_both_capabilities(lambda: output_as_root(program))
    status = dict(line.split(":\t") for line in output.splitlines())

    assert status.pop("Uid").split() == ["0"] * 4
    assert status.pop("NoNewPrivs") == "1"
    assert {name: int(mask, 16) for name, mask in status.items()} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapAmb"), 0
    )


def output_as_root(program: Path) -> str:
    """Return the output of a program that runs as the control program of root."""
    nowhere = on_host("node", Path("/nowhere"), Path("/nowhere"))
    client = ControlClient(nowhere, executable=str(program), deadline=20.0, clock=SystemClock(), user=user(0))
    return client.send("get_server_list").stdout


def as_user_with_both_capabilities(function: Callable[[], str]) -> str:
    """Return the result of a function that runs as an ordinary user with CAP_SETUID and CAP_SETGID."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _switch_user_and_keep_both_capabilities()
            os.write(writer, function().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as pipe:
        return pipe.read()


def _switch_user_and_keep_both_capabilities() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(TENANT, TENANT, TENANT)
    os.setresuid(TENANT, TENANT, TENANT)
    both = 1 << CAP_SETGID | 1 << CAP_SETUID
    header, masks = (ctypes.c_uint32 * 2)(CAPSET_VERSION, 0), (ctypes.c_uint32 * 6)(both, both, 0)
    assert libc.capset(header, masks) == 0
