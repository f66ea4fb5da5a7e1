"""A child runs as the user who is meant, and takes none of our rights along."""

import ctypes
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import child as collectors_child
from exporter.collectors.child import CAP_SETGID, CAP_SETUID, NOGROUP, OWN_USER, User, user
from exporter.collectors.control import ControlClient
from exporter.collectors.pipe_dir import on_host
from tests.tools import not_here

NOBODY, OTHER, UNKNOWN = 65534, 65533, 3_000_000_000
PR_SET_KEEPCAPS = 8
CAPSET_VERSION = 0x20080522


@pytest.fixture
def _root() -> None:
    if os.geteuid() != 0:
        not_here("only root can become others")


def test_nobody_else_is_ourselves() -> None:
    assert user(None) is OWN_USER
    assert user(os.geteuid()) is OWN_USER


@pytest.mark.usefixtures("_root")
def test_a_user_has_the_groups_that_the_password_database_gives_him() -> None:
    known = pwd.getpwuid(NOBODY)

    assert user(NOBODY) == User(NOBODY, known.pw_gid, tuple(os.getgrouplist(known.pw_name, known.pw_gid)))


@pytest.mark.usefixtures("_root")
def test_one_whom_it_does_not_know_has_none_of_ours() -> None:
    assert user(UNKNOWN) == User(UNKNOWN, NOGROUP, (NOGROUP,))


def test_who_may_not_become_others_is_told_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors_child, "_STATUS", Path(os.devnull))

    with pytest.raises(PermissionError, match=r"it takes CAP_SETUID and CAP_SETGID to start a process as UID \d+"):
        user(os.geteuid() + 1)


@pytest.mark.usefixtures("_root")
def test_who_is_not_root_and_has_both_capabilities_may() -> None:
    assert as_nobody_with_both(lambda: str(user(OTHER).uid)) == str(OTHER)


def test_roots_program_has_none_of_our_capabilities(everybodys: Path) -> None:
    program = everybodys / "control"
    program.write_text("#!/bin/sh\nexec grep -E '^(Uid|NoNewPrivs|Cap(Inh|Prm|Eff|Amb)):' /proc/self/status\n")
    program.chmod(0o755)

    told = dict(line.split(":\t") for line in as_nobody_with_both(lambda: asked_as_root(program)).splitlines())

    assert told.pop("Uid").split() == ["0"] * 4
    assert told.pop("NoNewPrivs") == "1"
    assert {name: int(held, 16) for name, held in told.items()} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapAmb"), 0
    )


def asked_as_root(program: Path) -> str:
    """What a program says that is run as root's control program."""
    nowhere = on_host("node", Path("/nowhere"), Path("/nowhere"))
    client = ControlClient(nowhere, executable=str(program), deadline=20.0, clock=SystemClock(), user=user(0))
    return client.send("get_server_list").stdout


def as_nobody_with_both(tell: Callable[[], str]) -> str:
    """What a process of ours tells that is not root, and has the right to become anybody."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become_nobody_with_both()
            os.write(said, tell().encode())
        finally:
            os._exit(0)
    os.close(said)
    os.waitpid(child, 0)
    with open(heard) as pipe:
        return pipe.read()


def _become_nobody_with_both() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    both = 1 << CAP_SETGID | 1 << CAP_SETUID
    header, held = (ctypes.c_uint32 * 2)(CAPSET_VERSION, 0), (ctypes.c_uint32 * 6)(both, both, 0)
    assert libc.capset(header, held) == 0
