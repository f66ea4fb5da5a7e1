"""A daemon that ends with its job or pod, or after a quit, is stopped. In all other cases, its end is a loss."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from exporter.model.daemon import DaemonState, LossReason, StopReason
from exporter.model.event import Event, EventName
from exporter.model.identity import WorkloadProcess, WorkloadRole
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, KernelRecord, Observation, ProcessExit, ProcessState, UnitState
from exporter.model.reason import Reason, ReasonCode
from exporter.report.node_findings import findings
from exporter.report.problems import DaemonProblem
from exporter.report.reasons import reason_text
from exporter.state import poll_schedule
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
    active,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
    failure,
    holder,
    look,
    no_daemon,
    node,
    partitioned,
    process,
    reduced,
    refusal,
    reply,
    server_log,
    servers,
    unit_state,
)

# The tests state these values, so that they notice a change of the program's constants.
BESIDE_SECONDS = 0.25
GRACE_SECONDS = 30.0
SANDBOX_SECONDS = 5.0

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


def killed(pid: int, after: float = -0.01) -> KernelRecord:
    """The kernel kills a process for lack of memory."""
    record = f"3,1,2,-;Memory cgroup out of memory: Killed process {pid} (x) total-vm:1kB, anon-rss:1kB"
    return KernelRecord(at=END + after, record=record)


def test_a_script_that_lacks_memory_when_its_daemon_is_killed_does_not_hide_the_loss() -> None:
    assert after(BATCH, ends(CONTROL), killed(SCRIPT), ends(SCRIPT, after=0.01)) == LOST


def test_a_daemon_that_the_kernel_kills_with_all_of_its_job_is_stopped() -> None:
    """As with memory.oom.group."""
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
    assert ended(for_=1.9) == []
    assert ended(for_=2.1) == LOST_UNIT


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


# Consecutive servers that exit before they are ready: one event and one count for each crash loop.


# The tests state these values, so that they notice a change of the program's constants.
LOOP_END_SECONDS = 300.0
LOOP_SECONDS = 60.0
LOOP_STARTS = 3

FIRST = 92
NO_DRIVER = "Driver initialization failed with: out of memory"
UP = reduced(*at_work()).node


def starts(server: int, *, at: float, uid: int = 1001) -> tuple[Observation, ...]:
    return control_log(f"Starting new server {server} for user {uid}", at=at)


def ready(server: int, *, at: float) -> tuple[Observation, ...]:
    return control_log(f"NEW SERVER {server}: Ready", at=at)


def exits(server: int, *, at: float, status: int = 1) -> tuple[Observation, ...]:
    """The daemon logs that the server exited."""
    return control_log(f"Server {server} exited with status {status}", at=at)


def fails(server: int, *, at: float) -> tuple[Observation, ...]:
    """The server fails to start (measured, R580). Its log is read before the daemon's."""
    words = ("Startup", "Initializing server process", NO_DRIVER, "Failed to start : out of memory")
    fatal = control_log("Server encountered a fatal exception. Shutting down", at=at + 0.1)
    own = server_log(*words, server=server, at=at)
    return (*own, *starts(server, at=at), *fatal, *exits(server, at=at + 0.1))


def failures(count: int, *, at: float = AT + 5, every: float = 0.13) -> tuple[Observation, ...]:
    """Failed starts as fast as daemons have tried (2024). Each PID is three higher."""
    return tuple(each for number in range(count) for each in fails(FIRST + 3 * number, at=at + number * every))


def loops(*seen: Observation, start: Node = UP) -> list[Event]:
    """Return the events, after a check that the counter agrees."""
    result = reduced(*seen, start=start)
    found = result.of(EventName.SERVER_CRASH_LOOP)
    assert result.daemon.totals.crash_loops - start.daemons[DAEMON].totals.crash_loops == len(found)
    return found


def test_reports_a_crash_loop_at_the_third_failed_start() -> None:
    assert loops(*failures(LOOP_STARTS - 1)) == []
    (loop,) = loops(*failures(LOOP_STARTS))
    assert (loop.daemon, loop.server, loop.pid) == (DAEMON, None, None)
    assert loop.reason == Reason(ReasonCode.SERVERS_EXITED_EARLY, seconds=1.0, count=3)
    assert loop.at == pytest.approx(AT + 5.36)


def test_reports_a_crash_loop_that_one_collection_reads() -> None:
    (loop,) = loops(*(replace(each, at=AT + 6) for each in failures(6, every=0.02)))
    assert (loop.at, loop.reason) == (AT + 6, Reason(ReasonCode.SERVERS_EXITED_EARLY, seconds=1.0, count=3))


def test_reports_a_long_crash_loop_once() -> None:
    assert len(loops(*failures(200))) == 1


def test_stores_a_bounded_number_of_starts() -> None:
    began = reduced(*failures(200), start=UP).daemon.connections.failed_starts.started_at
    assert len(began) == LOOP_STARTS


def test_few_failed_starts_in_a_minute_are_no_crash_loop() -> None:
    assert loops(*failures(10, every=LOOP_SECONDS / 2 + 1)) == []
    assert len(loops(*failures(10, every=LOOP_SECONDS / 2 - 1))) == 1


def test_reports_another_crash_loop_after_a_server_was_ready() -> None:
    again = (*starts(700, at=AT + 10), *ready(700, at=AT + 10.1), *failures(LOOP_STARTS, at=AT + 20))
    assert len(loops(*failures(LOOP_STARTS), *again)) == 2


def test_reports_another_crash_loop_after_a_pause() -> None:
    last = AT + 5.36
    assert len(loops(*failures(LOOP_STARTS), *failures(LOOP_STARTS, at=last + LOOP_END_SECONDS + 1))) == 2
    assert len(loops(*failures(LOOP_STARTS), *failures(LOOP_STARTS, at=last + LOOP_END_SECONDS - 1))) == 1


def server_that_exits(between: str, number: int) -> tuple[Observation, ...]:
    """Lines of a server that exits for another reason than a failed start."""
    server, at = FIRST + 3 * number, AT + 5 + number
    what: dict[str, tuple[Observation, ...]] = {
        "ready": ready(server, at=at + 0.1),
        "ready by its own log": server_log("Server has started", server=server, at=at + 0.1),
        "with a client": server_log(active(), server=server, at=at + 0.1),
        "shut down": control_log(f"Try shutting down server {server}, backoff is disabled", at=at + 0.1),
        "forced": control_log(f"Force shutting down server {server}", at=at + 0.1),
        "quit": control_log("NEW UI", "Cmd:quit", at=at + 0.1),
    }
    return (*starts(server, at=at), *what[between], *exits(server, at=at + 0.2, status=0))


def test_a_server_that_was_ready_or_shut_down_is_no_failed_start(subtests: pytest.Subtests) -> None:
    for why in ["ready", "ready by its own log", "with a client", "shut down", "forced", "quit"]:
        with subtests.test(why=why):
            assert loops(*(each for number in range(4) for each in server_that_exits(why, number))) == []


def test_servers_without_a_logged_start_are_no_failed_starts() -> None:
    lists = (servers(*pids, at=AT + 5 + second) for second, pids in enumerate(((92,), (95,), (98,), (101,))))
    assert loops(*lists) == []


def test_any_source_may_report_the_exits() -> None:
    lives = (
        each
        for number in range(LOOP_STARTS)
        for each in (*starts(92 + number, at=AT + 5), exited(92 + number, at=AT + 6))
    )
    assert len(loops(*lives)) == 1


def test_servers_that_end_with_their_daemon_are_no_failed_starts() -> None:
    seen = (*starts(92, at=AT + 5), *starts(95, at=AT + 5), *starts(98, at=AT + 5), no_daemon(at=AT + 6))
    assert loops(*seen) == []


def test_recovery_from_a_fault_does_not_end_a_crash_loop() -> None:
    """A server of another user may recover while one cannot start."""
    block = server_log("Server is handling a fatal GPU error.", "The following devices will be reset:", "0", at=AT + 6)
    over = server_log("Destroy server context on device 0", at=AT + 6.1)
    assert len(loops(*failures(LOOP_STARTS), *block, *over, *failures(LOOP_STARTS, at=AT + 7))) == 1


def test_does_not_report_a_crash_loop_that_only_the_log_shows() -> None:
    """No child of the daemon has ended since."""
    present = reduced(daemon_process(), reaped(3), start=UP).node
    result = reduced(*failures(LOOP_STARTS), reaped(3, at=AT + 10), look("log", at=AT + 18), start=present)
    assert result.of(EventName.SERVER_CRASH_LOOP) == []
    assert result.daemon.totals.log_contradictions["crash_loop"] == 1


def test_a_crash_loop_before_the_first_process_reading_is_no_contradiction() -> None:
    """An exporter that has just started reads the process a moment later than the log (measured, R580)."""
    present = reduced(daemon_process(), look("log", at=AT + 4), start=UP).node
    result = reduced(*failures(LOOP_STARTS), reaped(3, at=AT + 6.5), look("log", at=AT + 18), start=present)
    assert result.of(EventName.SERVER_CRASH_LOOP) == []
    assert result.daemon.totals.log_contradictions["crash_loop"] == 0


def test_page_faults_of_the_daemons_children_confirm_a_crash_loop() -> None:
    present = reduced(daemon_process(), reaped(3), start=UP).node
    result = reduced(*failures(LOOP_STARTS), reaped(5, at=AT + 6), start=present)
    assert len(result.of(EventName.SERVER_CRASH_LOOP)) == 1


def reaped(page_faults: int, at: float = AT) -> ProcessState:
    """The page faults of the daemon's ended children."""
    return ProcessState(at=at, pid=CONTROL, start_ticks=CONTROL * 100, state="S", children_page_faults=page_faults)


# Why a client ended, and who requested that: the label of the counter, and the event.


OTHER = CLIENT + 1
LOSSES = {"server_gone", "daemon_gone"}
REQUEST = (
    f"MPS server requesting client {{PID: {CLIENT}, Context ID: 1}} to exit",
    "Client termination succeeded.",
    f"Client {{PID: {CLIENT}, Context ID: 1}} exiting. Number of active client contexts is 1.",
)
BY_COMMAND = Reason(ReasonCode.ENDED_BY_COMMAND)


def requested(*, at: float = AT + 4) -> Iterable[Observation]:
    """The server ends a client, which then gets error 810."""
    return server_log(*REQUEST, at=at)


def commanded(command: str = f"terminate_client {SERVER} {CLIENT}", *, at: float = AT + 4) -> Iterable[Observation]:
    return control_log("NEW UI", f"Cmd:{command}", "UI closed", at=at)


def at_server(*seen: Observation) -> Reduced:
    return reduced(*at_work(CLIENT, OTHER), *(process(pid) for pid in (CLIENT, OTHER)), *seen)


def left(after: Reduced) -> tuple[Event, dict[str, int]]:
    """Return the event of the only client that disconnected, and the counter of that daemon without zeros."""
    (event,) = after.of(EventName.CLIENT_DISCONNECTED)
    counts = {str(reason): count for reason, count in after.daemon.totals.disconnected.items() if count}
    assert counts == {event.reason: 1}
    return event, counts


class TestTerminated:
    """An operator ran `terminate_client`."""

    @pytest.mark.parametrize("ends", [clients(OTHER, at=AT + 5), exited(at=AT + 5)])
    def test_it_is_an_ordinary_end_by_a_command(self, ends: Observation) -> None:
        """The list of the daemon lacks the client, or its process exits after the error."""
        for seen in ((*commanded(), *requested()), (*requested(), *commanded())):
            after = at_server(*seen, ends)
            event, counts = left(after)
            assert (event.pid, event.reason, event.indications) == (CLIENT, "terminated", (BY_COMMAND,))
            assert not LOSSES & counts.keys()
            assert not after.of(EventName.CLIENT_FAULT_CONTAINED)
            assert not after.of(EventName.FAULT)
            assert findings(after.node, after.node.at) == findings(at_server().node, AT)

    def test_without_its_command_in_the_log_the_sender_is_unknown(self) -> None:
        event, _ = left(at_server(*requested(), clients(OTHER, at=AT + 5)))
        assert (event.reason, event.indications) == ("terminated", None)

    def test_a_command_long_before_the_request_is_not_its_sender(self) -> None:
        event, _ = left(at_server(*commanded(), *requested(at=AT + 15), clients(OTHER, at=AT + 16)))
        assert (event.reason, event.indications) == ("terminated", None)

    def test_a_session_that_was_open_at_the_command_is_its_sender(self) -> None:
        """It is still open, and the daemon refuses others. A process that started later did not send it."""
        command = control_log("NEW UI", f"Cmd:terminate_client {SERVER} {CLIENT}", at=AT + 4)
        held = (refusal(at=AT + 4.5), refusal(at=AT + 6))
        event, _ = left(at_server(*command, *held, holder(at=AT + 6.1), *requested(at=AT + 7), exited(at=AT + 8)))
        assert event.indications == (Reason(ReasonCode.ENDED_BY_COMMAND, pid=4000, user="root"),)
        assert reason_text(event.indications[0]) == "a control command ended it, sent by process 4000 of user root"
        assert reason_text(BY_COMMAND) == "a control command ended it"

    @pytest.mark.parametrize("seen_at", [AT + 3, AT + 6.1])
    def test_a_process_of_another_session_is_not_the_sender(self, seen_at: float) -> None:
        """It was seen before the command, or after the end of the session that sent it."""
        held = (refusal(at=AT + 2.5), holder(at=AT + 3)) if seen_at < AT + 4 else ()
        later = () if held else (refusal(at=AT + 4.5), refusal(at=AT + 6), holder(at=seen_at))
        seen = (*held, *commanded(), *later, *requested(at=AT + 7), exited(at=AT + 8))
        assert left(at_server(*seen))[0].indications == (BY_COMMAND,)

    def test_a_client_that_ends_long_after_the_request_ended_itself(self) -> None:
        event, _ = left(at_server(*commanded(), *requested(), clients(OTHER, at=AT + 15)))
        assert (event.reason, event.indications) == ("exit", None)

    def test_another_client_ends_itself(self) -> None:
        event, _ = left(at_server(*commanded(), *requested(), clients(CLIENT, at=AT + 5)))
        assert (event.pid, event.reason) == (OTHER, "exit")


class TestEvicted:
    """With protocol 3, the server ends clients of itself when memory is short."""

    def end(self, *seen: Observation) -> Event:
        start = partitioned()
        (server,) = start.daemons.values()
        assert CLIENT in server.clients
        (event,) = reduced(*seen, exited(at=AT + 6), start=start).of(EventName.CLIENT_DISCONNECTED)
        return event

    def test_later_commands_in_the_log_show_that_none_requested_it(self) -> None:
        event = self.end(*requested(), *commanded("server list", at=AT + 5))
        assert (event.reason, event.indications) == ("evicted", None)

    def test_a_command_that_ends_clients_is_no_eviction(self) -> None:
        event = self.end(*requested(), *commanded(f"client terminate {CLIENT}"), *commanded("server list", at=AT + 5))
        assert (event.reason, event.indications) == ("terminated", (BY_COMMAND,))

    def test_a_refused_command_ended_no_client(self) -> None:
        refused = control_log(
            f"Cmd:client terminate {CLIENT}", "Not enough privilege to execute terminate command", at=AT + 4
        )
        assert self.end(*refused, *requested(), *commanded("server list", at=AT + 5)).reason == "evicted"

    def test_a_refused_command_of_another_user_hides_no_other_command(self) -> None:
        refused = control_log("Cmd:quit", "Not enough privilege to execute quit command", "UI closed", at=AT + 4.5)
        event = self.end(*commanded(f"client terminate {CLIENT}"), *refused, *requested())
        assert (event.reason, event.indications) == ("terminated", (BY_COMMAND,))
        assert self.end(*commanded(f"client terminate {CLIENT}"), *requested(), *refused).reason == "terminated"

    def test_without_later_commands_in_the_log_it_is_unknown(self) -> None:
        event = self.end(*commanded("server list", at=AT + 3), *requested())
        assert (event.reason, event.indications) == ("terminated", None)

    def test_protocol_2_evicts_no_client(self) -> None:
        event, _ = left(at_server(*requested(), *commanded("get_server_list", at=AT + 5), exited(at=AT + 6)))
        assert event.reason == "terminated"


def test_an_out_of_memory_kill_is_the_cause_of_an_end() -> None:
    killed = f"6,1,1,-;Memory cgroup out of memory: Killed process {CLIENT} (train) total-vm:1kB"
    forged = killed.replace("6,", "12,", 1)
    for record, reason in ((killed, "out_of_memory"), (forged, "exit")):
        event, _ = left(at_server(KernelRecord(at=AT + 4, record=record), exited(at=AT + 4.1)))
        assert event.reason == reason


class TestServer:
    """The end of a server ends its clients."""

    def reasons(self, *lines: str) -> set[object]:
        gone = (*control_log(*lines, at=AT + 4), exited(SERVER, at=AT + 5), servers(at=AT + 5))
        after = reduced(*at_work(CLIENT, OTHER), process(SERVER, uid=0, user="root"), *gone)
        assert len(after.of(EventName.CLIENT_DISCONNECTED)) == 2
        return {event.reason for event in after.of(EventName.CLIENT_DISCONNECTED)}

    def test_a_forced_shutdown_is_no_loss(self) -> None:
        """As of `shutdown_server -f` or `quit -t`."""
        waits = (f"Try shutting down server {SERVER}, backoff is enabled",)
        assert self.reasons(*waits, f"Force shutting down server {SERVER}") == {"shut_down"}

    def test_a_server_that_dies_while_a_shutdown_waits_for_its_clients_is_a_loss(self) -> None:
        """The daemon reports each time that it leaves the server alone."""
        waits = (
            f"Try shutting down server {SERVER}, backoff is enabled",
            f"Server {SERVER} has 2 active worker threads. Server will not shutdown.",
        )
        assert self.reasons(*waits) == {"server_gone"}
        assert self.reasons() == {"server_gone"}


def test_a_daemon_that_dies_is_a_loss_although_a_client_was_terminated() -> None:
    ends = (*commanded(), *requested(), clients(OTHER, at=AT + 5), exited(CONTROL, at=AT + 6))
    after = at_server(daemon_process(), *ends)
    counts = after.daemon.totals.disconnected
    assert {reason: count for reason, count in counts.items() if count} == {"terminated": 1, "daemon_gone": 1}
