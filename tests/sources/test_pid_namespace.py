"""PidNamespace knows who is meant by a PID that a daemon in another namespace speaks of."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import pid_namespace
from exporter.collectors.pid_namespace import IGNORED_SECONDS, MOST_REMEMBERED, REMEMBERED_SECONDS, PidNamespace
from exporter.collectors.proc import Proc
from tests.clocks import HandClock
from tests.containers import Container
from tests.standin.mps import is_alive, wait_until

DAEMON = 500


@dataclass(slots=True)
class FakeProc:
    """A /proc in a folder; which namespace a process is in cannot be seen there, unless `namespaces` tells."""

    root: Path
    clock: HandClock = field(default_factory=HandClock)

    def add(self, *pids: int, start: int = 1) -> None:
        """A process with these numbers, the reader's first."""
        folder = self.root / str(pids[0])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{pids[0]} (x) S 1" + " 0" * 17 + f" {start} 0")
        (folder / "status").write_text("Name:\tx\nNSpid:\t" + "\t".join(map(str, pids)) + "\nVmPeak:\t1 kB\n")

    def remove(self, pid: int) -> None:
        """It has gone."""
        for name in ("stat", "status"):
            (self.root / str(pid) / name).unlink()
        (self.root / str(pid)).rmdir()

    def namespace(self) -> PidNamespace:
        """The daemon's."""
        return PidNamespace(Proc(self.root, self.clock), DAEMON, self.clock)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """A node with a daemon that is 7 in its own namespace."""
    fake = FakeProc(tmp_path / "proc")
    fake.add(DAEMON, 7)
    return fake


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    with Container(tmp_path / "c") as made:
        yield made


# -- for real ------------------------------------------------------------------------------------------------------


def test_a_process_inside_is_known_by_its_number_there(container: Container) -> None:
    daemon = container.start()
    inner, outer = container.client()
    namespace = PidNamespace(Proc(Path("/proc"), SystemClock()), daemon, SystemClock())

    assert namespace.outer([inner, container.mps.pid, 1]) == {
        inner: outer,
        container.mps.pid: daemon,
        1: container.init,
    }
    assert namespace.inner(outer) == inner


def test_one_that_came_later_is_looked_for_and_one_that_has_gone_is_remembered(container: Container) -> None:
    namespace = PidNamespace(Proc(Path("/proc"), SystemClock()), container.start(), SystemClock())
    inner, outer = container.client()
    assert namespace.outer([inner]) == {}

    namespace.update([inner])
    os.kill(outer, 9)
    wait_until(lambda: not is_alive(outer))
    namespace.update([inner, 999_999])

    assert namespace.outer([inner]) == {inner: outer}


def test_the_same_number_in_another_container_is_another_process(container: Container, tmp_path: Path) -> None:
    with Container(tmp_path / "other") as other:
        daemon = other.start()
        namespace = PidNamespace(Proc(Path("/proc"), SystemClock()), daemon, SystemClock())

        assert namespace.outer([1]) == {1: other.init}
        assert namespace.contains(daemon)
        assert not namespace.contains(container.init)
        assert not namespace.contains(os.getpid())


def test_a_client_in_a_namespace_below_the_daemons_is_known_too(container: Container) -> None:
    namespace = PidNamespace(Proc(Path("/proc"), SystemClock()), container.start(), SystemClock())
    nested = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; exec sleep 600"]
    with subprocess.Popen(["nsenter", f"--target={container.init}", "--pid", *nested], stdout=subprocess.PIPE) as below:
        assert below.stdout is not None
        below.stdout.readline()
        deepest = max(container.all(), key=lambda numbers: len(numbers))
        namespace.update([deepest[1]])

        assert len(deepest) == 3
        assert namespace.outer([deepest[1]]) == {deepest[1]: deepest[0]}
        os.kill(deepest[0], 9)


# -- without the right to see namespaces ---------------------------------------------------------------------------


def test_a_number_that_one_process_has_as_deep_is_that_process(proc: FakeProc) -> None:
    proc.add(600, 20)
    proc.add(20)

    assert proc.namespace().outer([20, 7]) == {20: 600, 7: DAEMON}


def test_a_number_that_two_have_is_nobodys(proc: FakeProc) -> None:
    proc.add(600, 20)
    proc.add(601, 20)

    assert proc.namespace().outer([20]) == {}


def test_a_process_of_this_namespace_is_none_of_the_others(proc: FakeProc) -> None:
    proc.add(20)

    assert proc.namespace().outer([20]) == {}
    assert proc.namespace().inner(20) is None


def test_a_number_that_is_not_known_here_is_still_one_there(proc: FakeProc) -> None:
    assert proc.namespace().inner(-31) == 31


# -- as time passes ------------------------------------------------------------------------------------------------


@pytest.fixture
def sure(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    """All that are as deep are in the daemon's namespace."""
    monkeypatch.setattr(Proc, "pid_namespace", lambda _self, _pid, above=0: 4026531999)
    return proc


def test_of_two_that_had_a_number_the_younger_has_it(sure: FakeProc) -> None:
    sure.add(600, 20, start=10)
    namespace = sure.namespace()
    sure.remove(600)
    sure.add(700, 20, start=99)

    namespace.update([31])

    assert namespace.outer([20]) == {20: 700}


def test_a_pid_that_is_another_process_by_now_is_not_the_one_it_was(sure: FakeProc) -> None:
    sure.add(600, 20, start=10)
    namespace = sure.namespace()
    sure.add(600, 21, start=99)

    namespace.update([31])

    assert namespace.outer([20, 21]) == {20: 600, 21: 600}
    assert namespace.inner(600) == 21


def test_the_dead_are_forgotten_after_a_while(sure: FakeProc) -> None:
    sure.add(600, 20)
    namespace = sure.namespace()
    sure.remove(600)
    namespace.update([31])
    assert namespace.outer([20]) == {20: 600}

    sure.clock.time += REMEMBERED_SECONDS
    namespace.update([31])

    assert namespace.outer([20]) == {}


def test_the_dead_do_not_fill_the_memory(sure: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pid_namespace, "MOST_REMEMBERED", 3)
    assert MOST_REMEMBERED < 1 << 16
    for pid in range(600, 610):
        sure.add(pid, pid - 580)
    namespace = sure.namespace()
    for pid in range(600, 610):
        sure.remove(pid)

    namespace.update([99])

    assert len(namespace.outer(range(20, 30))) == 3


def test_who_has_a_pid_that_was_a_strangers_is_met_after_a_while(sure: FakeProc) -> None:
    sure.add(600)
    namespace = sure.namespace()
    sure.add(600, 20, start=99)
    sure.clock.time += IGNORED_SECONDS + 1

    namespace.update([20])

    assert namespace.outer([20]) == {20: 600}


def test_what_is_known_is_not_looked_for(sure: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = sure.namespace()
    monkeypatch.setattr(Proc, "pids", lambda _self: sys.exit("looked"))

    namespace.update([7])

    assert namespace.outer([7]) == {7: DAEMON}
