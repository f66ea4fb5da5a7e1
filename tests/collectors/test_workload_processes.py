"""Which processes show the end of a daemon's Slurm job or pod."""

from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.collectors.proc import Proc
from exporter.collectors.processes import MOST_PROCESSES, SEARCH_SECONDS, WorkloadProcesses
from exporter.model.identity import WorkloadRole
from exporter.model.observation import DaemonProcess
from tests.clocks import HandClock

JOB = "/system.slice/slurmstepd.scope/job_4711"
POD = "/kubepods/burstable/pod6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"
DAEMON, SERVER, SLURMD = 90, 91, 5
OWN, OTHER, HOLDER = (letter * 64 for letter in "abc")
TASK, CONTAINER, SANDBOX = WorkloadRole.TASK, WorkloadRole.CONTAINER, WorkloadRole.SANDBOX


class Processes:
    """A /proc with processes in cgroups."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.clock = HandClock()
        self.collector = WorkloadProcesses(Proc(root, self.clock), self.clock)

    def add(self, pid: int, name: str, cgroup: str, parent: int = 1, *, state: str = "S") -> None:
        """Add a process that started after all with a lower PID."""
        (self._root / str(pid)).mkdir()
        zeros = " ".join("0" * 17)
        (self._root / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} {zeros} {pid * 100} 0 0")
        (self._root / str(pid) / "comm").write_text(f"{name}\n")
        (self._root / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")

    def end(self, pid: int) -> None:
        for each in (self._root / str(pid)).iterdir():
            each.unlink()
        (self._root / str(pid)).rmdir()

    def found(self, cgroup: str) -> list[tuple[int, WorkloadRole]]:
        daemon = DaemonProcess(at=1.0, daemon="x", pid=DAEMON, start_ticks=9000, cgroup=f"0::{cgroup}\n")
        found = self.collector.of(daemon)
        assert all(each.start_ticks == each.pid * 100 for each in found)
        return [(each.pid, each.role) for each in found]


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    """The processes of a node, of which some belong to nothing."""
    node = Processes(tmp_path)
    node.add(1, "systemd", "/init.scope", 0)
    node.add(SLURMD, "slurmd", "/system.slice/slurmd.service")
    node.add(6, "bash", "/user.slice/user-1001.slice/session-2.scope")
    return node


def batch(node: Processes, name: str = "bash") -> str:
    """Add a batch job with a daemon, its server and a client. Return the cgroup of its tasks."""
    tasks = f"{JOB}/step_batch/user/task_0"
    node.add(20, "slurmstepd", f"{JOB}/step_extern/slurm", SLURMD)
    node.add(21, "sleep", f"{JOB}/step_extern/user/task_special", 20)
    node.add(30, "slurmstepd", f"{JOB}/step_batch/slurm", SLURMD)
    node.add(31, name, tasks, 30)
    node.add(DAEMON, "nvidia-cuda-mps", tasks)
    node.add(SERVER, "nvidia-cuda-mps", tasks, DAEMON)
    node.add(92, "python3", tasks, 31)
    return tasks


def test_finds_the_script_of_a_batch_job(processes: Processes) -> None:
    """And nothing that the script started, of Slurm, of MPS, or of another step or job."""
    tasks = batch(processes)
    processes.add(93, "bash", tasks.replace("4711", "4712"), 30)
    processes.add(94, "bash", tasks.replace("step_batch", "step_0"), 30)
    assert processes.found(tasks) == [(31, TASK)]


def test_finds_the_tasks_of_other_steps_if_the_daemon_has_its_own(processes: Processes) -> None:
    batch(processes)
    processes.end(DAEMON)
    processes.add(80, "slurmstepd", f"{JOB}/step_0/slurm", SLURMD)
    own = f"{JOB}/step_0/user/task_0"
    processes.add(DAEMON, "nvidia-cuda-mps", own, 80)
    assert processes.found(own) == [(31, TASK)]


def test_finds_the_containers_and_the_sandbox_of_a_pod(processes: Processes) -> None:
    own = f"{POD}/{OWN}"
    processes.add(40, "pause", f"{POD}/{HOLDER}")
    processes.add(41, "tritonserver", own)
    processes.add(42, "sidecar", f"{POD}/{OTHER}")
    processes.add(43, "child", f"{POD}/{OTHER}", 42)
    processes.add(44, "pause", POD.replace("6f9a", "7f9a") + f"/{HOLDER}")
    processes.add(DAEMON, "nvidia-cuda-mps", own, 41)
    assert processes.found(own) == [(40, SANDBOX), (41, CONTAINER), (42, TASK)]


@pytest.mark.parametrize("cgroup", ["/system.slice/mps.service", f"/docker/{OWN}", "/user.slice/session-2.scope"])
def test_finds_nothing_for_units_and_containers(processes: Processes, cgroup: str) -> None:
    """The end of a container or a unit can be caused by the daemon."""
    processes.add(DAEMON, "nvidia-cuda-mps", cgroup)
    processes.add(95, "bash", cgroup)
    assert processes.found(cgroup) == []


def test_searches_again_after_a_while(processes: Processes) -> None:
    tasks = batch(processes)
    assert processes.found(tasks) == [(31, TASK)]
    processes.add(95, "bash", tasks, 30)
    assert processes.found(tasks) == [(31, TASK)]
    processes.clock.time += SEARCH_SECONDS
    assert processes.found(tasks) == [(31, TASK), (95, TASK)]


def test_a_job_of_many_processes_takes_no_more_than_its_share(processes: Processes) -> None:
    tasks = batch(processes)
    for pid in range(100, 200):
        processes.add(pid, "python3", tasks, 30)
    assert processes.found(tasks) == [(31, TASK), *((pid, TASK) for pid in range(100, 99 + MOST_PROCESSES))]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda node: node.end(31),
        lambda node: (node.end(31), node.add(31, "bash", f"{JOB}/step_batch/user/task_0", 30, state="Z")),
    ],
)
def test_a_process_that_has_ended_is_not_found(processes: Processes, spoil: Callable[[Processes], object]) -> None:
    tasks = batch(processes)
    spoil(processes)
    assert (31, TASK) not in processes.found(tasks)


def test_finds_nothing_while_a_process_cannot_be_read(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a free descriptor. The process could be one that remains of the job."""
    tasks, text = batch(processes), Proc.text
    for file in ("cgroup", "stat"):
        processes.clock.time += SEARCH_SECONDS
        monkeypatch.setattr(
            Proc,
            "text",
            lambda self, pid, name, file=file: None if (pid, name) == (31, file) else text(self, pid, name),
        )
        assert processes.found(tasks) == []
    monkeypatch.undo()
    processes.clock.time += SEARCH_SECONDS
    assert processes.found(tasks) == [(31, TASK)]


def test_a_name_with_spaces_and_parentheses_hides_nothing(processes: Processes) -> None:
    assert processes.found(batch(processes, ") S 31 (")) == [(31, TASK)]
