"""A daemon that ends with its Slurm job or pod is stopped. In all other cases, its end is a loss."""

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from exporter.model.daemon import DaemonState, LossReason, StopReason
from exporter.model.event import EventName
from exporter.model.identity import WorkloadProcess, WorkloadRole
from exporter.model.observation import DaemonProcess, KernelRecord, Observation, ProcessExit
from exporter.model.values import build, plain
from exporter.state.lifecycle import BESIDE_SECONDS, SANDBOX_SECONDS
from exporter.state.poll_schedule import processes_wanted
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    POD,
    SERVER,
    Reduced,
    at_work,
    clients,
    daemon_process,
    look,
    node,
    process,
    reduced,
    servers,
)

SCRIPT, SIDECAR, PAUSE, OUTSIDER = 4000, 4001, 4002, 4003
END = AT + 100
JOB = "0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0\n"
OTHER_JOB = JOB.replace("4711", "4712")
IN_POD = f"0::/kubepods/burstable/pod{POD}/{'a' * 64}\n"
SIGTERM, SIGKILL, SIGSEGV, SUCCESS, FAILURE = 15, 9, 11, 0, 1 << 8
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
    return reduced(
        daemon,
        *(process(pid, cgroup=cgroup) for pid, _ in roles),
        *(process(pid, cgroup=of or cgroup) for pid in connected),
        *at_work(*connected),
        start=node(expected=expected),
    )


def after(start: Reduced, *ended: Observation, until: float = 10.0) -> tuple[DaemonState | None, tuple[Any, ...]]:
    """Return the daemon's state, and the reason of each stop and loss, some seconds after its end."""
    seen = sorted(ended, key=lambda each: each.at)
    moments = (look("control", at=END + step / 10) for step in range(1, round(until * 10)))
    found = reduced(*sorted((*seen, *moments), key=lambda each: each.at), start=start.node)
    told = (EventName.DAEMON_STOPPED, EventName.DAEMON_LOST)
    return found.daemon.state, tuple(each.reason for each in found.events if each.event in told)


STOPPED = (DaemonState.STOPPED, (StopReason.WORKLOAD_ENDED,))
LOST = (DaemonState.ABSENT, (LossReason.DIED,))
BATCH = running((SCRIPT, TASK), connected=(CLIENT,))


def test_a_daemon_that_is_killed_beside_the_script_of_its_job_is_stopped(subtests: pytest.Subtests) -> None:
    """As by scancel, a time limit and preemption, which end processes in any order."""
    for signal, after_daemon in product([SIGTERM, SIGKILL], [-0.05, 0.0, 0.05]):
        with subtests.test(signal=signal, after_daemon=after_daemon):
            ended = (ends(CONTROL, signal), ends(SCRIPT, signal, after=after_daemon), ends(CLIENT, signal, after=0.06))
            assert after(BATCH, *ended) == STOPPED
            assert after(BATCH, ends(CONTROL, None), ends(SCRIPT, signal, after=after_daemon)) == STOPPED


def test_no_loss_is_counted_for_a_daemon_that_is_stopped_with_its_job() -> None:
    found = reduced(ends(CONTROL), ends(SCRIPT), look("control", at=END + 1), start=BATCH.node).daemon
    assert (set(found.totals.losses.values()), found.lifecycle.last_loss_at) == ({0}, None)


@pytest.mark.parametrize("status", [SUCCESS, FAILURE, SIGKILL, None])
def test_a_daemon_that_is_left_by_the_script_of_its_job_is_stopped(status: int | None) -> None:
    """A slurmstepd ends what is left in its step, at once or after a while."""
    assert after(BATCH, ends(SCRIPT, status, after=-2.0), ends(CONTROL)) == STOPPED
    without_clients = running((SCRIPT, TASK))
    assert after(without_clients, ends(SCRIPT, status, after=-0.01), ends(CONTROL)) == STOPPED


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


def test_a_recording_has_what_the_decision_needs() -> None:
    known = replace(daemon_process(), cgroup=JOB, user="alice", peers=BATCH.daemon.runtime.process.peers)  # type: ignore[union-attr]
    assert build(DaemonProcess, json.loads(json.dumps(plain(known)))) == known
