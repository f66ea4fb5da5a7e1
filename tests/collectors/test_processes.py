"""Properties and ends of processes."""

import contextlib
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from exporter.clock import Clock, SystemClock
from exporter.collectors import processes
from exporter.collectors.daemon_directory import DaemonDirectory
from exporter.collectors.daemon_processes import Identities
from exporter.collectors.pipe_dir import PID_FILE, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.processes import Processes, affordable_pidfds, wait_status
from exporter.collectors.thread import Reading
from exporter.collectors.workload_processes import WorkloadProcesses
from exporter.model.observation import DaemonProcess, Observation, ProcessExit, ProcessReading
from exporter.model.reason import joined
from exporter.parse.proc import is_environment_intact, is_exiting, stable_command
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.eventually import PATIENCE_SECONDS, eventually, until
from tests.standin.mps import MpsStandIn, wait_until
from tests.tools import not_here

# The tests state these values, so that they notice a change of the program's constants.
EXEC_SECONDS = 2.0
MAX_PIDFDS = 512
SEARCH_SECONDS = 30.0

Kind = TypeVar("Kind", bound=Observation)

LARGEST_PID = 2**22
CLIENT = 5_000_000


class Watcher:
    """The collectors of processes and of one pipe directory."""

    def __init__(self, pipe: Path, *, proc: Path, wait: float, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self.processes = Processes(proc=proc, clock=clock, wait=wait)
        self._directory = DaemonDirectory(on_host("node", pipe, pipe), Proc(proc, clock), clock, Identities())

    def collect(self) -> Reading:
        directory, processes = self._directory.collect(), self.processes.collect()
        problem = joined((directory.problem, processes.problem))
        return Reading((*directory.observations, *processes.observations), problem)


Watch = Callable[..., Watcher]


@pytest.fixture
def watch(mps: MpsStandIn) -> Iterator[Watch]:
    created: list[Watcher] = []

    def make(*pids: int, proc: Path = Path("/proc"), wait: float = 0.02) -> Watcher:
        created.append(Watcher(mps.pipe_directory, proc=proc, wait=wait))
        created[-1].processes.watch(frozenset(pids))
        return created[-1]

    yield make
    for each in created:
        each.processes.close()


def collect(collector: Processes | Watcher, kind: type[Kind]) -> list[Kind]:
    return [each for each in collector.collect().observations if isinstance(each, kind)]


def collect_soon(collector: Processes | Watcher, kind: type[Kind]) -> Kind:
    def first() -> Kind:
        found = collect(collector, kind)
        assert found
        return found[0]

    return eventually(first)


def start_ticks(pid: int) -> int:
    """Return field 22 of /proc/PID/stat."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def collect_often(collector: Processes | Watcher, times: int, kind: type[Kind]) -> list[Kind]:
    return [each for _ in range(times) for each in collect(collector, kind)]


class Titles(WorkloadProcesses):
    """Titles of slurmstepd, for any process."""

    title = ""

    def job_source(self, cgroup: str | None, pid: int | None = None) -> str | None:
        return self.title

    def may_know_more(self, reading: ProcessReading) -> bool:
        return reading.job_source == ""


@pytest.mark.parametrize("age", [0.0, 3600.0])
def test_reads_a_process_again_until_the_number_of_its_job_is_known(
    start: Starter, age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, clock = start().pid, HandClock(SystemClock().now() + age)
    titles = Titles(Proc(Path("/proc"), clock), clock)
    collector = Processes(proc=Path("/proc"), clock=clock, wait=0.0, workloads=titles)
    collector.watch(frozenset({pid}))
    assert [each.job_source for each in collect(collector, ProcessReading)] == [""]
    for _ in range(3):
        clock.time += SEARCH_SECONDS
        assert collect(collector, ProcessReading) == []
    titles.title = "slurmstepd: [4711.batch]"
    with monkeypatch.context() as unreadable:
        unreadable.setattr(Proc, "status", lambda *_: None)
        clock.time += SEARCH_SECONDS
        assert collect(collector, ProcessReading) == []
    clock.time += SEARCH_SECONDS
    assert [each.job_source for each in collect(collector, ProcessReading)] == [titles.title]
    titles.title = "slurmstepd: [4712.batch]"
    clock.time += 2 * SEARCH_SECONDS
    assert collect(collector, ProcessReading) == []
    collector.close()


# -- properties of a process----------------------------------------------------------------------------------------


def test_reports_a_process_once_with_all_properties(watch: Watch, start: Starter) -> None:
    pid = start().pid
    collector = watch(pid)

    (reading,) = collect(collector, ProcessReading)

    assert (reading.pid, reading.start_ticks) == (pid, start_ticks(pid))
    assert (reading.uid, reading.user) == (os.getuid(), pwd.getpwuid(os.getuid()).pw_name)
    assert reading.command == "sleep"
    assert reading.executable == os.readlink(f"/proc/{pid}/exe")
    assert reading.cgroup == Path(f"/proc/{pid}/cgroup").read_text()
    assert abs(reading.at - reading.started) < 3600
    assert collect_often(collector, 3, ProcessReading) == []


@pytest.mark.parametrize("step", [-3600, 1, 3600])
def test_the_start_of_a_process_does_not_move_if_the_wall_clock_is_set(
    step: int, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, pid = SystemClock(), start().pid
    before = Proc(Path("/proc"), clock).facts(pid)
    booted_at = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted_at + step)
    after = Proc(Path("/proc"), clock).facts(pid)
    assert before is not None
    assert after is not None
    assert after.started == pytest.approx(before.started, abs=0.1)
    assert abs(before.at - before.started) < PATIENCE_SECONDS


def test_reports_only_the_limits_of_a_clients_environment(watch: Watch, start: Starter) -> None:
    limits = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20G",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    secret = {"DATABASE_PASSWORD": "secret", "CUDA_MPS_PIPE_DIRECTORY": "/tmp"}
    pid = start(env={**os.environ, **limits, **secret}).pid
    wait_until(lambda: Path(f"/proc/{pid}/environ").read_bytes() != b"", "the end of execve")
    (reading,) = collect(watch(pid), ProcessReading)
    assert reading.environment == limits


@pytest.mark.parametrize(
    ("environ", "read"),
    [
        (b"", {}),
        (b"A=1\0B=2\0", {"A": "1"}),
        (b"A=1\0B=2", {"A": "1"}),
        (b"\0" * 40, None),
        (b"ray::worker(A=1)\0\0\0\0", None),
        (b"engine core\0A=1\0", None),
        (b" " * 99 + b"\0", None),
        (b"tgres: a=1" + b" " * 40 + b"\0", None),
        (b"PATH=/bin\0A=1\0\0", None),
    ],
)
def test_an_overwritten_environment_is_unknown(tmp_path: Path, environ: bytes, read: object) -> None:
    """Many inference servers overwrite it with setproctitle, which clears it. Perl fills it with spaces."""
    (tmp_path / "600").mkdir()
    (tmp_path / "600" / "environ").write_bytes(environ)
    (tmp_path / "600" / "cmdline").write_bytes(b"python3\0worker.py\0")
    assert Proc(tmp_path, SystemClock()).variables(600, ["A"]) == read


def test_a_process_can_be_started_without_an_environment() -> None:
    """As with `env -i`. It uses the default pipe directory."""
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as bare:
        try:
            eventually(lambda: _assert_readable(bare.pid))
        finally:
            bare.kill()


def _assert_readable(pid: int) -> None:
    """Fails in execve(2), which is not over when Popen returns."""
    assert Proc(Path("/proc"), SystemClock()).variables(pid, ["A"]) == {}


@pytest.mark.parametrize(
    ("cmdline", "environ", "intact"),
    [
        (b"python\0worker.py\0", b"A=1\0B=2\0", True),
        (b"worker\0", b"A=1\0B=2\0", True),
        (b"env\0A=1\0", b"A=1\0B=2\0", True),
        (b"", b"A=1\0B=2\0", True),
        (b"", b"", False),
        (b"step=5 lr=1\0", b"lr=1\0E=/usr\0A=1\0", False),
        (b"step=5 lr=1   ", b"lr=1   \0A=1\0", False),
        (b"x" * 4096, b"lr=1\0A=1\0", False),
    ],
)
def test_a_title_that_continues_in_the_environment_is_no_variable(cmdline: bytes, environ: bytes, intact: bool) -> None:
    """The kernel shows a title that is longer than the arguments to its end, at most a page (measured, Linux 6.18)."""
    assert is_environment_intact(environ, cmdline) is intact


@pytest.mark.parametrize(
    ("name", "cmdline", "program", "command"),
    [
        ("ray::IDLE", b"ray::IDLE" + bytes(90), "/usr/bin/python3.11", "python3.11 ray"),
        ("ray::train_step(lr=0.1)", b"ray::train_step(lr=0.1) [epoch=1]\0", "/usr/bin/python3.11", "python3.11 ray"),
        ("VLLM::EngineCor", b"VLLM::EngineCore_DP0" + bytes(9), "/opt/py/python3", "python3 VLLM"),
        ("worker-17", b"worker-17\0\0\0", "/usr/bin/python3.11", "python3.11 worker"),
        ("17", b"17\0\0\0", "/usr/bin/python3.11", "python3.11"),
        ("worker-17", b"worker-17\0", "/usr/bin/perl", "perl worker"),
        ("namd3", b"namd3\0", None, "namd3"),
        ("nginx: worker p", b"nginx: worker process\0", "/usr/sbin/nginx (deleted)", "nginx"),
        ("ray::IDLE", b"ray::IDLE\0\0", None, "ray"),
        ("::", b"::\0\0", None, "::"),
        ("Isaac Sim", b"/opt/Isaac Sim\0\0", "/opt/Isaac Sim", "Isaac Sim"),
        ("train.py", b"python3\0train.py\0", "/usr/bin/python3.11", "train.py"),
        ("pt_main_thread", b"python3\0train.py\0", "/usr/bin/python3.11", "pt_main_thread"),
        ("sleep", b"sleep\0", None, "sleep"),
    ],
)
def test_a_command_has_only_what_is_stable_of_a_title(
    name: str, cmdline: bytes, program: str | None, command: str
) -> None:
    assert stable_command(name, cmdline, program) == command


def test_the_path_of_a_removed_program_is_read_and_nothing_there_is_opened(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system may hang."""
    program, tried, stat = tmp_path / "train", list[str](), os.stat
    shutil.copy(Path("/bin/sh").resolve(), program)
    child = start([str(program), "-c", "read _"], stdin=subprocess.PIPE)
    program.unlink()
    monkeypatch.setattr(os, "stat", lambda path, **how: (tried.append(str(path)), stat(path, **how))[1])
    facts = Proc(Path("/proc"), SystemClock()).facts(child.pid)

    assert facts is not None
    assert facts.executable == str(program)
    assert not [path for path in tried if path.startswith(str(tmp_path))]


def test_a_process_with_a_title_has_one_command_and_an_unknown_environment() -> None:
    """Perl writes $0 over its arguments and its environment."""
    titles = '$0 = "ray::IDLE" . " " x 4000; print "\\n"; readline; $0 = "ray::train(lr=0.1)"; print "\\n"; readline'
    variables, proc, commands = {"CUDA_VISIBLE_DEVICES": "0"}, Proc(Path("/proc"), SystemClock()), set()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["/usr/bin/perl", "-e", f"$| = 1; {titles}"], env=variables, **pipes) as shown:
        assert shown.stdin is not None
        assert shown.stdout is not None
        for _ in range(2):
            shown.stdout.readline()
            reading = proc.facts(shown.pid)
            commands.add(None if reading is None else reading.command)
            assert proc.variables(shown.pid, variables) is None
            shown.stdin.write(b"\n")
            shown.stdin.flush()
    assert commands == {"perl ray"}


def test_an_unreadable_environment_is_unknown(watch: Watch, start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proc, "variables", lambda *_, **__: None)
    (reading,) = collect(watch(start().pid), ProcessReading)
    assert reading.environment is None


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
    collector = Processes(proc=Path("/proc"), clock=clock, wait=0.0)
    collector.watch(frozenset({pid}))
    (before,) = collect(collector, ProcessReading)

    execute()
    assert collect(collector, ProcessReading) == []
    clock.time += EXEC_SECONDS
    (after,) = collect(collector, ProcessReading)

    assert (after.command, after.environment) == ("sleep", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
    assert (after.pid, after.start_ticks, after.parent) == (pid, before.start_ticks, before.parent)
    clock.time += 10 * EXEC_SECONDS
    assert collect(collector, ProcessReading) == []
    collector.close()


def test_a_process_retains_the_parent_that_started_it() -> None:
    """After the end of that one, the kernel shows another parent."""
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with shell:
        pid, clock = int(shell.stdout.readline() if shell.stdout else ""), HandClock()
        collector = Processes(proc=Path("/proc"), clock=clock, wait=0.0)
        collector.watch(frozenset({pid}))
        wait_until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"), "the end of execve")
        (before,) = collect(collector, ProcessReading)
    assert before.parent is not None
    assert before.parent.pid == shell.pid
    clock.time += EXEC_SECONDS
    assert collect(collector, ProcessReading) == []
    collector.close()
    os.kill(pid, signal.SIGKILL)


def test_reports_the_exit_of_a_process_that_only_another_collector_has_identified(start: Starter) -> None:
    process = start()
    ticks = start_ticks(process.pid)
    process.kill()
    process.wait()
    collector = Processes(proc=Path("/proc"), clock=SystemClock(), wait=0.0)
    collector.watch(frozenset({process.pid}))
    assert collector.collect().observations == ()
    collector.close()

    collector = Processes(proc=Path("/proc"), clock=SystemClock(), wait=0.0)
    collector.watch(frozenset({process.pid}), started={process.pid: ticks})
    (exit_,) = collector.collect().observations
    assert isinstance(exit_, ProcessExit)
    assert (exit_.pid, exit_.start_ticks) == (process.pid, ticks)
    collector.close()


def test_reports_a_young_process_once_if_it_does_not_change(start: Starter) -> None:
    clock = HandClock()
    collector = Processes(proc=Path("/proc"), clock=clock, wait=0.0)
    collector.watch(frozenset({start().pid}))
    assert len(collect(collector, ProcessReading)) == 1
    clock.time += EXEC_SECONDS
    assert collect(collector, ProcessReading) == []
    collector.close()


def test_reports_neither_a_process_nor_an_exit_for_a_pid_that_does_not_exist(watch: Watch) -> None:
    collector = watch(LARGEST_PID - 1)

    assert collector.collect().problem is None
    assert collect_often(collector, 3, ProcessReading) == collect_often(collector, 3, ProcessExit) == []


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**40])
def test_ignores_a_number_that_is_not_a_pid(watch: Watch, start: Starter, pid: int) -> None:
    live = start().pid

    assert [each.pid for each in collect(watch(pid, live), ProcessReading)] == [live]


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
def test_reads_a_process_with_a_hostile_name(watch: Watch, start: Starter, name: bytes) -> None:
    """Its user is not root, whatever its name says, and whoever runs this test."""
    if os.getuid() == 0:
        uid, another_user = 65534, "os.setgroups([]); os.setgid(65534); os.setuid(65534)"
    else:
        uid, another_user = os.getuid(), "pass"
    program = f"open('/proc/self/comm', 'wb').write({name!r}); {another_user}; print(flush=True); time.sleep(600)"
    process = start([sys.executable, "-c", f"import os, time; {program}"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    collector = watch(process.pid)

    (reading,) = collect(collector, ProcessReading)
    assert (reading.start_ticks, reading.uid) == (start_ticks(process.pid), uid)
    assert reading.user != "root"

    process.kill()
    ended = collect_soon(collector, ProcessExit)
    assert (ended.pid, ended.start_ticks) == (process.pid, reading.start_ticks)


# -- exit of a process ---------------------------------------------------------------------------------------------


def test_an_exit_ends_the_wait_of_a_collection(watch: Watch, start: Starter) -> None:
    process = start()
    collector = watch(process.pid, wait=60)
    collector.collect()
    ticks = start_ticks(process.pid)
    collector.processes._recheck_due = float("inf")
    start(["sh", "-c", f"sleep 0.1; kill -9 {process.pid}"])

    (ended,) = collect(collector, ProcessExit)

    assert (ended.pid, ended.start_ticks) == (process.pid, ticks)
    assert process.poll() is None or process.returncode == -signal.SIGKILL
    assert collect_often(watch(), 2, ProcessExit) == []


def test_reports_an_exit_once(watch: Watch, start: Starter) -> None:
    process = start()
    collector = watch(process.pid)
    collector.collect()
    process.kill()

    collect_soon(collector, ProcessExit)
    process.wait()
    assert collect_often(collector, 3, ProcessExit) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, 9), (signal.SIGTERM, 15)])
def test_reports_the_wait_status_of_an_exit(watch: Watch, start: Starter, number: int, status: int) -> None:
    process = start()
    collector = watch(process.pid)
    collector.collect()
    process.send_signal(number)

    ended = collect_soon(collector, ProcessExit)

    assert ended.wait_status == status


def test_reports_simultaneous_exits_in_order_of_age(watch: Watch, start: Starter) -> None:
    """A daemon ends its server and clients. If they came first, they would seem to have ended by themselves."""
    old = start()
    young = start()
    while start_ticks(young.pid) == start_ticks(old.pid):
        young = start()
    collector = watch(young.pid)
    collector.collect()
    collector.processes.watch(frozenset({young.pid, old.pid}))
    collector.collect()
    for process in (old, young):
        process.kill()
        process.wait()

    exits = [each.pid for each in collect(collector, ProcessExit)]

    assert exits == [old.pid, young.pid]


def test_reports_an_ending_parent_before_its_child_which_the_kernel_ends_first(watch: Watch, start: Starter) -> None:
    """The first thread of the parent has exited, as if the process were ending. It ends 0.1 s after its child."""
    script = """
import ctypes, os, platform, subprocess, sys, threading, time
child = subprocess.Popen(["sleep", "1000"])
def end_after_child():
    child.wait()
    time.sleep(0.1)
    os._exit(0)
threading.Thread(target=end_after_child).start()
print(child.pid, flush=True)
sys.stdin.readline()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(platform.machine(), 93), 0)
"""
    parent = start([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    collector = watch(parent.pid, child, wait=60)
    collector.processes._recheck_due = float("inf")
    collector.processes._wait = 0.0
    assert len(collect(collector, ProcessReading)) == 2
    collector.processes._wait = 60.0
    parent.stdin.write(b"\n")
    parent.stdin.flush()
    wait_until(lambda: is_exiting(Path(f"/proc/{parent.pid}/stat").read_text()), "the end of the first thread")
    os.kill(child, signal.SIGKILL)

    exits = [each.pid for each in collect(collector, ProcessExit)]

    assert exits == [parent.pid, child]


@pytest.mark.parametrize(("states", "state"), [("ZD", "D"), ("ZZD", "D"), ("ZS", "Z"), ("SD", "S")])
def test_a_killed_process_sleeps_in_a_driver_as_its_remaining_thread_does(
    states: str, state: str, tmp_path: Path
) -> None:
    """The kernel shows the state of the first thread for the process."""
    paths = [tmp_path / "513", *(tmp_path / "513" / "task" / str(513 + number) for number in range(len(states)))]
    for path, letter in zip(paths, states[0] + states, strict=True):
        path.mkdir(parents=True)
        (path / "stat").write_text(f"513 (nvidia-cuda-mps) {letter} {'0 ' * 16}{len(states)} 0 77 {'0 ' * 30}")

    assert Proc(tmp_path, SystemClock()).standing(513) == (77, state, 0)


def test_reports_no_process_for_a_zombie(watch: Watch, start: Starter) -> None:
    process = start(["true"])

    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")

    assert collect(watch(process.pid), ProcessReading) == []


def test_detects_an_exit_without_a_pidfd(watch: Watch, start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    monkeypatch.setattr(processes, "RECHECK_SECONDS", 0.0)
    process = start()
    collector = watch(process.pid)
    assert collect(collector, ProcessReading)
    process.kill()

    collect_soon(collector, ProcessExit)


def test_detects_exits_beyond_the_pidfd_limit(mps: MpsStandIn, start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "RECHECK_SECONDS", 0.0)
    children = [start() for _ in range(5)]
    collector = Processes(proc=Path("/proc"), clock=SystemClock(), wait=0.02, max_pidfds=2)
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.closing(collector):
        collector.watch(frozenset(child.pid for child in children))
        assert len(collect(collector, ProcessReading)) == 5
        assert len(os.listdir("/proc/self/fd")) == before + 2
        for child in children:
            child.kill()
            child.wait()
        ended: set[int] = set()

        def all_ended() -> None:
            ended.update(each.pid for each in collect(collector, ProcessExit))
            assert ended == {child.pid for child in children}

        eventually(all_ended)


def test_uses_at_most_half_of_the_descriptors_for_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (8192, 8192))
    assert affordable_pidfds() == 4096
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert affordable_pidfds() == MAX_PIDFDS


def test_closes_the_pidfds_of_processes_that_are_not_watched_anymore(watch: Watch, start: Starter) -> None:
    children = [start() for _ in range(20)]
    collector = watch(*(child.pid for child in children))
    before = len(os.listdir("/proc/self/fd"))
    collector.collect()
    assert len(os.listdir("/proc/self/fd")) == before + 20

    collector.processes.watch(frozenset())
    collector.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    children[0].kill()
    assert collect_often(collector, 3, ProcessExit) == []


# -- the control daemon --------------------------------------------------------------------------------------------


def daemons(collector: Processes) -> Callable[[int | None], DaemonProcess]:
    def wait(pid: int | None) -> DaemonProcess:
        def check() -> DaemonProcess:
            latest.extend(each for each in collector.collect().observations if isinstance(each, DaemonProcess))
            assert latest
            assert latest[-1].pid == pid
            return latest[-1]

        return eventually(check)

    latest: list[DaemonProcess] = []
    return wait


def test_reports_the_daemon_of_a_pid_file_with_a_part_of_its_environment(watch: Watch, tmp_path: Path) -> None:
    variables = {"DATABASE_PASSWORD": "secret", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with MpsStandIn(tmp_path, variables=variables, gpus=("GPU-7", "GPU-8")) as mps:
        mps.start()
        (daemon,) = collect(watch(), DaemonProcess)

        assert (daemon.daemon, daemon.pid, daemon.uid) == ("node", mps.pid, os.getuid())
        assert daemon.start_ticks == start_ticks(mps.pid)
        assert daemon.environment == {"CUDA_VISIBLE_DEVICES": "GPU-7,GPU-8", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_reports_no_daemon_without_a_pid_file(watch: Watch) -> None:
    collector = watch()

    (daemon,) = collect(collector, DaemonProcess)

    assert daemon.pid is None
    assert collect_often(collector, 3, DaemonProcess) == []


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "1", "99999999999999999999", "12 34", "²", "\0"])
def test_reports_no_daemon_for_an_invalid_pid_file(watch: Watch, mps: MpsStandIn, text: str) -> None:
    mps.pipe_directory.mkdir()
    (mps.pipe_directory / PID_FILE).write_text(text)

    assert daemons(watch())(None).pid is None


def test_reports_no_daemon_for_the_pid_of_another_process(watch: Watch, mps: MpsStandIn, start: Starter) -> None:
    mps.pipe_directory.mkdir()
    (mps.pipe_directory / PID_FILE).write_text(str(start().pid))

    assert daemons(watch())(None).pid is None


def test_reports_no_daemon_for_the_pid_of_a_server(watch: Watch, mps: MpsStandIn) -> None:
    mps.start()
    mps.connect_and_wait(CLIENT)
    server = mps.server_pid
    (mps.pipe_directory / PID_FILE).write_text(str(server))

    assert daemons(watch())(None).pid is None


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_an_irregular_pid_file_does_not_hang_the_collector(
    watch: Watch, mps: MpsStandIn, make: Callable[[Path], None]
) -> None:
    mps.pipe_directory.mkdir()
    make(mps.pipe_directory / PID_FILE)
    collector = watch()
    before = len(os.listdir("/proc/self/fd"))

    assert daemons(collector)(None).pid is None
    assert collector.collect().problem is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_does_not_follow_a_link_at_the_pid_file(watch: Watch, mps: MpsStandIn, tmp_path: Path) -> None:
    mps.start()
    file = mps.pipe_directory / PID_FILE
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")

    assert daemons(watch())(None).pid is None


def test_reports_the_exit_of_a_daemon_without_its_pid_file(watch: Watch, mps: MpsStandIn) -> None:
    mps.start()
    pid, file = mps.pid, mps.pipe_directory / PID_FILE
    wait_for_daemon = daemons(collector := watch(pid))
    wait_for_daemon(pid)
    file.unlink()
    assert {each.pid for each in collect_often(collector, 3, DaemonProcess)} <= {pid}

    os.kill(pid, signal.SIGKILL)

    def both() -> None:
        after.extend(collector.collect().observations)
        assert any(isinstance(each, ProcessExit) and each.pid == pid for each in after)
        assert any(isinstance(each, DaemonProcess) and each.pid is None for each in after)

    after: list[Observation] = []
    eventually(both)


def test_reports_a_restarted_daemon_as_another_process(watch: Watch, mps: MpsStandIn) -> None:
    mps.start()
    wait_for_daemon = daemons(watch())
    wait_for_daemon(first := mps.pid)
    mps.kill()
    wait_for_daemon(None)
    mps.start()

    assert wait_for_daemon(mps.pid).pid != first


# -- Exit status of real processes -----------------------------------------------------------------------------------


UNPRIVILEGED_UID = 65534
PROC = Proc(Path("/proc"), SystemClock())
ENDS = {"exit 0": 0, "exit 7": 7 << 8, "kill -9 $$": 9, "kill -SEGV $$": 11, "kill -TERM $$": 15}

every_exit_status = pytest.mark.parametrize(("end", "status"), ENDS.items())

EndProcess = Callable[[str], tuple["subprocess.Popen[bytes]", int, int]]


@pytest.fixture
def end_process(start: Starter) -> Iterator[EndProcess]:
    descriptors: list[int] = []

    def end(command: str) -> tuple["subprocess.Popen[bytes]", int, int]:
        process = start(["sh", "-c", f"read go; ulimit -c 0; {command}"], stdin=subprocess.PIPE)
        ticks = PROC.start_ticks(process.pid)
        assert ticks is not None
        descriptors.append(os.pidfd_open(process.pid))
        assert process.stdin is not None
        process.stdin.close()
        eventually(lambda: _assert_ended(process.pid))
        return process, ticks, descriptors[-1]

    yield end
    for descriptor in descriptors:
        os.close(descriptor)


def _assert_ended(pid: int) -> None:
    assert PROC.start_ticks(pid) is None


def _require_status_of_reaped_process(end_process: EndProcess) -> None:
    process, ticks, pidfd = end_process("exit 7")
    process.wait()
    if wait_status(PROC, process.pid, ticks, pidfd) is None:
        not_here("only Linux 6.15 and later report the exit status through a pidfd")


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Run as an unprivileged user, who may not trace the processes of others."""
    user = os.geteuid()
    if user != 0:
        not_here("only root can change its user")
    os.seteuid(UNPRIVILEGED_UID)
    try:
        yield
    finally:
        os.seteuid(user)


@every_exit_status
def test_reads_the_exit_status_of_a_zombie(end_process: EndProcess, end: str, status: int) -> None:
    process, ticks, pidfd = end_process(end)

    assert wait_status(PROC, process.pid, ticks, pidfd) == status
    assert wait_status(PROC, process.pid, ticks, None) == status


@every_exit_status
def test_reads_the_exit_status_of_a_reaped_process_through_its_pidfd(
    end_process: EndProcess, end: str, status: int
) -> None:
    _require_status_of_reaped_process(end_process)
    process, ticks, pidfd = end_process(end)
    process.wait()

    assert wait_status(PROC, process.pid, ticks, pidfd) == status
    assert wait_status(PROC, process.pid, ticks, None) is None


@every_exit_status
def test_reads_the_exit_status_without_ptrace_rights_only_after_the_reaping(
    end_process: EndProcess, end: str, status: int
) -> None:
    """Before, the kernel reports 0 even for a killed process, so that this value must not be used."""
    _require_status_of_reaped_process(end_process)
    process, ticks, pidfd = end_process(end)

    with as_unprivileged_user():
        assert wait_status(PROC, process.pid, ticks, pidfd) is None
    process.wait()
    with as_unprivileged_user():
        assert wait_status(PROC, process.pid, ticks, pidfd) == status


def test_asks_the_pidfd_again_if_the_process_is_reaped_in_between(end_process: EndProcess) -> None:
    _require_status_of_reaped_process(end_process)
    process, ticks, pidfd = end_process("exit 7")

    class ReapingProc(Proc):
        """A /proc from which the process disappears before it is read."""

        def wait_status(self, pid: int, start_ticks: int) -> int | None:
            process.wait()
            return super().wait_status(pid, start_ticks)

    assert wait_status(ReapingProc(Path("/proc"), SystemClock()), process.pid, ticks, pidfd) == 7 << 8


def test_a_running_process_has_no_exit_status(start: Starter) -> None:
    process = start()
    ticks = PROC.start_ticks(process.pid)
    assert ticks is not None
    pidfd = os.pidfd_open(process.pid)

    assert wait_status(PROC, process.pid, ticks, pidfd) is None
    os.close(pidfd)


def test_ignores_the_exit_status_of_another_process_with_the_same_pid(end_process: EndProcess) -> None:
    process, ticks, _ = end_process("exit 7")

    assert wait_status(PROC, process.pid, ticks + 1, None) is None


def test_reads_the_status_of_a_zombie_from_proc_on_an_older_kernel(
    end_process: EndProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr("exporter.collectors.processes.fcntl.ioctl", refuse)
    process, ticks, pidfd = end_process("exit 7")

    assert wait_status(PROC, process.pid, ticks, pidfd) == 7 << 8
    process.wait()
    assert wait_status(PROC, process.pid, ticks, pidfd) is None
