"""Processes says who real processes are, and when they have gone."""

import contextlib
import os
import pwd
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import processes
from exporter.collectors.pipe_dir import PID_FILE
from exporter.collectors.proc import Proc
from exporter.collectors.processes import EXEC_SECONDS, MAX_PIDFDS, MISSING_SECONDS, Processes, affordable_pidfds
from exporter.model.observation import DaemonProcess, Observation, ProcessExit, ProcessReading
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.eventually import eventually
from tests.standin.mps import MpsStandIn, wait_until

LARGEST_PID = 2**22
CLIENT = 5_000_000

Watch = Callable[..., Processes]


@pytest.fixture
def watch(mps: MpsStandIn) -> Iterator[Watch]:
    """Makes the source, over the stand-in's pipe directory, and lets it watch PIDs."""
    made: list[Processes] = []

    def make(*pids: int, proc: Path = Path("/proc"), wait: float = 0.02) -> Processes:
        made.append(Processes({"node": mps.pipe_directory}, proc=proc, clock=SystemClock(), wait=wait))
        made[-1].watch(frozenset(pids))
        return made[-1]

    yield make
    for each in made:
        each.close()


def seen(source: Processes, kind: type[Observation]) -> list[Observation]:
    """What one look saw of one kind."""
    return [each for each in source.collect().observations if isinstance(each, kind)]


def soon(source: Processes, kind: type[Observation]) -> Observation:
    """The next thing of one kind that a look sees."""

    def one() -> Observation:
        found = seen(source, kind)
        assert found
        return found[0]

    return eventually(one)


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def looks(source: Processes, times: int, kind: type[Observation]) -> list[Observation]:
    return [each for _ in range(times) for each in seen(source, kind)]


# -- who a process is ----------------------------------------------------------------------------------------------


def test_a_process_is_told_of_once_with_all_that_is_to_know(watch: Watch, start: Starter) -> None:
    pid = start().pid
    source = watch(pid)

    (facts,) = seen(source, ProcessReading)

    assert isinstance(facts, ProcessReading)
    assert (facts.pid, facts.start_ticks) == (pid, start_ticks(pid))
    assert (facts.uid, facts.user) == (os.getuid(), pwd.getpwuid(os.getuid()).pw_name)
    assert facts.command == "sleep"
    assert facts.executable == os.readlink(f"/proc/{pid}/exe")
    assert facts.cgroup == Path(f"/proc/{pid}/cgroup").read_text()
    assert abs(facts.at - facts.started) < 3600
    assert looks(source, 3, ProcessReading) == []


def test_only_the_limits_of_a_client_leave_its_environment(watch: Watch, start: Starter) -> None:
    limits = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20G",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    secret = {"DATABASE_PASSWORD": "secret", "CUDA_MPS_PIPE_DIRECTORY": "/tmp"}
    pid = start(env={**os.environ, **limits, **secret}).pid
    wait_until(lambda: Path(f"/proc/{pid}/environ").read_bytes() != b"", "the end of execve")
    (facts,) = seen(watch(pid), ProcessReading)
    assert isinstance(facts, ProcessReading)
    assert facts.environment == limits


@pytest.mark.parametrize(
    ("environ", "read"),
    [
        (b"", None),
        (b"A=1\0B=2\0", {"A": "1"}),
        (b"A=1\0B=2", {"A": "1"}),
        (b"\0" * 40, None),
        (b"ray::worker(A=1)\0\0\0\0", None),
        (b"engine core\0A=1\0", None),
    ],
)
def test_an_overwritten_environment_is_unknown(tmp_path: Path, environ: bytes, read: object) -> None:
    """As by setproctitle, which many inference servers call."""
    (tmp_path / "600").mkdir()
    (tmp_path / "600" / "environ").write_bytes(environ)
    assert Proc(tmp_path, SystemClock()).variables(600, ["A"], intact=True) == read


def test_an_environment_that_may_not_be_read_is_unknown(
    watch: Watch, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proc, "variables", lambda *_, **__: None)
    (facts,) = seen(watch(start().pid), ProcessReading)
    assert isinstance(facts, ProcessReading)
    assert facts.environment is None


@pytest.fixture
def forked() -> Iterator[tuple[int, Callable[[], None]]]:
    """A child between fork and exec, and a function that lets it execute `sleep` with a limit in its environment."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os.execve("/bin/sleep", ["sleep", "600"], {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
    os.close(reader)

    def execute() -> None:
        os.write(writer, b"x")
        wait_until(lambda: b"PERCENTAGE" in Path(f"/proc/{pid}/environ").read_bytes(), "the end of execve")

    yield pid, execute
    os.close(writer)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_reads_a_process_again_that_was_read_before_its_exec(forked: tuple[int, Callable[[], None]]) -> None:
    pid, execute = forked
    clock = HandClock()
    source = Processes({}, proc=Path("/proc"), clock=clock, wait=0.0)
    source.watch(frozenset({pid}))
    (before,) = seen(source, ProcessReading)
    assert isinstance(before, ProcessReading)

    execute()
    assert seen(source, ProcessReading) == []
    clock.time += EXEC_SECONDS
    (after,) = seen(source, ProcessReading)

    assert isinstance(after, ProcessReading)
    assert (after.command, after.environment) == ("sleep", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
    assert (after.pid, after.start_ticks, after.parent) == (pid, before.start_ticks, before.parent)
    clock.time += 10 * EXEC_SECONDS
    assert seen(source, ProcessReading) == []
    source.close()


def test_reports_a_young_process_once_if_it_does_not_change(start: Starter) -> None:
    clock = HandClock()
    source = Processes({}, proc=Path("/proc"), clock=clock, wait=0.0)
    source.watch(frozenset({start().pid}))
    assert len(seen(source, ProcessReading)) == 1
    clock.time += EXEC_SECONDS
    assert seen(source, ProcessReading) == []
    source.close()


def test_a_pid_that_this_proc_does_not_have_is_neither_told_nor_gone(watch: Watch) -> None:
    source = watch(LARGEST_PID - 1)

    assert source.collect().problem is None
    assert looks(source, 3, ProcessReading) == looks(source, 3, ProcessExit) == []


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**40])
def test_a_number_that_is_no_pid_harms_nothing(watch: Watch, start: Starter, pid: int) -> None:
    live = start().pid

    assert [each.pid for each in seen(watch(pid, live), ProcessReading) if isinstance(each, ProcessReading)] == [live]


HOSTILE = [
    b"a) R 1 1 (",
    b"new\nline",
    b"Uid:\t0\t0\t0",
    b"\xff\xfe\xfd",
    b"((((((((((((((",
    b"",
    b"{\"'\\}",
    b"\x1b[31m",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_confuses_it(watch: Watch, start: Starter, tmp_path: Path, name: bytes) -> None:
    ready = tmp_path / "ready"
    program = f"open('/proc/self/comm', 'wb').write({name!r}); open({str(ready)!r}, 'w').close(); time.sleep(600)"
    process = start([sys.executable, "-c", f"import time; {program}"])
    wait_until(ready.exists)
    source = watch(process.pid)

    (facts,) = seen(source, ProcessReading)
    assert isinstance(facts, ProcessReading)
    assert (facts.start_ticks, facts.uid) == (start_ticks(process.pid), os.getuid())

    process.kill()
    gone = soon(source, ProcessExit)
    assert isinstance(gone, ProcessExit)
    assert (gone.pid, gone.start_ticks) == (process.pid, facts.start_ticks)


# -- its end -------------------------------------------------------------------------------------------------------


def test_an_exit_wakes_a_look_that_waits(watch: Watch, start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PID_FILES_SECONDS", 60.0)  # A look waits no longer than this.
    process = start()
    source = watch(process.pid, wait=60)
    source.collect()
    ticks = start_ticks(process.pid)
    source._pid_files_due = source._recheck_due = float("inf")
    start(["sh", "-c", f"sleep 0.1; kill -9 {process.pid}"])

    (gone,) = seen(source, ProcessExit)

    assert isinstance(gone, ProcessExit)
    assert (gone.pid, gone.start_ticks) == (process.pid, ticks)
    assert process.poll() is None or process.returncode == -signal.SIGKILL
    assert looks(watch(), 2, ProcessExit) == []


def test_an_exit_is_told_once(watch: Watch, start: Starter) -> None:
    process = start()
    source = watch(process.pid)
    source.collect()
    process.kill()

    assert isinstance(soon(source, ProcessExit), ProcessExit)
    process.wait()
    assert looks(source, 3, ProcessExit) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, 9), (signal.SIGTERM, 15)])
def test_an_exit_is_told_with_how_it_came(watch: Watch, start: Starter, number: int, status: int) -> None:
    process = start()
    source = watch(process.pid)
    source.collect()
    process.send_signal(number)

    gone = soon(source, ProcessExit)

    assert isinstance(gone, ProcessExit)
    assert gone.wait_status == status


def test_of_those_that_end_together_the_eldest_is_told_first(watch: Watch, start: Starter) -> None:
    """A daemon takes its server and clients along: told after them, they would seem to have left by themselves."""
    old = start()
    young = start()
    while start_ticks(young.pid) == start_ticks(old.pid):
        young = start()
    source = watch(young.pid)
    source.collect()
    source.watch(frozenset({young.pid, old.pid}))
    source.collect()
    for process in (old, young):
        process.kill()
        process.wait()

    told = [each.pid for each in seen(source, ProcessExit) if isinstance(each, ProcessExit)]

    assert told == [old.pid, young.pid]


def test_a_zombie_is_no_process(watch: Watch, start: Starter) -> None:
    process = start(["true"])

    def is_zombie() -> None:
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    eventually(is_zombie)

    assert seen(watch(process.pid), ProcessReading) == []


def test_without_pidfd_an_exit_is_noticed_all_the_same(
    watch: Watch, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    monkeypatch.setattr(processes, "RECHECK_SECONDS", 0.0)
    process = start()
    source = watch(process.pid)
    assert seen(source, ProcessReading)
    process.kill()

    assert isinstance(soon(source, ProcessExit), ProcessExit)


def test_beyond_what_it_may_hold_an_exit_is_noticed_all_the_same(
    mps: MpsStandIn, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RECHECK_SECONDS", 0.0)
    children = [start() for _ in range(5)]
    source = Processes({}, proc=Path("/proc"), clock=SystemClock(), wait=0.02, max_pidfds=2)
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.closing(source):
        source.watch(frozenset(child.pid for child in children))
        assert len(seen(source, ProcessReading)) == 5
        assert len(os.listdir("/proc/self/fd")) == before + 2
        for child in children:
            child.kill()
            child.wait()
        gone: set[int] = set()

        def all_gone() -> None:
            gone.update(each.pid for each in seen(source, ProcessExit) if isinstance(each, ProcessExit))
            assert gone == {child.pid for child in children}

        eventually(all_gone)


def test_half_of_the_descriptors_may_be_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (8192, 8192))
    assert affordable_pidfds() == 4096
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert affordable_pidfds() == MAX_PIDFDS


def test_who_is_watched_no_more_is_let_go_of(watch: Watch, start: Starter) -> None:
    before = len(os.listdir("/proc/self/fd"))
    children = [start() for _ in range(20)]
    source = watch(*(child.pid for child in children))
    source.collect()
    assert len(os.listdir("/proc/self/fd")) == before + 20

    source.watch(frozenset())
    source.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    children[0].kill()
    assert looks(source, 3, ProcessExit) == []


# -- the control daemon --------------------------------------------------------------------------------------------


def daemons(source: Processes) -> Callable[[int | None], DaemonProcess]:
    """Waits until the source tells of a daemon with this PID."""

    def wait(pid: int | None) -> DaemonProcess:
        def told() -> DaemonProcess:
            latest.extend(each for each in source.collect().observations if isinstance(each, DaemonProcess))
            assert latest
            assert latest[-1].pid == pid
            return latest[-1]

        return eventually(told)

    latest: list[DaemonProcess] = []
    return wait


def test_the_daemon_behind_the_pid_file_is_known_with_little_of_its_environment(watch: Watch, tmp_path: Path) -> None:
    with MpsStandIn(tmp_path, variables={"DATABASE_PASSWORD": "secret"}, gpus=("GPU-7", "GPU-8")) as mps:
        mps.start()
        (daemon,) = seen(watch(), DaemonProcess)

        assert isinstance(daemon, DaemonProcess)
        assert (daemon.daemon, daemon.pid, daemon.uid) == ("node", mps.pid, os.getuid())
        assert daemon.start_ticks == start_ticks(mps.pid)
        assert daemon.environment == {"CUDA_VISIBLE_DEVICES": "GPU-7,GPU-8"}


def test_without_a_pid_file_there_is_no_daemon(watch: Watch) -> None:
    source = watch()

    (daemon,) = seen(source, DaemonProcess)

    assert isinstance(daemon, DaemonProcess)
    assert daemon.pid is None
    assert looks(source, 3, DaemonProcess) == []


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "1", "99999999999999999999", "12 34", "²", "\0"])
def test_a_pid_file_may_hold_anything(watch: Watch, mps: MpsStandIn, text: str) -> None:
    mps.pipe_directory.mkdir()
    (mps.pipe_directory / PID_FILE).write_text(text)

    assert daemons(watch())(None).pid is None


def test_a_pid_file_that_names_another_process_names_no_daemon(watch: Watch, mps: MpsStandIn, start: Starter) -> None:
    mps.pipe_directory.mkdir()
    (mps.pipe_directory / PID_FILE).write_text(str(start().pid))

    assert daemons(watch())(None).pid is None


def test_a_pid_file_that_names_the_server_names_no_daemon(watch: Watch, mps: MpsStandIn) -> None:
    mps.start()
    mps.connect_and_wait(CLIENT)
    server = mps.server_pid
    (mps.pipe_directory / PID_FILE).write_text(str(server))

    assert daemons(watch())(None).pid is None


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_a_pid_file_that_is_no_file_hangs_nobody(watch: Watch, mps: MpsStandIn, make: Callable[[Path], None]) -> None:
    mps.pipe_directory.mkdir()
    make(mps.pipe_directory / PID_FILE)
    before = len(os.listdir("/proc/self/fd"))
    source = watch()

    assert daemons(source)(None).pid is None
    source._pid_files_due = 0.0
    assert source.collect().problem is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pid_file_that_is_a_link_is_not_followed(watch: Watch, mps: MpsStandIn, tmp_path: Path) -> None:
    mps.start()
    file = mps.pipe_directory / PID_FILE
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")

    assert daemons(watch())(None).pid is None


def test_a_daemon_outlives_its_pid_file_and_its_death_is_told(watch: Watch, mps: MpsStandIn) -> None:
    mps.start()
    pid, file = mps.pid, mps.pipe_directory / PID_FILE
    told = daemons(source := watch(pid))
    told(pid)
    file.unlink()
    source._pid_files_due = 0.0
    assert looks(source, 3, DaemonProcess) == []

    os.kill(pid, signal.SIGKILL)

    def both() -> None:
        after.extend(source.collect().observations)
        assert any(isinstance(each, ProcessExit) and each.pid == pid for each in after)
        assert any(isinstance(each, DaemonProcess) and each.pid is None for each in after)

    after: list[Observation] = []
    eventually(both)


def test_one_that_is_missing_is_looked_for_several_times_a_second(mps: MpsStandIn) -> None:
    """There is much to be done for one that has come back."""
    clock = HandClock()
    source = Processes({"main": mps.pipe_directory}, proc=Path("/proc"), clock=clock, wait=0.0)
    source.collect()
    mps.start()
    clock.time += MISSING_SECONDS

    found = [each.pid for each in source.collect().observations if isinstance(each, DaemonProcess)]
    source.close()

    assert found == [mps.pid]


def test_a_daemon_started_anew_is_another(watch: Watch, mps: MpsStandIn) -> None:
    mps.start()
    told = daemons(watch())
    told(first := mps.pid)
    mps.kill()
    told(None)
    mps.start()

    assert told(mps.pid).pid != first
