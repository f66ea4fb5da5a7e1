"""A child runs as the intended user, and without the exporter's capabilities."""

import ctypes
import os
import pwd
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import child as collectors_child
from exporter.collectors.child import NOGROUP, OWN_USER, User, keep_capabilities_from_children, user
from exporter.collectors.control_client import ControlClient
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.without_capabilities import CAPSET_VERSION
from exporter.model.observation import ControlReply
from exporter.parse.proc import Capability
from tests.tools import not_here

TENANT, OTHER, UNKNOWN = 65534, 65533, 3_000_000_000
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
BOTH = 1 << Capability.SETGID | 1 << Capability.SETUID
SHOW_STATUS = ("grep", "-E", "^(Uid|NoNewPrivs|Cap(Inh|Prm|Eff|Amb)):", "/proc/self/status")


@pytest.fixture
def _root() -> None:
    if os.geteuid() != 0:
        not_here("only root can switch to another user")


@pytest.mark.usefixtures("_root")
def test_children_get_no_ambient_capabilities() -> None:
    def status_later() -> str:
        assert keep_capabilities_from_children()
        return child_status()

    before, after = as_user_with_both_capabilities(child_status), as_user_with_both_capabilities(status_later)

    assert set(capabilities_of(before).values()) == {BOTH}
    assert set(capabilities_of(after).values()) == {0}


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


@pytest.mark.parametrize("uid", [0, OTHER])
def test_a_program_of_another_user_has_none_of_the_exporters_capabilities(everybodys: Path, uid: int) -> None:
    program = everybodys / "control"
    program.write_text(f"#!/bin/sh\nexec {shlex.join(SHOW_STATUS)}\n")
    program.chmod(0o755)

    def status() -> str:
        assert keep_capabilities_from_children()
        return reply_as(uid, program).stdout

    output = as_user_with_both_capabilities(status)

    assert set(fields_of(output)["Uid"].split()) == {str(uid)}
    assert set(capabilities_of(output).values()) == {0}
    assert uid != 0 or fields_of(output)["NoNewPrivs"] == "1"


def test_a_program_of_root_ignores_no_signals(everybodys: Path) -> None:
    program = everybodys / "control"
    program.write_text("#!/bin/sh\nexec grep SigIgn /proc/self/status\n")
    program.chmod(0o755)

    ignored = int(fields_of(as_user_with_both_capabilities(lambda: reply_as(0, program).stdout))["SigIgn"], 16)

    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_a_missing_program_of_root_is_reported_as_that_of_any_user(everybodys: Path) -> None:
    missing = everybodys / "missing"

    def reply(uid: int) -> str:
        reply = reply_as(uid, missing)
        return f"{reply.exit_code}: {reply.stderr}"

    for uid in (0, OTHER):
        text = as_user_with_both_capabilities(lambda uid=uid: reply(uid))
        assert text == f"127: {missing}: No such file or directory"


def child_status() -> str:
    """Return the user and the capabilities of a child of this process."""
    return subprocess.run(SHOW_STATUS, capture_output=True, text=True, check=True).stdout


def capabilities_of(status: str) -> dict[str, int]:
    """Return the capabilities that a status shows, by set."""
    return {name: int(value, 16) for name, value in fields_of(status).items() if name.startswith("Cap")}


def fields_of(status: str) -> dict[str, str]:
    """Return the fields of a status by name."""
    return dict(line.split(":\t") for line in status.splitlines())


def reply_as(uid: int, program: Path) -> ControlReply:
    """Return the reply of a program that runs as the control program of this user."""
    nowhere = on_host("node", Path("/nowhere"), Path("/nowhere"))
    client = ControlClient(nowhere, executable=str(program), deadline=20.0, clock=SystemClock(), user=user(uid))
    return client.send("get_server_list")


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
    header, masks = (ctypes.c_uint32 * 2)(CAPSET_VERSION, 0), (ctypes.c_uint32 * 6)(BOTH, BOTH, BOTH)
    assert libc.capset(header, masks) == 0
    for capability in (Capability.SETGID, Capability.SETUID):
        assert libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) == 0
