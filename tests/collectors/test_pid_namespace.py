"""Tests of PidNamespace: PIDs of a daemon in another PID namespace."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import pipe_dir
from exporter.collectors.pipe_dir import IGNORED_SECONDS, MOST_REMEMBERED, REMEMBERED_SECONDS, PidNamespace
from exporter.collectors.proc import Proc
from tests.clocks import HandClock
from tests.containers import Container
from tests.standin.mps import is_alive, wait_until

DAEMON = 500


@dataclass(slots=True)
class FakeProc:
    """A fake /proc in a folder. It does not show the namespace of a process."""

    root: Path
    clock: HandClock = field(default_factory=HandClock)

    def add(self, *pids: int, start: int = 1) -> None:
        """Add a process with these PIDs, the outermost first."""
        folder = self.root / str(pids[0])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{pids[0]} (x) S 1" + " 0" * 17 + f" {start} 0")
        (folder / "status").write_text("Name:\tx\nNSpid:\t" + "\t".join(map(str, pids)) + "\nVmPeak:\t1 kB\n")

    def remove(self, pid: int) -> None:
        """Remove a process."""
        for name in ("stat", "status"):
            (self.root / str(pid) / name).unlink()
        (self.root / str(pid)).rmdir()

    def namespace(self) -> PidNamespace:
        """Return the daemon's namespace."""
        return PidNamespace(_FakeKernel(self.root, self.clock), DAEMON, self.clock)


class _FakeKernel(Proc):
    """Knows the processes that the fake /proc has."""

    def is_unused(self, pid: int) -> bool:
        """Return whether there is no such process."""
        return pid not in self.pids()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """A node with a daemon that has PID 7 in its own namespace."""
    fake = FakeProc(tmp_path / "proc")
    fake.add(DAEMON, 7)
    return fake


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    with Container(tmp_path / "c") as made:
        yield made


# -- real processes ---------------------------------------------------------------------------------------------------


def test_translates_the_pid_of_a_process_in_the_namespace(container: Container) -> None:
    daemon = container.start()
    inner, outer = container.client()
    namespace = PidNamespace(Proc(Path("/proc"), SystemClock()), daemon, SystemClock())

    assert namespace.outer([inner, container.mps.pid, 1]) == {
        inner: outer,
        container.mps.pid: daemon,
        1: container.init,
    }
    assert namespace.inner(outer) == inner


def test_finds_a_new_process_and_remembers_an_ended_one(container: Container) -> None:
    namespace = PidNamespace(Proc(Path("/proc"), SystemClock()), container.start(), SystemClock())
    inner, outer = container.client()
    assert namespace.outer([inner]) == {}

    namespace.update([inner])
    os.kill(outer, 9)
    wait_until(lambda: not is_alive(outer))
    namespace.update([inner, 999_999])

    assert namespace.outer([inner]) == {inner: outer}


def test_ignores_the_same_pid_in_another_container(container: Container, tmp_path: Path) -> None:
    with Container(tmp_path / "other") as other:
        daemon = other.start()
        namespace = PidNamespace(Proc(Path("/proc"), SystemClock()), daemon, SystemClock())

        assert namespace.outer([1]) == {1: other.init}
        assert namespace.contains(daemon)
        assert not namespace.contains(container.init)
        assert not namespace.contains(os.getpid())


def test_translates_the_pid_of_a_client_in_a_nested_namespace(container: Container) -> None:
    namespace = PidNamespace(Proc(Path("/proc"), SystemClock()), container.start(), SystemClock())
    nested = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; exec sleep 600"]
    with subprocess.Popen(["nsenter", f"--target={container.init}", "--pid", *nested], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        deepest = max(container.all(), key=lambda numbers: len(numbers))
        namespace.update([deepest[1]])

        assert len(deepest) == 3
        assert namespace.outer([deepest[1]]) == {deepest[1]: deepest[0]}
        os.kill(deepest[0], 9)


# -- without permission to read namespaces ---------------------------------------------------------------------------


def test_accepts_the_only_process_with_a_pid_at_the_same_depth(proc: FakeProc) -> None:
    proc.add(600, 20)
    proc.add(20)

    assert proc.namespace().outer([20, 7]) == {20: 600, 7: DAEMON}


def test_does_not_translate_a_pid_that_two_processes_may_have(proc: FakeProc) -> None:
    proc.add(600, 20)
    proc.add(601, 20)

    assert proc.namespace().outer([20]) == {}


def test_a_process_of_the_outer_namespace_has_no_inner_pid(proc: FakeProc) -> None:
    proc.add(20)

    assert proc.namespace().outer([20]) == {}
    assert proc.namespace().inner(20) is None


def test_a_negative_pid_is_an_inner_pid(proc: FakeProc) -> None:
    assert proc.namespace().inner(-31) == 31


# -- changes over time ---------------------------------------------------------------------------------------------


@pytest.fixture
def certain(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    """All processes of the same depth are in the daemon's namespace."""
    monkeypatch.setattr(Proc, "pid_namespace", lambda _self, _pid, above=0: 4026531999)
    return proc


def test_prefers_the_younger_of_two_processes_with_a_pid(certain: FakeProc) -> None:
    certain.add(600, 20, start=10)
    namespace = certain.namespace()
    certain.remove(600)
    certain.add(700, 20, start=99)

    namespace.update([31])

    assert namespace.outer([20]) == {20: 700}


def test_detects_that_a_pid_was_reused(certain: FakeProc) -> None:
    certain.add(600, 20, start=10)
    namespace = certain.namespace()
    certain.add(600, 21, start=99)

    namespace.update([31])

    assert namespace.outer([20, 21]) == {20: 600, 21: 600}
    assert namespace.inner(600) == 21


def test_forgets_an_ended_process_after_the_remembered_time(certain: FakeProc) -> None:
    certain.add(600, 20)
    namespace = certain.namespace()
    certain.remove(600)
    namespace.update([31])
    assert namespace.outer([20]) == {20: 600}

    certain.clock.time += REMEMBERED_SECONDS
    namespace.update([31])

    assert namespace.outer([20]) == {}


def test_limits_the_number_of_remembered_processes(certain: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe_dir, "MOST_REMEMBERED", 3)
    assert MOST_REMEMBERED < 1 << 16
    for pid in range(600, 610):
        certain.add(pid, pid - 580)
    namespace = certain.namespace()
    for pid in range(600, 610):
        certain.remove(pid)

    namespace.update([99])

    assert len(namespace.outer(range(20, 30))) == 3


def test_examines_an_ignored_pid_again_after_the_ignored_time(certain: FakeProc) -> None:
    certain.add(600)
    namespace = certain.namespace()
    certain.add(600, 20, start=99)
    certain.clock.time += IGNORED_SECONDS + 1

    namespace.update([20])

    assert namespace.outer([20]) == {20: 600}


def test_does_not_scan_for_known_pids(certain: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = certain.namespace()
    monkeypatch.setattr(Proc, "pids", lambda _self: sys.exit("scanned"))

    namespace.update([7])

    assert namespace.outer([7]) == {7: DAEMON}
