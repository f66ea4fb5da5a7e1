"""However many daemons one user starts, every other user's daemon is followed, and what is ignored is reported."""

import os
import socket
import subprocess
from itertools import count
from pathlib import Path

import pytest

from exporter.collectors import discovery
from exporter.collectors.control_daemons import ControlDaemon, ControlDaemons
from exporter.collectors.discovery import Candidate, Discovery, admit, too_many
from exporter.collectors.pipe_dir import on_host
from exporter.model.daemon import Daemon, DaemonState, Declaration, NamedBy
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess
from exporter.model.problem import Problem, ProblemCode
from exporter.model.settings import PollIntervals
from exporter.model.values import replace
from exporter.state import poll_schedule
from exporter.state.reducer import reduce
from tests.builders import AT, silence
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.sources.test_finder import SHELL, imitation
from tests.standin.mps import wait_until
from tests.tools import not_here

order = count()


def candidates(owner: str, number: int, *, host: bool = False, expected: bool = False) -> list[Candidate]:
    """So many candidates of one owner, later than all before."""
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


def test_many_users_with_many_daemons_displace_no_first_daemon_of_another() -> None:
    many = [claim for user in range(8) for claim in candidates(f"UID {user}", 100)]
    admitted = admit([*many, *candidates("UID 99", 2)])
    assert "UID 99/0" in admitted
    assert "UID 99/1" in admitted
    assert len(admitted) == 64


def test_daemons_of_the_host_and_expected_ones_are_not_displaced() -> None:
    crowd = [claim for user in range(100) for claim in candidates(f"UID {user}", 100)]
    mine = [*candidates("UID 0", 64, host=True), *candidates("UID 7", 3, expected=True)]
    assert {each.location.name for each in mine} <= admit([*crowd, *mine])


def test_a_daemon_keeps_its_room_when_its_owner_starts_more() -> None:
    first = candidates("UID 1", 16)
    assert admit([*candidates("UID 1", 100), *first]) == {each.location.name for each in first}


def test_ignored_daemons_are_reported_by_owner_in_words_that_do_not_change() -> None:
    assert too_many(()) is None
    problem = too_many(candidates("UID 1000", 3))
    assert problem == too_many(candidates("UID 1000", 48))
    assert problem == Problem(code=ProblemCode.TOO_MANY_DAEMONS, detail="UID 1000", limits=(16, 64))
    many = too_many([candidate("", f"UID {n}", 0.0) for n in range(1, 9)])
    assert many == replace(problem, detail="UID 1, UID 2, UID 3, ...")


def start_fake(start: Starter, directory: Path, uid: int) -> subprocess.Popen[bytes]:
    """A process that looks like a user's control daemon, with a socket that it made."""
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
    everybody = ControlDaemons.all

    def those_of_this_test(daemons: ControlDaemons) -> list[ControlDaemon]:
        """Other tests may run daemons on this machine."""
        mine = str(tmp_path)
        return [
            each for each in everybody(daemons) if mine in (each.environment or {}).get("CUDA_MPS_PIPE_DIRECTORY", "")
        ]

    monkeypatch.setattr(ControlDaemons, "all", those_of_this_test)
    finder = Discovery(patterns=(), proc=Path("/proc"), clock=(clock := HandClock()))
    wait_until(lambda: {each.pid for each in fakes} <= {each.pid for each in finder._daemons.all()}, "the fakes")
    for _ in range(2):
        clock.time += 10
        finder.collect()

    other = start_fake(start, tmp_path / "other", 65533)
    wait_until(lambda: other.pid in {each.pid for each in finder._daemons.all()}, "the other")
    for _ in range(2):
        clock.time += 10
        reading = finder.collect()

    mine = [name for name in finder.locations if name.startswith(str(tmp_path))]
    assert str(tmp_path / "other") in mine
    assert len(mine) == 3
    assert reading.problem is not None
    assert (ProblemCode.TOO_MANY_DAEMONS, "UID 65534") in [(each.code, each.detail) for each in reading.problem.each]

    finder.set_named([on_host("named", tmp_path / "fake3", tmp_path)])
    clock.time += 10
    finder.collect()
    assert finder.locations["named"].process is not None, "an expected daemon has room beside them"


# -- how often such a daemon is asked ------------------------------------------------------------------------------


def commands_given(uid: int, seconds: int, *, named_by: NamedBy = NamedBy.DISCOVERED) -> int:
    """How many commands a daemon is given in so many seconds that never answers."""
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


def test_a_users_daemon_that_never_answers_is_asked_ever_less_often() -> None:
    in_an_hour = commands_given(1000, 3600)
    assert 50 <= in_an_hour <= 3600 / PollIntervals().liveness
    assert commands_given(0, 3600) > 5 * in_an_hour
    assert commands_given(1000, 3600, named_by=NamedBy.CONFIGURATION) > 5 * in_an_hour
