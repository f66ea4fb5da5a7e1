"""A daemon that ends with its job or pod, or after a quit, is stopped. In all other cases, its end is a loss."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from exporter.model.daemon import DaemonState, LossReason, StopReason
from exporter.model.event import EventName
from exporter.model.identity import WorkloadProcess, WorkloadRole
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, KernelRecord, Observation, ProcessExit, UnitState
from exporter.report.findings import findings
from exporter.report.problems import DaemonProblem
from exporter.state import lifecycle, poll_schedule
from exporter.state.lifecycle import BESIDE_SECONDS, GRACE_SECONDS, SANDBOX_SECONDS
from exporter.state.poll_schedule import processes_wanted
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    POD,
    SERVER,
    UNIT,
    Reduced,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
    failure,
    look,
    node,
    process,
    reduced,
    reply,
    servers,
    unit_state,
)

SCRIPT, SIDECAR, PAUSE, OUTSIDER = 4000, 4001, 4002, 4003
END = AT + 100
JOB = "0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0\n"
OTHER_JOB = JOB.replace("4711", "4712")
IN_POD = f"0::/kubepods/burstable/pod{POD}/{'a' * 64}\n"
SIGHUP, SIGINT, SIGTERM, SIGKILL, SIGSEGV, SUCCESS, FAILURE = 1, 2, 15, 9, 11, 0, 1 << 8
TASK, CONTAINER, SANDBOX = WorkloadRole.TASK, WorkloadRole.CONTAINER, WorkloadRole.SANDBOX


def ends(pid: int, status: int | None = SIGKILL, *, after: float = 0.0) -> ProcessExit:
    """A process ends some seconds after the end of the daemon."""
    return ProcessExit(at=END + after, pid=pid, start_ticks=pid * 100, wait_status=status)


def running(
    *roles: tuple[int, WorkloadRole],
    cgroup: str = JOB,
    of: str | None = None,
    connected: tuple[int, ...] = (),
    expected: bool = False,
    **more: Any,
) -> Reduced:
    """Return a node with a daemon in this cgroup, with these other processes, and with clients of the cgroup `of`."""
    related = tuple(WorkloadProcess(pid=pid, start_ticks=pid * 100, role=role) for pid, role in roles)
    daemon = replace(daemon_process(), user="alice", cgroup=cgroup, peers=related, **more)
    title = daemon.job_source
    return reduced(
        daemon,
        *(process(pid, cgroup=cgroup, job_source=title) for pid, _ in roles),
        *(process(pid, cgroup=of or cgroup, job_source=title) for pid in connected),
        *at_work(*connected),
        start=node(expected=expected),
    )


def after(start: Reduced, *ended: Observation, until: float = 10.0) -> tuple[DaemonState | None, tuple[Any, ...]]:
    """Return the daemon's state, and the reason of each stop and loss, some seconds after its end."""
    seen = sorted(ended, key=lambda each: each.at)
    moments = (look("control", at=END + seconds) for seconds in (0.1, 0.3, 0.6, *range(1, round(until))))
    found = reduced(*sorted((*seen, *moments), key=lambda each: each.at), start=start.node)
    told = (EventName.DAEMON_STOPPED, EventName.DAEMON_LOST)
    return found.daemon.state, tuple(each.reason for each in found.events if each.event in told)


STOPPED = (DaemonState.STOPPED, (StopReason.WORKLOAD_ENDED,))
LOST = (DaemonState.DOWN, (LossReason.DIED,))
BATCH = running((SCRIPT, TASK), connected=(CLIENT,))


def test_a_daemon_that_is_killed_beside_the_script_of_its_job_is_stopped(subtests: pytest.Subtests) -> None:
    """As by scancel, a time limit and preemption, which end processes in any order."""
    for signal, after_daemon in product([SIGTERM, SIGKILL], [-0.05, 0.0, 0.05]):
        with subtests.test(signal=signal, after_daemon=after_daemon):
            ended = (ends(CONTROL, signal), ends(SCRIPT, signal, after=after_daemon), ends(CLIENT, signal, after=0.06))
            assert after(BATCH, *ended) == STOPPED
            assert after(BATCH, ends(CONTROL, None), ends(SCRIPT, signal, after=after_daemon)) == STOPPED


@pytest.mark.parametrize("status", [SUCCESS, FAILURE, SIGKILL, None])
def test_a_daemon_that_is_left_by_the_script_of_its_job_is_stopped(status: int | None) -> None:
    """A slurmstepd ends what is left in its step, at once or after a while."""
    assert after(BATCH, ends(SCRIPT, status, after=-2.0), ends(CONTROL)) == STOPPED
    without_clients = running((SCRIPT, TASK))
    assert after(without_clients, ends(SCRIPT, status, after=-0.01), ends(CONTROL)) == STOPPED


BY_SLUID = JOB.replace("job_4711", "sEKNKTV3WPV500")
IN_PODS = "0::/kubepods.slice/kubepods-pod{}.slice{}{}".format(POD.replace("-", "_"), "{}", JOB.removeprefix("0::"))


@pytest.mark.parametrize(
    ("cgroup", "title"),
    [
        (BY_SLUID, "slurmstepd: [4711.batch]"),
        (BY_SLUID, ""),
        (IN_PODS.format(f"/cri-containerd-{'a' * 64}.scope"), ""),
        (IN_PODS.format(""), None),
    ],
)
def test_a_daemon_ends_with_its_job_in_all_layouts(cgroup: str, title: str | None) -> None:
    """Slurm 26.05 names jobs by SLUIDs. slurmd can run in a pod, which goes on."""
    job = running((SCRIPT, TASK), connected=(CLIENT,), cgroup=cgroup, job_source=title)
    assert after(job, ends(CONTROL), ends(SCRIPT, after=0.01)) == STOPPED
    assert after(job, ends(SCRIPT, SUCCESS, after=-2.0), ends(CONTROL)) == STOPPED
    assert after(job, ends(SCRIPT, SUCCESS, after=-2.0), ends(CONTROL, None)) == STOPPED
    assert after(job, ends(CONTROL)) == LOST


def test_a_job_with_a_number_that_was_read_late_is_one_job() -> None:
    """The daemon's number is known, and that of its client is not."""
    job = running((SCRIPT, TASK), cgroup=BY_SLUID, job_source="slurmstepd: [4711.batch]")
    late = reduced(process(CLIENT, cgroup=BY_SLUID), *at_work(CLIENT), start=job.node)
    assert after(late, ends(CONTROL), ends(SCRIPT, after=0.01)) == STOPPED


def test_a_daemon_that_ends_alone_is_lost(subtests: pytest.Subtests) -> None:
    for status in [SIGTERM, SIGKILL, SIGSEGV, SUCCESS, None]:
        with subtests.test(status=status):
            assert after(BATCH, ends(CONTROL, status)) == LOST


def test_a_script_that_ends_because_of_its_daemon_does_not_hide_the_loss(subtests: pytest.Subtests) -> None:
    """Its client gets error 806. A shell returns the signal of its last program as a code. The order is unsure."""
    for status, seconds in product([SUCCESS, FAILURE, 137 << 8, 143 << 8, None], [-0.01, 0.001, 0.05, 2.0]):
        with subtests.test(status=status, seconds=seconds):
            ended = (ends(CONTROL), ends(CLIENT, FAILURE, after=0.001), ends(SCRIPT, status, after=seconds))
            assert after(BATCH, *ended) == LOST


def test_a_job_that_is_killed_after_its_daemon_died_does_not_hide_the_loss() -> None:
    """As by `srun --kill-on-bad-exit`, after a client failed because of the daemon."""
    assert after(BATCH, ends(CONTROL), ends(SCRIPT, after=BESIDE_SECONDS + 0.1)) == LOST


def test_a_script_that_waits_for_a_daemon_in_the_foreground_does_not_hide_the_loss() -> None:
    waits = running((SCRIPT, TASK), foreground=True)
    assert after(waits, ends(CONTROL), ends(SCRIPT, FAILURE, after=0.001)) == LOST
    assert after(waits, ends(SCRIPT), ends(CONTROL)) == STOPPED


@pytest.mark.parametrize("status", [SIGSEGV, 6, SUCCESS, FAILURE])
def test_a_daemon_that_ends_by_itself_is_lost_even_if_its_job_ends(status: int) -> None:
    assert after(BATCH, ends(SCRIPT), ends(CONTROL, status)) == LOST


def test_a_daemon_that_is_killed_for_lack_of_memory_is_lost() -> None:
    record = f"3,1,2,-;Out of memory: Killed process {CONTROL} (nvidia-cuda-mps) total-vm:1kB, anon-rss:1kB"
    assert after(BATCH, KernelRecord(at=END - 0.01, record=record), ends(CONTROL), ends(SCRIPT)) == LOST


def test_a_daemon_that_the_kernel_kills_with_all_of_its_job_is_stopped() -> None:
    """As with memory.oom.group."""

    def killed(pid: int, after: float = -0.01) -> KernelRecord:
        record = f"3,1,2,-;Memory cgroup out of memory: Killed process {pid} (x) total-vm:1kB, anon-rss:1kB"
        return KernelRecord(at=END + after, record=record)

    ended = (ends(CONTROL), ends(CLIENT, after=0.01), ends(SCRIPT, after=0.02))
    assert after(BATCH, killed(CONTROL), killed(CLIENT), killed(SCRIPT), *ended) == STOPPED
    assert after(BATCH, killed(CONTROL), killed(CLIENT), *ended) == LOST
    earlier = (killed(SCRIPT, -5.0), ends(SCRIPT, after=-5.0))
    assert after(BATCH, *earlier, killed(CONTROL), ends(CONTROL), ends(CLIENT, FAILURE, after=0.1)) == LOST
    assert after(BATCH, killed(CLIENT), ends(CLIENT, after=-1.0), ends(CONTROL), ends(SCRIPT, after=0.02)) == STOPPED


def test_the_end_of_one_of_several_tasks_is_not_the_end_of_the_job() -> None:
    two = running((SCRIPT, TASK), (SIDECAR, TASK))
    assert after(two, ends(SCRIPT, SUCCESS, after=-5.0), ends(CONTROL)) == LOST
    assert after(two, ends(SCRIPT, SUCCESS, after=-5.0), ends(SIDECAR), ends(CONTROL)) == STOPPED


def test_a_daemon_that_served_another_job_is_lost() -> None:
    serves_others = running((SCRIPT, TASK), connected=(CLIENT,), of=OTHER_JOB)
    assert after(serves_others, ends(CONTROL), ends(SCRIPT)) == LOST


def test_a_daemon_with_unknown_clients_is_lost() -> None:
    daemon = replace(
        daemon_process(), cgroup=JOB, peers=(WorkloadProcess(pid=SCRIPT, start_ticks=SCRIPT * 100, role=TASK),)
    )
    start = reduced(daemon, process(SCRIPT, cgroup=JOB), start=node(expected=False))
    assert after(start, ends(CONTROL), ends(SCRIPT)) == LOST
    unread = reduced(servers(SERVER), clients(CLIENT), start=start.node)
    assert after(unread, ends(CONTROL), ends(SCRIPT)) == LOST


def test_an_expected_daemon_is_lost_with_its_job() -> None:
    expected = running((SCRIPT, TASK), expected=True)
    assert after(expected, ends(CONTROL), ends(SCRIPT)) == LOST
    assert SCRIPT not in processes_wanted(expected.node)
    assert SCRIPT in processes_wanted(BATCH.node)


def test_another_process_with_the_same_pid_shows_nothing() -> None:
    assert after(BATCH, ends(CONTROL), replace(ends(SCRIPT), start_ticks=1)) == LOST


def test_another_users_process_cannot_hide_the_end_of_a_daemon() -> None:
    """Only processes that the collector found in the daemon's own job or pod count."""
    other = reduced(process(OUTSIDER, cgroup=OTHER_JOB, user="mallory"), start=BATCH.node)
    assert after(other, ends(OUTSIDER, after=-0.01), ends(CONTROL)) == LOST


# -- batch systems, sessions and containers ----------------------------------------------------------------------------

JOBS = {
    "slurm": JOB,
    "openpbs": "4:cpuset:/pbs_jobs.service/jobid/4711.pbs01\n1:name=systemd:/pbs_jobs.service/jobid/4711.pbs01\n",
    "pbs pro": "0::/pbs_jobs.service/jobs/4711.pbs01\n",
    "condor": "0::/system.slice/htcondor/_var_lib_condor_execute_slot1_1@n1.example.org/x.scope\n",
    "condor v1": "9:memory:/htcondor/condor_var_lib_condor_execute_slot1_1@n1\n",
    "lsf": "9:memory:/lsf/c1/job.4711.23456.1700000000\n",
    "grid engine": "0::/system.slice/sge-4711.1.scope\n",
    "nomad": "0::/nomad.slice/share.slice/6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11.train.scope\n",
    "pod": IN_POD,
}
"""In each, the daemon ends with the job, whether or not the job is known."""
NO_JOBS = {
    "pbs without hook": "0::/system.slice/pbs.service\n",
    "session": "0::/user.slice/user-1000.slice/session-4.scope\n",
    "transient unit": "0::/system.slice/run-u123.service\n",
    "jupyterhub": "0::/system.slice/jupyterhub.service\n",
    "container": f"0::/system.slice/docker-{'a' * 64}.scope\n",
}
EVERY = {**JOBS, **NO_JOBS}
RANK = 601


@pytest.mark.parametrize("cgroup", EVERY.values(), ids=EVERY)
def test_a_daemon_that_is_killed_with_its_job_is_stopped(cgroup: str, subtests: pytest.Subtests) -> None:
    """SIGKILL ends all processes at once, in any order. A process that uses a GPU ends late."""
    job = running((SCRIPT, TASK), cgroup=cgroup, connected=(CLIENT, RANK))
    idle = running((SCRIPT, TASK), cgroup=cgroup)
    single = running((CLIENT, TASK), cgroup=cgroup, connected=(CLIENT,))
    for signal, first in [(SIGKILL, -0.02), (SIGKILL, 0.02), (SIGTERM, -0.02), (SIGHUP, 0.02), (SIGINT, 0.0)]:
        with subtests.test(signal=signal, first=first):
            script, rank = ends(SCRIPT, signal, after=first), ends(CLIENT, signal, after=-first)
            assert after(job, script, rank, ends(RANK, signal, after=3.0), ends(CONTROL, signal)) == STOPPED
            assert after(single, ends(CONTROL, signal), rank) == STOPPED
            assert after(idle, ends(CONTROL, signal), script) == STOPPED


@pytest.mark.parametrize("cgroup", EVERY.values(), ids=EVERY)
def test_a_daemon_that_ends_at_the_first_signal_to_its_job_is_stopped(cgroup: str) -> None:
    """Some processes catch SIGTERM or SIGINT, and SIGKILL ends them later. The daemon may not get the first signal."""
    job = running((SCRIPT, TASK), cgroup=cgroup, connected=(CLIENT, RANK))
    for signal in [SIGTERM, SIGINT]:
        killed = (ends(CLIENT, after=4.0), ends(RANK, after=4.0), ends(SCRIPT, after=4.0))
        assert after(job, ends(CONTROL, signal), *killed) == STOPPED
        late = (ends(CLIENT, signal, after=0.01), ends(RANK, after=25.0), ends(SCRIPT, SUCCESS, after=25.0))
        assert after(job, ends(CONTROL, signal), *late, until=30.0) == STOPPED
        idle = running((SCRIPT, TASK), cgroup=cgroup)
        assert after(idle, ends(CONTROL, signal), ends(SCRIPT, after=4.0)) == STOPPED
        assert after(idle, ends(SCRIPT, signal, after=-10.0), ends(CONTROL)) == STOPPED


def test_a_client_that_ends_with_success_did_not_lose_its_daemon(subtests: pytest.Subtests) -> None:
    """A client catches SIGTERM, which ends a daemon. The kernel kills what the first process of a container leaves."""
    for cgroup, (signal, seconds) in product(EVERY.values(), [(SIGTERM, 3.0), (SIGKILL, 0.05)]):
        with subtests.test(cgroup=cgroup, signal=signal):
            job = running((CLIENT, TASK), cgroup=cgroup, connected=(CLIENT, RANK))
            client, rank = ends(CLIENT, SUCCESS, after=seconds), ends(RANK, SUCCESS, after=0.02)
            assert after(job, ends(CONTROL, signal), client, rank) == STOPPED
            assert after(job, ends(CONTROL, signal), client, replace(rank, wait_status=SIGKILL)) == STOPPED
            assert after(job, ends(CONTROL, signal), client, replace(rank, wait_status=FAILURE)) == LOST
            assert after(job, ends(CONTROL, signal), rank) == LOST
            assert after(job, ends(CONTROL), rank, replace(client, at=END + 3.0)) == LOST
            idle = running((SCRIPT, TASK), cgroup=cgroup)
            assert after(idle, ends(CONTROL, signal), ends(SCRIPT, SUCCESS, after=seconds)) == STOPPED
            assert after(idle, ends(CONTROL, signal), ends(SCRIPT, FAILURE, after=3.0)) == LOST


@pytest.mark.parametrize("seconds", [-0.05, 0.05, 0.2])
def test_the_next_daemon_in_the_directory_shows_nothing_about_the_end_of_the_last_one(seconds: float) -> None:
    """A unit that is restarted runs the next one at once. It may be read before the end of the last one."""
    unit = NO_JOBS["transient unit"]
    job = running((SCRIPT, TASK), cgroup=unit, connected=(CLIENT,))
    peers = (WorkloadProcess(pid=SIDECAR, start_ticks=SIDECAR * 100, role=TASK),)
    following = replace(daemon_process(CONTROL + 1, at=END + seconds), user="alice", cgroup=unit, peers=peers)
    ended = (ends(CONTROL, SIGTERM), ends(SCRIPT, SIGTERM, after=0.06), ends(CLIENT, SIGTERM, after=0.07))
    assert after(job, following, *ended)[1] == (StopReason.WORKLOAD_ENDED,)
    assert after(job, following, ended[0])[1] == (LossReason.DIED if seconds > 0 else LossReason.REPLACED,)
    pending = reduced(ends(CONTROL, SIGTERM), replace(following, at=END + 0.05), start=job.node).node
    assert {SCRIPT, CLIENT, SIDECAR, CONTROL + 1} <= processes_wanted(replace(pending, at=END + 0.1))


@pytest.mark.parametrize("cgroup", EVERY.values(), ids=EVERY)
def test_a_daemon_that_took_its_clients_with_it_is_lost(cgroup: str, subtests: pytest.Subtests) -> None:
    """The clients get error 806. What started them may kill the others, and then fails too."""
    job = running((SCRIPT, TASK), cgroup=cgroup, connected=(CLIENT, RANK))
    for signal, rank in product([SIGKILL, SIGTERM, None], [FAILURE, 6, SIGTERM]):
        with subtests.test(signal=signal, rank=rank):
            failed = (ends(CLIENT, FAILURE, after=0.02), ends(RANK, rank, after=0.05))
            assert after(job, ends(CONTROL, signal), *failed) == LOST
            assert after(job, ends(CONTROL, signal), *failed, ends(SCRIPT, FAILURE, after=0.1)) == LOST
            assert after(job, ends(CONTROL, signal), *failed, ends(SCRIPT, after=3.0)) == LOST
    assert after(job, ends(CONTROL), ends(CLIENT, after=3.0), ends(RANK, after=3.0)) == LOST


@pytest.mark.parametrize("cgroup", NO_JOBS.values(), ids=NO_JOBS)
def test_other_work_of_the_user_neither_hides_nor_makes_a_loss(cgroup: str) -> None:
    """Without a known job, the script of another job may be in the same cgroup."""
    both = running((SCRIPT, TASK), (SIDECAR, TASK), cgroup=cgroup, connected=(CLIENT,))
    assert after(both, ends(CONTROL), ends(SCRIPT), ends(CLIENT)) == STOPPED
    assert after(both, ends(CONTROL), ends(SIDECAR), until=GRACE_SECONDS + 5) == LOST
    assert after(both, ends(SCRIPT, SUCCESS, after=-3.0), ends(SIDECAR, after=-3.0), ends(CONTROL)) == LOST
    idle = running((SCRIPT, TASK), (SIDECAR, TASK), cgroup=cgroup)
    assert after(idle, ends(CONTROL), ends(SCRIPT)) == STOPPED
    assert after(idle, ends(CONTROL)) == LOST
    serves_others = running((SCRIPT, TASK), cgroup=cgroup, connected=(CLIENT,), of=OTHER_JOB)
    assert after(serves_others, ends(CONTROL), ends(SCRIPT), ends(CLIENT)) == LOST


def test_monitors_the_clients_of_an_ended_daemon_until_its_end_is_explained() -> None:
    pending = reduced(ends(CONTROL), ends(SCRIPT), start=BATCH.node).node
    assert CLIENT in processes_wanted(replace(pending, at=END + 20))


# -- pods ----------------------------------------------------------------------------------------------------------

ALONE = running((SCRIPT, CONTAINER), (PAUSE, SANDBOX), cgroup=IN_POD, connected=(CLIENT,))
"""The daemon and its clients in the only container of a pod."""


@pytest.mark.parametrize("seconds", [0.1, SANDBOX_SECONDS - 1])
def test_a_daemon_in_a_pod_that_is_deleted_is_stopped(seconds: float) -> None:
    ended = (ends(CONTROL), ends(SCRIPT, SIGTERM, after=0.01))
    assert after(ALONE, *ended, ends(PAUSE, SUCCESS, after=seconds)) == STOPPED


def test_a_container_that_restarts_does_not_hide_the_loss() -> None:
    """As after a failed liveness probe: the pod remains."""
    assert after(ALONE, ends(CONTROL), ends(SCRIPT, after=0.01)) == LOST
    assert after(ALONE, ends(CONTROL), ends(SCRIPT), ends(PAUSE, after=SANDBOX_SECONDS + 1)) == LOST


def test_a_pod_that_ends_because_of_its_daemon_does_not_hide_the_loss() -> None:
    """With `restartPolicy: Never`."""
    failed = ends(SCRIPT, FAILURE, after=0.05)
    assert after(ALONE, ends(CONTROL), failed, ends(PAUSE, SUCCESS, after=1.0)) == LOST
    first_process = running((PAUSE, SANDBOX), cgroup=IN_POD)
    assert after(first_process, ends(CONTROL), ends(PAUSE, SUCCESS, after=1.0)) == LOST


@pytest.mark.parametrize("roles", [((SIDECAR, TASK), (PAUSE, SANDBOX)), ((SIDECAR, TASK),)])
def test_a_daemon_that_is_killed_beside_another_container_is_stopped(
    roles: tuple[tuple[int, WorkloadRole], ...],
) -> None:
    """The sandbox is unknown in some pods of CRI-O."""
    pod = running(*roles, cgroup=IN_POD)
    assert after(pod, ends(SIDECAR), ends(CONTROL), ends(PAUSE, SUCCESS, after=0.5)) == STOPPED


def test_a_container_that_ended_early_does_not_hide_a_crash() -> None:
    """As one that only prepares something. With a known signal, the sandbox decides."""
    pod = running((SIDECAR, TASK), (PAUSE, SANDBOX), cgroup=IN_POD)
    done, gone = ends(SIDECAR, SUCCESS, after=-20.0), ends(PAUSE, SUCCESS, after=0.5)
    assert after(pod, done, ends(CONTROL, SIGSEGV), gone) == LOST
    assert after(pod, done, ends(CONTROL, None), gone) == LOST
    assert after(pod, done, ends(CONTROL), gone) == STOPPED
    assert after(pod, done, ends(CONTROL)) == LOST


# What the state of its unit shows about a daemon's end: an operator stopped it, it failed, or nothing.


NAMED = DaemonFound(
    at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="/log", expected=True, unit=UNIT, by="configuration"
)
ENDS = AT + 100
STOPPED_UNIT, LOST_UNIT = [EventName.DAEMON_STOPPED], [EventName.DAEMON_LOST]


def running_in_unit(unit: str | None = UNIT) -> Node:
    """A daemon that answers and whose unit was collected. `unit` is the one that it runs in."""
    seen = (NAMED, daemon_process(unit=unit), process(CONTROL, uid=0), *control_log("UI closed"), servers())
    return reduced(*seen, unit_state()).node


def ended(*seen: Observation, start: Node | None = None, for_: float = 30.0) -> list[EventName]:
    """The end of a daemon by SIGTERM or SIGKILL. Its log is read completely, and has nothing about it."""
    end = (exited(CONTROL, at=ENDS), look("log", at=ENDS + 0.2))
    after = reduced(*end, *seen, look("process", at=ENDS + for_), start=running_in_unit() if start is None else start)
    return after.names(EventName.DAEMON_UP)


def test_an_operator_stopped_a_unit_that_is_stopping_without_restart() -> None:
    assert ended(unit_state("deactivating", at=ENDS + 1.5, restart="on-failure")) == STOPPED_UNIT


def test_a_unit_that_stops_briefly_may_be_restarted() -> None:
    """The daemon was ended by SIGTERM, and the unit has RestartForceExitStatus=SIGTERM."""
    leaving = unit_state("deactivating", at=ENDS + 0.5, restart="on-failure")
    assert (
        ended(leaving, unit_state("activating", at=ENDS + 0.8, sub="auto-restart", restart="on-failure")) == LOST_UNIT
    )
    assert ended(leaving, unit_state("active", at=ENDS + 0.8, restart="on-failure")) == LOST_UNIT
    assert ended(leaving, unit_state("inactive", at=ENDS + 0.8, restart="on-failure")) == STOPPED_UNIT


def test_an_operator_stopped_a_unit_that_systemd_killed_and_does_not_restart() -> None:
    """After a timeout, systemd restarts a unit by its Restart=, unless an operator stopped it (tried: 252)."""
    killed = unit_state("failed", at=ENDS + 0.5, sub="failed", result="timeout", restart="on-failure")
    assert ended(killed) == STOPPED_UNIT
    assert ended(replace(killed, restart="no")) == LOST_UNIT
    assert ended(replace(killed, sub="failed-before-auto-restart")) == LOST_UNIT


def test_a_unit_that_is_always_restarted_stops_only_briefly() -> None:
    leaving = unit_state("deactivating", at=ENDS + 0.5, restart="always")
    assert ended(leaving, unit_state("activating", at=ENDS + 1, sub="auto-restart", restart="always")) == LOST_UNIT
    assert ended(leaving, unit_state("inactive", at=ENDS + 1, restart="always")) == STOPPED_UNIT


def test_any_other_end_of_a_unit_is_a_loss(subtests: pytest.Subtests) -> None:
    for state in [
        unit_state("failed", at=ENDS + 0.5, result="signal"),
        unit_state("activating", at=ENDS + 0.5, sub="auto-restart", result="signal"),
        unit_state("inactive", at=ENDS + 0.5, result="oom-kill"),
        unit_state("deactivating", at=ENDS + 0.5, result="watchdog"),
        unit_state("active", at=ENDS + 0.5),
    ]:
        with subtests.test(state=state):
            assert ended(state) == LOST_UNIT


def test_does_not_wait_for_a_failed_unit() -> None:
    seen = unit_state("failed", at=ENDS + 0.3, result="signal")
    assert ended(daemon_process(None, at=ENDS), seen, look("log", at=ENDS + 0.4), for_=0.5) == LOST_UNIT


def test_waits_for_systemd_only_briefly() -> None:
    assert ended(for_=lifecycle.SYSTEMD_SECONDS - 0.1) == []
    assert ended(for_=lifecycle.SYSTEMD_SECONDS + 0.1) == LOST_UNIT


@pytest.mark.parametrize("restart", ["on-failure", "always"])
def test_an_operator_restarts_a_unit_that_stops_before_its_daemon_ends(restart: str) -> None:
    """As that of a daemon that hangs: its stop takes some seconds, and its next start less than one."""
    stopping = unit_state("deactivating", at=ENDS - 1.9, sub="stop-sigterm", restart=restart)
    again = (unit_state("active", at=ENDS + 0.3, restart=restart), daemon_process(700, at=ENDS + 0.4))
    start = reduced(stopping, start=running_in_unit()).node
    assert ended(*again, start=start) == STOPPED_UNIT
    assert ended(unit_state("inactive", at=ENDS + 0.3, restart=restart), start=start) == STOPPED_UNIT
    failed = unit_state("failed", at=ENDS + 0.3, result="exit-code", restart=restart)
    assert ended(failed, start=start) == LOST_UNIT, "the next start failed, and nobody may know"


def test_a_unit_state_from_before_the_end_proves_nothing(subtests: pytest.Subtests) -> None:
    """The daemon was started outside its unit, which never ran, or which stopped long ago or because of a failure."""
    again = (unit_state("active", at=ENDS + 0.3), daemon_process(700, at=ENDS + 0.4))
    for before in [
        unit_state("inactive", at=ENDS - 1),
        unit_state("deactivating", at=ENDS - 60),
        unit_state("deactivating", at=ENDS - 1, result="timeout"),
    ]:
        with subtests.test(state=before):
            assert ended(*again, start=reduced(before, start=running_in_unit()).node) == LOST_UNIT


@pytest.mark.parametrize(
    "seen",
    [
        unit_state("inactive", at=ENDS + 0.1, load="not-found"),
        unit_state("inactive", at=ENDS + 0.1, problem=failure("systemctl cannot list the units")),
        unit_state("inactive", at=ENDS + 0.1, unit="other.service"),
    ],
    ids=("not known to systemd", "not to be seen", "another"),
)
def test_an_unreadable_unit_proves_nothing(seen: UnitState) -> None:
    assert ended(seen) == LOST_UNIT


def test_a_unit_that_did_not_run_the_daemon_proves_nothing() -> None:
    assert ended(unit_state("inactive", at=ENDS + 0.5), start=running_in_unit("session-3.scope")) == LOST_UNIT


def test_a_daemon_after_a_quit_is_stopped_in_any_state_of_its_unit() -> None:
    start = reduced(*control_log("Cmd:quit", at=ENDS - 1), start=running_in_unit()).node
    assert ended(unit_state("failed", at=ENDS + 0.5, result="exit-code"), start=start) == STOPPED_UNIT


def test_the_return_after_a_stop_reports_no_old_loss(subtests: pytest.Subtests) -> None:
    """A recent loss is reported all the same."""
    start = running_in_unit()
    lost = reduced(exited(CONTROL, at=ENDS), look("log", at=ENDS + 10), start=start).node
    for seconds, problems in [(600, set()), (30, {DaemonProblem.DAEMON_DIED})]:
        with subtests.test(seconds=seconds):
            quit_at = ENDS + seconds
            back = reduced(daemon_process(700, at=ENDS + 12), servers(at=ENDS + 13), start=lost).node
            quit_seen = (reply("quit", at=quit_at), exited(700, at=quit_at), look("log", at=quit_at + 5))
            again = (daemon_process(701, at=quit_at + 6), servers(at=quit_at + 7))
            node = reduced(*quit_seen, *again, start=back).node
            found = {each.problem for each in findings(node, quit_at + 20, None)}
            assert found & {DaemonProblem.DAEMON_DIED, DaemonProblem.DAEMON_WAS_DOWN} == problems


# -- units that are collected ------------------------------------------------------------------------------------------


def wanted(node: Node, at: float) -> frozenset[str]:
    return poll_schedule.units_wanted(replace(node, at=at))


def test_collects_each_unit_once_at_first() -> None:
    start = reduced(NAMED).node
    assert wanted(start, AT) == {UNIT}
    up = reduced(daemon_process(unit=UNIT), servers(), start=start).node
    assert wanted(up, AT + 600) == {UNIT}
    assert wanted(reduced(unit_state(at=AT + 600), start=up).node, AT + 601) == frozenset()


def test_collects_a_unit_while_its_daemon_does_not_answer_and_a_minute_longer() -> None:
    gone = reduced(exited(CONTROL, at=ENDS), look("log", at=ENDS + 10), start=running_in_unit()).node
    assert wanted(gone, ENDS + 3600) == {UNIT}
    back = reduced(daemon_process(CONTROL + 1, at=ENDS + 20), servers(at=ENDS + 21), start=gone).node
    assert wanted(back, ENDS + 21 + 59) == {UNIT}
    assert wanted(back, ENDS + 21 + 61) == frozenset()


def test_collects_no_unit_of_a_discovered_daemon() -> None:
    found = replace(NAMED, expected=False)
    assert wanted(reduced(found).node, AT) == frozenset()


def test_a_unit_is_urgent_until_the_end_of_its_daemon_is_explained() -> None:
    gone = reduced(exited(CONTROL, at=ENDS), start=running_in_unit()).node
    assert poll_schedule.units_urgent(running_in_unit()) == frozenset()
    assert poll_schedule.units_urgent(gone) == {UNIT}
    explained = reduced(unit_state("failed", at=ENDS + 0.5), look("log", at=ENDS + 2), start=gone).node
    assert poll_schedule.units_urgent(explained) == frozenset()


def test_removes_a_unit_without_a_daemon() -> None:
    unnamed = replace(NAMED, unit=None, at=AT + 1)
    assert reduced(unnamed, look(at=AT + 2), start=running_in_unit()).node.units == {}
