"""Daemons in other namespaces."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import pipe_dir
from exporter.collectors.control_client import ControlClient, SessionLock
from exporter.collectors.daemon_directory import DaemonDirectory
from exporter.collectors.daemon_processes import Identities
from exporter.collectors.discovery import Discovery
from exporter.collectors.logs import DaemonLogs
from exporter.collectors.pipe_dir import (
    IGNORED_SECONDS,
    MOST_REMEMBERED,
    REMEMBERED_SECONDS,
    DaemonLocation,
    Directory,
    PidNamespace,
    Root,
)
from exporter.collectors.proc import INITIAL_PID_NAMESPACE, Proc
from exporter.collectors.processes import Processes
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import ControlReply, LogLine
from exporter.model.server import ServerState
from exporter.parse.control_reply import QueryOutcome, query_outcome
from exporter.reducer import reduce
from exporter.state import poll_schedule
from tests.builders import denied
from tests.clocks import HandClock
from tests.containers import Container
from tests.eventually import eventually
from tests.standin.mps import MpsStandIn, is_alive, wait_until

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
        for name in ("stat", "status"):
            (self.root / str(pid) / name).unlink()
        (self.root / str(pid)).rmdir()

    def namespace(self) -> PidNamespace:
        return PidNamespace(_FakeKernel(self.root, self.clock), DAEMON, self.clock)


class _FakeKernel(Proc):
    """Knows the processes that the fake /proc has."""

    def is_unused(self, pid: int) -> bool:
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


# -- Daemons in other mount and PID namespaces can be found ----------------------------------------------------------


NAMESPACES = [(True, True), (True, False), (False, True)]
every_namespace = pytest.mark.parametrize(
    ("own_files", "own_pids"), NAMESPACES, ids=["files and pids", "files", "pids"]
)


@pytest.fixture
def contained(tmp_path: Path, own_files: bool, own_pids: bool) -> Iterator[Container]:
    with Container(tmp_path / "c", own_files=own_files, own_pids=own_pids) as made:
        yield made


def location_of(container: Container, pid: int) -> DaemonLocation:
    discovery = Discovery(patterns=(), proc=Path("/proc"), clock=SystemClock())

    def found() -> DaemonLocation:
        discovery.collect()
        (location,) = [each for each in discovery.locations.values() if each.process and each.process[0] == pid]
        return location

    assert container.directory
    return eventually(found)


def control(location: DaemonLocation, runtime_directory: Path) -> ControlClient:
    return ControlClient(
        location,
        executable="nvidia-cuda-mps-control",
        deadline=30.0,
        clock=SystemClock(),
        path=MpsStandIn(Path("/nowhere")).environment()["PATH"],
        lock=SessionLock(runtime_directory, SystemClock()),
    )


def reply_to(location: DaemonLocation, runtime_directory: Path, command: str) -> ControlReply:
    """Send a command until it is answered. An exporter of another test may hold the session of the daemon."""

    def answered() -> ControlReply:
        reply = control(location, runtime_directory).send(command)
        assert query_outcome(reply) is QueryOutcome.ANSWERED
        return reply

    return eventually(answered)


def test_identifies_a_directory_of_the_host(tmp_path: Path) -> None:
    found = tmp_path.stat()

    assert Directory(tmp_path).identity() == (found.st_dev, found.st_ino)
    assert Directory(tmp_path / "nowhere").identity() is None


@every_namespace
def test_translates_pids_of_commands_and_replies(contained: Container, tmp_path: Path) -> None:
    location = location_of(contained, contained.start())
    inner, client = contained.client()
    contained.mps.connect_and_wait(inner)
    server = contained.outside(int(reply_to(location, tmp_path, "get_server_list").stdout))

    listed = reply_to(location, tmp_path, "get_server_list")
    state = reply_to(location, tmp_path, f"get_server_status {server}")
    clients = reply_to(location, tmp_path, f"get_client_list {server}")

    assert (state.exit_code, state.stdout, state.command) == (0, "ACTIVE\n", f"get_server_status {server}")
    if location.namespace is None:
        assert (listed.pids, clients.pids) == (None, None)
        assert clients.stdout.split() == [str(client)]
    else:
        assert listed.pids == {int(listed.stdout): server}
        assert clients.pids == {inner: client}
    assert [path for path in tmp_path.iterdir() if path.name.startswith("pipe-")] == []


@pytest.mark.parametrize(("own_files", "own_pids"), NAMESPACES[:1])
def test_reads_the_rest_of_a_log_after_its_directory_became_unreachable(contained: Container) -> None:
    pid = contained.start()
    location = location_of(contained, pid)
    logs = DaemonLogs(location, SystemClock())
    logs.collect()
    contained.mps.say("control", "Server 99 exited with status 0")
    os.kill(pid, 9)
    eventually(lambda: _assert(location.log.identity() is None))

    lines = [each.line for each in logs.collect().observations if isinstance(each, LogLine)]
    logs.close()

    assert any("Server 99 exited" in line for line in lines)


def _assert(condition: object) -> None:
    assert condition


@every_namespace
def test_reduces_all_observations_to_pids_of_this_namespace(contained: Container, tmp_path: Path) -> None:
    """The result of discovery, queries, logs and processes is the same as for a daemon of the host."""
    daemon_pid = contained.start()
    location = location_of(contained, daemon_pid)
    logs = DaemonLogs(location, SystemClock())
    processes = Processes(proc=Path("/proc"), clock=SystemClock(), wait=0.02)
    directory = DaemonDirectory(location, Proc(Path("/proc"), SystemClock()), SystemClock(), Identities())
    client = control(location, tmp_path)
    present = Node()

    def collect(*commands: str) -> Daemon:
        nonlocal present
        client.request(commands)
        for collector in (logs.collect, directory.collect, processes.collect, client.collect):
            for seen in sorted(collector().observations, key=lambda each: each.at):
                present, _ = reduce(present, seen)
        processes.watch(poll_schedule.processes_wanted(present))
        return present.daemons[location.name]

    def until(expected: Callable[[Daemon], bool], *commands: str) -> Daemon:
        def check() -> Daemon:
            daemon = collect(*commands)
            assert expected(daemon)
            return daemon

        return eventually(check)

    until(lambda daemon: daemon.runtime.process is not None, "get_server_list")
    clients = [contained.client() for _ in range(2)]
    for inner, _ in clients:
        contained.mps.connect_and_wait(inner)

    daemon = until(lambda daemon: len(daemon.clients) == 2, "get_server_list")
    (server,) = daemon.servers
    collect(f"get_server_status {server}", f"get_client_list {server}")
    daemon = collect()
    assert set(daemon.clients) == {outer for _, outer in clients}
    assert daemon.servers[server].state is ServerState.ACTIVE
    assert (daemon.totals.connected, set(daemon.totals.disconnected.values())) == (2, {0})
    assert {pid for pid in (server, *daemon.clients) if pid in present.processes} == {server, *daemon.clients}

    os.kill(clients[0][1], 9)
    daemon = until(lambda daemon: len(daemon.clients) == 1)
    assert daemon.totals.disconnected["exit"] == 1

    os.kill(daemon_pid, 9)
    daemon = until(lambda daemon: daemon.state is DaemonState.DOWN)
    assert (daemon.servers, daemon.clients) == ({}, {})
    logs.close()
    processes.close()


@pytest.mark.parametrize(("own_files", "own_pids"), NAMESPACES[:1])
def test_a_link_does_not_lead_out_of_its_root(contained: Container, tmp_path: Path) -> None:
    inside = Path(f"/proc/{contained.init}/root{contained.directory}")
    (tmp_path / "outside").mkdir()
    (inside / "here").mkdir()
    (inside / "absolute").symlink_to(contained.directory / "here")
    (inside / "climbing").symlink_to("../" * 20 + str(tmp_path / "outside"))
    (inside / "magic").symlink_to("/proc/self/cwd")
    proc = Proc(Path("/proc"), SystemClock())
    ticks = proc.start_ticks(contained.init)
    assert ticks is not None
    root = Root(proc, contained.init, ticks)

    def identity(name: str) -> object:
        return Directory(contained.directory / name, root).identity()

    found = (inside / "here").stat()
    assert identity("absolute") == identity("here") == (found.st_dev, found.st_ino)
    assert identity("climbing") == Directory(tmp_path / "outside", root).identity()
    assert identity("magic") is None
    assert Directory(Path("/"), Root(proc, contained.init, ticks + 1)).identity() is None


def test_reports_a_root_that_cannot_be_opened(tmp_path: Path) -> None:
    class Closed(Proc):
        def open_root(self, _pid: int, _start_ticks: int) -> int:
            raise PermissionError(13, "Permission denied")

    root = Root(Closed(tmp_path, SystemClock()), 1, 1)
    location = DaemonLocation(name="x", pipe=Directory(tmp_path, root), log=Directory(tmp_path, root))
    logs = DaemonLogs(location, SystemClock())

    problem = logs.collect().problem
    assert problem is not None
    assert denied(f"/proc/1/root{tmp_path}/control.log") in problem.each


LOOKUP = """
import sys
from pathlib import Path
from exporter.clock import SystemClock
from exporter.collectors.daemon_directory import DaemonDirectory
from exporter.collectors.daemon_processes import Identities
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.proc import Proc
clock = SystemClock()
proc = Proc(Path("/proc"), clock)
location = on_host("d", Path(sys.argv[1]), Path(sys.argv[1]))
(found,) = DaemonDirectory(location, proc, clock, Identities()).collect().observations
print(found.hidden, proc.is_apart)
"""


def test_knows_that_it_may_not_see_a_daemon(tmp_path: Path) -> None:
    """The exporter is in a container, without the PIDs of the host."""
    lookup = (sys.executable, "-c", LOOKUP, str(tmp_path))
    with Container(tmp_path / "container", own_files=False) as container:
        inside = subprocess.run([*container.enter(), *lookup], capture_output=True, text=True, check=True)
    assert inside.stdout.split() == ["True", "True"]
    outside = subprocess.run(lookup, capture_output=True, text=True, check=True)
    is_apart = str(os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE)
    assert outside.stdout.split() == [is_apart, is_apart]
    assert not Proc(tmp_path, SystemClock()).is_apart, "it is unknown"
