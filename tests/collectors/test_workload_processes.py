"""Which processes show the end of a daemon's job or pod, and which name the job of a process."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.collectors.proc import Proc
from exporter.collectors.workload_processes import MOST_PROCESSES, NEW_SECONDS, SEARCH_SECONDS, WorkloadProcesses
from exporter.model.identity import WorkloadRole
from exporter.model.observation import DaemonProcess, ProcessReading
from exporter.parse.cgroup import parse_cgroup
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
        self.logs = root / "pods"
        self.trust()

    def trust(self, *namespaces: str) -> None:
        self.collector = WorkloadProcesses(Proc(self._root, self.clock), self.clock, self.logs, namespaces)

    def add(
        self,
        pid: int,
        name: str,
        cgroup: str,
        parent: int = 1,
        *,
        state: str = "S",
        title: str = "",
        uid: int = 0,
        users: str = "0 0 4294967295",
        directory: str = "/",
        groups: tuple[int, ...] = (),
        namespaces: str = "",
    ) -> None:
        """Add a process that started after all with a lower PID."""
        (self._root / str(pid)).mkdir()
        zeros = " ".join("0" * 17)
        (self._root / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} {zeros} {pid * 100} 0 0")
        (self._root / str(pid) / "comm").write_text(f"{name}\n")
        (self._root / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")
        (self._root / str(pid) / "status").write_text(
            f"Name:\t{name}\nUid:\t{uid}\t0\t0\t0\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"Groups:\t{''.join(f'{group} ' for group in groups)}\nNSpid:\t{pid}{namespaces}\n"
        )
        (self._root / str(pid) / "uid_map").write_text(f"{users}\n")
        (self._root / str(pid) / "cmdline").write_text(f"{title}\0\0\0")
        (self._root / str(pid) / "cwd").symlink_to(directory)
        (self._root / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (self._root / str(pid) / "task" / str(pid) / "children").touch()
        if (children := self._root / str(parent) / "task" / str(parent) / "children").exists():
            children.write_text(f"{children.read_text()}{pid} ")

    def end(self, pid: int) -> None:
        shutil.rmtree(self._root / str(pid))

    def found(self, cgroup: str, *, uid: int = 0, foreground: bool = False) -> list[tuple[int, WorkloadRole]]:
        daemon = DaemonProcess(
            uid=uid,
            foreground=foreground,
            at=1.0,
            daemon="x",
            pid=DAEMON,
            start_ticks=9000,
            cgroup=f"0::{cgroup}\n",
            job_source=self.title(cgroup, DAEMON),
        )
        found = self.collector.of(daemon)
        assert all(each.start_ticks == each.pid * 100 for each in found)
        return [(each.pid, each.role) for each in found]

    def title(self, cgroup: str, pid: int | None = None) -> str | None:
        return self.collector.job_source(f"0::{cgroup}\n", pid)

    def job(self, pid: int) -> tuple[str | None, str | None]:
        """Return the batch system and the job of a process."""
        cgroup = (self._root / str(pid) / "cgroup").read_text()
        member = parse_cgroup(cgroup, self.collector.job_source(cgroup, pid))
        return member.job_manager, member.job_id

    def may_know_more(self, cgroup: str, pid: int | None = None) -> bool:
        process = ProcessReading(at=1.0, pid=7, start_ticks=1, started=1.0, cgroup=f"0::{cgroup}\n")
        return self.collector.may_know_more(replace(process, job_source=self.title(cgroup, pid)))


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


SESSION = "/user.slice/user-1000.slice/session-2.scope"


@pytest.mark.parametrize("cgroup", ["/system.slice/pbs.service", f"/docker/{OWN}", SESSION, "/batch/1234"])
def test_finds_what_the_user_runs_in_the_same_unit_or_container(processes: Processes, cgroup: str) -> None:
    """If no job is known: the first processes of that user, and none of another user or cgroup."""
    processes.add(94, "pbs_mom", cgroup)
    processes.add(95, "bash", cgroup, 94, uid=1000)
    processes.add(96, "python3", cgroup, 95, uid=1000)
    processes.add(97, "bash", cgroup, 94, uid=1001)
    processes.add(98, "bash", f"{cgroup}/below", 94, uid=1000)
    processes.add(DAEMON, "nvidia-cuda-mps", cgroup, uid=1000)
    assert processes.found(cgroup, uid=1000) == [(95, TASK)]


@pytest.mark.parametrize(
    "cgroup", ["/system.slice/mps.service", f"/docker/{OWN}", "/nomad.slice/share.slice/x.mps.scope"]
)
def test_finds_nothing_for_the_main_process_of_a_unit_or_container(processes: Processes, cgroup: str) -> None:
    """Its end causes that of all others. A daemon with `-f` that a shell there started is no main process."""
    cgroup = cgroup.replace("/x.", "/6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11.")
    processes.add(DAEMON, "nvidia-cuda-mps", cgroup)
    processes.add(95, "bash", cgroup)
    assert processes.found(cgroup, foreground=True) == []
    assert processes.found(cgroup) == [(95, TASK)]
    processes.end(DAEMON)
    processes.add(DAEMON, "nvidia-cuda-mps", cgroup, 95)
    assert processes.found(cgroup, foreground=True) == [(95, TASK)]


@pytest.mark.parametrize("root", ["/", "/..", "/../.."])
def test_finds_nothing_in_the_root_cgroup(processes: Processes, root: str) -> None:
    """For a reader in a container, the root is outside its cgroup namespace."""
    processes.add(95, "bash", root)
    processes.add(DAEMON, "nvidia-cuda-mps", root)
    assert processes.found(root) == []


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


def hide(monkeypatch: pytest.MonkeyPatch, pid: int, file: str) -> None:
    """Let a file of a process be unreadable."""
    text = Proc.text

    def hidden(self: Proc, of: int, name: str, *more: int) -> str | None:
        return None if (of, name) == (pid, file) else text(self, of, name, *more)

    monkeypatch.setattr(Proc, "text", hidden)


def test_finds_nothing_while_a_process_cannot_be_read(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a free descriptor. The process could be one that remains of the job."""
    tasks = batch(processes)
    for file in ("cgroup", "stat"):
        processes.clock.time += SEARCH_SECONDS
        with monkeypatch.context() as patch:
            hide(patch, 31, file)
            assert processes.found(tasks) == []
    processes.clock.time += SEARCH_SECONDS
    assert processes.found(tasks) == [(31, TASK)]


def test_a_name_with_spaces_and_parentheses_hides_nothing(processes: Processes) -> None:
    assert processes.found(batch(processes, ") S 31 (")) == [(31, TASK)]


# -- numbers of Slurm jobs that have no number in the path -------------------------------------------------------------

SCOPE = "/system.slice/slurmstepd.scope"
SLUID, OTHER_SLUID = "sEKNKTV3WPV500", "sEKNKTV3WPV600"
TASKS, STEPD = f"{SCOPE}/{SLUID}/step_batch/user/task_0", f"{SCOPE}/{SLUID}/step_batch/slurm"
TITLE = "slurmstepd: [4711.batch]"
IN_CONTAINER = f"{POD}/{OWN}{SCOPE}"
LOGS = "training_worker-0_6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"


def test_reads_the_number_of_a_job_in_the_title_of_its_slurmstepd(processes: Processes) -> None:
    processes.add(29, "slurmstepd", STEPD.replace(SLUID, OTHER_SLUID), SLURMD, title="slurmstepd: [4712.batch]")
    processes.add(30, "slurmstepd", STEPD, SLURMD, title=TITLE)
    assert processes.title(TASKS) == TITLE
    assert processes.title(TASKS.replace("step_batch", "step_3")) == TITLE
    assert processes.title(TASKS.replace(SLUID, OTHER_SLUID)) == "slurmstepd: [4712.batch]"


@pytest.mark.parametrize("cgroup", ["/user.slice/session-2.scope", f"{JOB}/step_0/user/task_0", f"/docker/{OWN}", POD])
def test_searches_no_title_for_other_processes(
    processes: Processes, cgroup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proc, "pids", lambda _: pytest.fail("searched"))
    assert processes.title(cgroup) is None


@pytest.mark.parametrize(
    ("name", "cgroup", "more"),
    [
        ("slurmstepd", STEPD, {"uid": 1000}),
        ("slurmstepd", STEPD, {"users": "0 100000 65536"}),
        ("python3", STEPD, {}),
        ("slurmstepd", TASKS, {}),
        ("slurmstepd", f"{STEPD}/deeper", {}),
        ("slurmstepd", f"{TASKS}/{SLUID}/step_0/slurm", {}),
        ("slurmstepd", f"{TASKS}/slurm", {}),
        ("slurmstepd", f"/user.slice/user-1000.slice/user@1000.service{STEPD}", {}),
        ("slurmstepd", f"/docker/{OWN}{STEPD}", {}),
        ("slurmstepd", STEPD.replace(SLUID, OTHER_SLUID), {}),
        ("slurmstepd", STEPD.replace("step_batch/", ""), {}),
    ],
)
def test_a_workload_cannot_forge_the_number_of_its_job(
    processes: Processes, name: str, cgroup: str, more: dict[str, Any]
) -> None:
    """By another user or user namespace, by another program, or in a directory that it can create or enter."""
    processes.add(30, name, cgroup, SLURMD, title=TITLE, **more)
    assert processes.title(TASKS) == ""
    processes.add(31, "slurmstepd", STEPD, SLURMD, title="slurmstepd: [4713.batch]")
    processes.clock.time += SEARCH_SECONDS
    assert processes.title(TASKS) == "slurmstepd: [4713.batch]"


@pytest.mark.parametrize("file", ["cgroup", "status", "uid_map", "stat"])
def test_a_number_that_cannot_be_read_is_unknown_and_read_later(
    processes: Processes, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.add(30, "slurmstepd", STEPD, SLURMD, title=TITLE)
    with monkeypatch.context() as patch:
        hide(patch, 30, file)
        assert processes.title(TASKS) == ""
        assert processes.may_know_more(TASKS)
    assert processes.title(TASKS) == ""
    processes.clock.time += SEARCH_SECONDS
    assert processes.title(TASKS) == TITLE
    assert not processes.may_know_more(TASKS)


def test_a_number_that_is_known_stays_known_if_a_search_fails(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process before, and one after slurmstepd cannot be read."""
    processes.add(30, "slurmstepd", STEPD, SLURMD, title=TITLE)
    assert processes.title(TASKS) == TITLE
    for unreadable in (1, SLURMD, 30):
        processes.clock.time += SEARCH_SECONDS
        with monkeypatch.context() as patch:
            hide(patch, unreadable, "cgroup")
            assert processes.title(TASKS.replace(SLUID, OTHER_SLUID)) == ""
            assert processes.title(TASKS) == TITLE
    processes.clock.time += SEARCH_SECONDS
    processes.end(30)
    assert processes.title(TASKS.replace(SLUID, OTHER_SLUID)) == ""
    assert processes.title(TASKS) == "", "it is forgotten with its job"


@pytest.mark.parametrize("more", [{"uid": 1000}, {"users": "0 100000 65536"}, {"name": "python3"}])
def test_reads_nothing_in_the_memory_of_other_processes(
    processes: Processes, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc/PID/cmdline is in the memory of the process, which can make the reader wait without end."""
    cgroup = f"/user.slice/user-1000.slice/user@1000.service{STEPD}"
    processes.add(30, cgroup=cgroup, parent=SLURMD, title=TITLE, **{"name": "slurmstepd", **more})
    monkeypatch.setattr(Proc, "arguments", lambda *_: pytest.fail("read"))
    assert processes.title(TASKS) == ""


def test_a_pid_that_changes_hands_gives_no_number(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its title is read, another process gets the PID of slurmstepd."""
    processes.add(30, "slurmstepd", STEPD, SLURMD, title=TITLE)
    ticks = iter([3000, 3001])
    monkeypatch.setattr(Proc, "start_ticks", lambda self, pid: next(ticks))
    assert processes.title(TASKS) == ""


def test_a_process_that_leaves_the_directory_of_slurmstepd_gives_no_number(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of slurmstepd becomes a task, and chooses its title, while that is read."""
    processes.add(30, "slurmstepd", STEPD, SLURMD, title=TITLE)
    text, cgroups = Proc.text, iter([f"0::{STEPD}\n", f"0::{TASKS}\n"])
    monkeypatch.setattr(
        Proc,
        "text",
        lambda self, pid, name, *more: next(cgroups) if (pid, name) == (30, "cgroup") else text(self, pid, name, *more),
    )
    assert processes.title(TASKS) == ""


def test_a_job_that_is_younger_than_the_last_search_waits_only_briefly(processes: Processes) -> None:
    processes.title(TASKS.replace(SLUID, OTHER_SLUID))
    processes.add(30, "slurmstepd", STEPD, SLURMD, title=TITLE)
    assert processes.title(TASKS) == ""
    processes.clock.time += NEW_SECONDS
    assert processes.title(TASKS) == TITLE


def test_searches_once_for_all_processes_of_a_job(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    searches, pids = [], Proc.pids
    monkeypatch.setattr(Proc, "pids", lambda self: searches.append(1) or pids(self))
    for _ in range(3):
        processes.title(TASKS)
        processes.title(TASKS.replace(SLUID, OTHER_SLUID))
    assert len(searches) == 1
    processes.clock.time += NEW_SECONDS
    processes.title(TASKS)
    assert len(searches) == 1
    processes.title(TASKS.replace("500", "700"))
    processes.title(TASKS.replace("500", "701"))
    assert len(searches) == 2


@pytest.mark.parametrize("namespace", ["training", "other"])
def test_trusts_the_jobs_in_pods_of_the_named_namespaces(processes: Processes, namespace: str) -> None:
    (processes.logs / LOGS).mkdir(parents=True)
    processes.trust(namespace)
    by_number, by_sluid = f"{IN_CONTAINER}/job_42/step_0/user/task_0", f"{IN_CONTAINER}/{SLUID}/step_0/user/task_0"
    processes.add(30, "slurmstepd", f"{IN_CONTAINER}/{SLUID}/step_0/slurm", title="slurmstepd: [43.0]")
    trusted = namespace == "training"
    assert processes.title(by_number) == ("" if trusted else None)
    assert processes.title(by_sluid) == ("slurmstepd: [43.0]" if trusted else None)
    assert processes.title(f"{POD}/{OWN}") is None


def test_trusts_no_job_in_a_pod_of_an_unknown_namespace(processes: Processes) -> None:
    cgroup = f"{IN_CONTAINER}/job_42/step_0/user/task_0"
    processes.trust("training")
    assert processes.title(cgroup) is None
    assert processes.may_know_more(cgroup)
    (processes.logs / LOGS).mkdir(parents=True)
    assert processes.title(cgroup) == ""
    assert not processes.may_know_more(cgroup)


def test_finds_the_tasks_of_a_job_in_a_trusted_pod(processes: Processes) -> None:
    """And none of the other processes of the pod. All are in one container, which is not the daemon's own."""
    (processes.logs / LOGS).mkdir(parents=True)
    processes.trust("training")
    own = f"{IN_CONTAINER}/job_42/step_batch/user/task_0"
    processes.add(40, "pause", f"{POD}/{HOLDER}")
    processes.add(41, "slurmd", f"{POD}/{OWN}")
    processes.add(42, "slurmstepd", f"{IN_CONTAINER}/job_42/step_batch/slurm", 41)
    processes.add(43, "bash", own, 42)
    processes.add(44, "bash", own.replace("42", "43"), 42)
    processes.add(DAEMON, "nvidia-cuda-mps", own)
    assert processes.found(own) == [(43, TASK)]


def test_finds_the_tasks_of_a_job_beside_the_containers_of_a_pod(processes: Processes) -> None:
    own = f"/kubepods.slice/kubepods-pod{POD[-36:].replace('-', '_')}.slice{JOB}/step_0/user/task_0"
    processes.add(42, "slurmstepd", own.replace("user/task_0", "slurm"))
    processes.add(43, "bash", own, 42)
    processes.add(DAEMON, "nvidia-cuda-mps", own)
    assert processes.found(own) == [(43, TASK)]
