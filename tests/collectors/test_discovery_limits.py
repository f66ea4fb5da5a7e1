"""Limits of discovery: a user with many daemons displaces no daemon of another user."""

import os
import socket
import subprocess
from itertools import count
from pathlib import Path

import pytest

from exporter.collectors import discovery
from exporter.collectors.daemon_processes import ControlDaemon, ControlDaemons
from exporter.collectors.discovery import Candidate, Discovery, _owner, _subordinate_uids, admit, too_many
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.proc import Proc
from exporter.collectors.thread import BoundedCalls
from exporter.model.daemon import Daemon, DaemonState, Declaration, NamedBy
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess, ProcessReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import PollIntervals
from exporter.model.values import replace
from exporter.reducer import reduce
from exporter.state import poll_schedule
from tests.builders import AT, silence
from tests.clocks import HandClock
from tests.collectors.test_discovery import SHELL, imitation
from tests.conftest import Starter
from tests.standin.mps import PATIENCE_SECONDS, wait_until
from tests.tools import not_here

OTHER_USER = 65534

order = count()


def candidates(owner: str, number: int, *, host: bool = False, expected: bool = False) -> list[Candidate]:
    """Return candidates of one owner, found later than all before."""
    return [
        candidate(f"{owner}/{each}", owner, float(next(order)), host=host, expected=expected) for each in range(number)
    ]


def candidate(name: str, owner: str, found_at: float, **options: bool) -> Candidate:
    location = on_host(name, Path("/pipe"), Path("/log"))
    return Candidate(location=location, owner=owner, found_at=found_at, seen_at=found_at, **options)


def test_one_user_with_many_daemons_displaces_no_other_user() -> None:
    admitted = admit([*candidates("UID 1", 64), *candidates("UID 2", 1), *candidates("UID 3", 3)])
    assert {"UID 2/0", "UID 3/0", "UID 3/1", "UID 3/2"} <= admitted
    assert sum(name.startswith("UID 1/") for name in admitted) == 16


def test_many_users_with_many_daemons_do_not_displace_the_first_daemon_of_another() -> None:
    many = [claim for user in range(8) for claim in candidates(f"UID {user}", 100)]
    admitted = admit([*many, *candidates("UID 99", 2)])
    assert "UID 99/0" in admitted
    assert "UID 99/1" in admitted
    assert len(admitted) == 64


def test_does_not_displace_expected_daemons_and_those_of_the_host() -> None:
    crowd = [claim for user in range(100) for claim in candidates(f"UID {user}", 100)]
    mine = [*candidates("UID 0", 64, host=True), *candidates("UID 7", 3, expected=True)]
    assert {each.location.name for each in mine} <= admit([*crowd, *mine])


def test_does_not_displace_a_daemon_when_its_owner_starts_more() -> None:
    first = candidates("UID 1", 16)
    assert admit([*candidates("UID 1", 100), *first]) == {each.location.name for each in first}


SUBORDINATE = "alice:100000:65536\nbob:231072:65536\nbroken\nx:y:z\n"


def daemon(pid: int, uid: int, *, cgroup: str = "", user: str | None = None) -> ControlDaemon:
    facts = ProcessReading(
        at=AT,
        pid=pid,
        start_ticks=1,
        started=AT,
        uid=uid,
        user=user or str(uid),
        command="",
        executable=None,
        cgroup=f"0::{cgroup}\n",
        parent=None,
    )
    return ControlDaemon(facts=facts, arguments=(), environment={}, stdout=None, own_pid=pid, depth=1)


@pytest.mark.parametrize("subordinate", [SUBORDINATE, None], ids=["listed", "unknown"])
@pytest.mark.parametrize(
    ("cgroup", "namespace_owner"),
    [("/user.slice/a.scope", None), ("/user.slice/a.scope", 1000), (f"/docker/{'a' * 64}", None)],
    ids=["setuid", "namespace", "container"],
)
def test_one_user_with_many_uids_displaces_no_other_user(
    tmp_path: Path, subordinate: str | None, cgroup: str, namespace_owner: int | None
) -> None:
    if subordinate:
        (tmp_path / "subuid").write_text(subordinate)
    listed = _subordinate_uids(tmp_path / "subuid")
    many = [_owner(daemon(n, 100_000 + n, cgroup=cgroup), namespace_owner, listed) for n in range(80)]
    others = [
        _owner(daemon(90, 1001), None, listed),
        _owner(daemon(91, 300_000, user="from LDAP"), None, listed),
        _owner(daemon(92, 1002, cgroup=cgroup), 1002, listed)
        if "docker" not in cgroup
        else _owner(daemon(92, 1002), None, listed),
    ]
    crowd = [replace(candidate(f"many/{n}", owner, float(n)), group=group) for n, (owner, group) in enumerate(many)]
    later = [replace(candidate(f"other/{n}", owner, 100.0), group=group) for n, (owner, group) in enumerate(others)]

    assert {each.location.name for each in later} <= admit([*crowd, *later])


def test_users_without_a_name_keep_their_own_shares() -> None:
    """In a container, no UID has a name. Two users of a directory service are in one range of UIDs."""
    crowd = [
        replace(candidate(f"many/{n}", owner, float(n)), group=group)
        for n, (owner, group) in enumerate(_owner(daemon(n, 100_001), None, {}) for n in range(80))
    ]
    owner, group = _owner(daemon(99, 100_002), None, {})
    admitted = admit([*crowd, replace(candidate("other", owner, 100.0), group=group)])
    assert ("other" in admitted, len(admitted)) == (True, 17)


def test_finds_the_user_who_created_nested_user_namespaces(start: Starter) -> None:
    if os.geteuid() != 0:
        not_here("only root can read the namespaces of another user")
    proc = Proc(Path("/proc"), HandClock())
    nested = start(["unshare", "--user", "--map-root-user", "unshare", "--user", "sleep", "600"], user=OTHER_USER)
    wait_until(lambda: proc.name(nested.pid) == "sleep", "the nested namespace")
    assert proc.user_namespace_owner(nested.pid) == OTHER_USER
    assert proc.user_namespace_owner(os.getpid()) is None
    assert proc.user_namespace_owner(1 << 30) is None


def test_reports_ignored_daemons_by_owner_in_a_stable_text() -> None:
    assert too_many(()) is None
    problem = too_many(candidates("UID 1000", 3))
    assert problem == too_many(candidates("UID 1000", 48))
    assert problem == Reason(ReasonCode.TOO_MANY_DAEMONS, detail="UID 1000", limits=(16, 64))
    many = too_many([candidate("", f"UID {n}", 0.0) for n in range(1, 9)])
    assert many == Reason(ReasonCode.TOO_MANY_DAEMONS, detail="UID 1, UID 2, UID 3, ...", limits=(16, 64))


def start_fake(start: Starter, directory: Path, uid: int) -> subprocess.Popen[bytes]:
    """Start a process that looks like a user's control daemon, with a socket of that user."""
    directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as made:
        descriptor = os.open(directory, os.O_PATH)
        made.bind(f"/proc/self/fd/{descriptor}/control_privileged")
        os.close(descriptor)
    os.chown(directory / "control_privileged", uid, uid)
    return start(imitation(["-d"]), **SHELL, env={"CUDA_MPS_PIPE_DIRECTORY": str(directory)}, user=uid)


def test_fake_daemons_of_one_user_do_not_hide_another_users_daemon(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        not_here("this needs two users")
    monkeypatch.setattr(discovery, "MOST_OF_A_USER", 2)
    monkeypatch.setattr(discovery, "MOST_DAEMONS", 3)
    fakes = [start_fake(start, tmp_path / f"fake{number}", 65534) for number in range(4)]
    all_daemons = ControlDaemons.all

    def all_of_this_test(daemons: ControlDaemons) -> list[ControlDaemon]:
        """Other tests may run daemons on this machine."""
        mine = str(tmp_path)
        return [
            each for each in all_daemons(daemons) if mine in (each.environment or {}).get("CUDA_MPS_PIPE_DIRECTORY", "")
        ]

    monkeypatch.setattr(ControlDaemons, "all", all_of_this_test)
    local = Discovery(patterns=(), proc=Path("/proc"), clock=(clock := HandClock()))
    local._calls = BoundedCalls(PATIENCE_SECONDS)
    wait_until(lambda: {each.pid for each in fakes} <= {each.pid for each in local._daemons.all()}, "the fake daemons")
    for _ in range(2):
        clock.time += 10
        local.collect()

    other = start_fake(start, tmp_path / "other", 65533)
    wait_until(lambda: other.pid in {each.pid for each in local._daemons.all()}, "the other daemon")
    for _ in range(2):
        clock.time += 10
        reading = local.collect()

    found = [name for name in local.locations if name.startswith(str(tmp_path))]
    assert str(tmp_path / "other") in found
    assert len(found) == 3
    assert reading.problem is not None
    assert (ReasonCode.TOO_MANY_DAEMONS, "UID 65534") in [
        (each.code, each.parameters.get("detail")) for each in reading.problem.each
    ]

    local.named = {"named": on_host("named", tmp_path / "fake3", tmp_path)}
    clock.time += 10
    local.collect()
    assert local.locations["named"].process is not None, "an expected daemon has room of its own"


# -- how often such a daemon is asked ------------------------------------------------------------------------------


def commands_sent(uid: int, seconds: int, *, named_by: NamedBy = NamedBy.DISCOVERED) -> int:
    """Return how many commands are sent in this time to a daemon that never answers."""
    node = Node(
        daemons={"x": Daemon(name="x", pipe_directory="/x", log_directory="/x", declared=Declaration(by=named_by))}
    )
    process = DaemonProcess(at=AT, daemon="x", pid=7, start_ticks=1, started=AT, uid=uid)
    node, _ = reduce(node, process)
    assert node.daemons["x"].state is DaemonState.STARTING
    given, busy_until = 0, 0
    for second in range(seconds):
        commands = (
            poll_schedule.commands(replace(node, at=AT + second), "x", PollIntervals()) if second >= busy_until else ()
        )
        if commands:
            given, busy_until = given + len(commands), second + 5
            node, _ = reduce(node, silence(at=AT + busy_until, daemon="x"))
    return given


def test_queries_a_users_daemon_that_never_answers_less_and_less_often() -> None:
    in_an_hour = commands_sent(1000, 3600)
    assert 50 <= in_an_hour <= 3600 / PollIntervals().liveness
    assert commands_sent(0, 3600) > 5 * in_an_hour
    assert commands_sent(1000, 3600, named_by=NamedBy.CONFIGURATION) > 5 * in_an_hour
