"""Processes that exited recently, and their exit status if it is known."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from exporter.model.incident import Death
from exporter.model.node import Node
from exporter.model.observation import KernelRecord, Observation
from exporter.reducer import MOST_STORED_PROCESSES
from exporter.state import poll_schedule, processes
from tests.builders import (
    AT,
    CLIENT,
    SERVER,
    active,
    at_work,
    clients,
    control_log,
    exited,
    faulted_client,
    gpu_reading,
    holder,
    look,
    node,
    process,
    reduced,
    refusal,
    server_log,
    servers,
    suspect,
)
from tests.state.strategies import timelines

# The tests state these values, so that they notice a change of the program's constants.
UNWANTED_SECONDS = 30.0
DYING_SECONDS = 10.0
FORGOTTEN_SECONDS = 1200.0
MOST_DEATHS = 4096
REMEMBERED_SECONDS = 60.0

KILLED, SEGMENTATION_FAULT, EXIT_7 = 9, 11, 7 << 8
READING = process()


def out_of_memory(pid: int = CLIENT, *, at: float = AT, prefix: int = 3, name: str = "train.py") -> KernelRecord:
    """The kernel reports a process that it killed."""
    text = f"Memory cgroup out of memory: Killed process {pid} ({name}) total-vm:9kB, anon-rss:8kB, file-rss:0kB"
    return KernelRecord(at=at, record=f"{prefix},360,27859548,-;{text}")


def death(*seen: Observation) -> Death | None:
    """Return what is known of the client's exit."""
    return reduced(servers(), READING, *seen).node.deaths.get(CLIENT)


# -- exits ---------------------------------------------------------------------------------------------------------


def test_stores_identity_and_status_of_an_exited_process(subtests: pytest.Subtests) -> None:
    for status in [None, 0, KILLED, SEGMENTATION_FAULT, EXIT_7]:
        with subtests.test(status=status):
            gone = replace(exited(at=AT + 1), wait_status=status)

            assert death(gone) == Death(
                at=AT + 1, pid=CLIENT, start_ticks=READING.start_ticks, process=READING, wait_status=status
            )


def test_stores_the_identity_of_a_process_that_was_never_read() -> None:
    (known,) = reduced(replace(exited(700), wait_status=KILLED)).node.deaths.values()

    assert known == Death(at=AT, pid=700, start_ticks=70_000, wait_status=KILLED)


def test_the_exit_of_an_earlier_process_with_the_pid_does_not_count() -> None:
    assert death(exited(ticks=1)) is None


def test_a_reused_pid_shows_that_the_process_exited() -> None:
    reused = process(ticks=7, at=AT + 1)

    assert death(reused) == Death(at=AT + 1, pid=CLIENT, start_ticks=READING.start_ticks, process=READING)


def test_two_reports_of_an_exit_are_one_exit() -> None:
    """The second one has no further data."""
    first = replace(exited(at=AT + 1), wait_status=KILLED)

    assert death(first, exited(at=AT + 2)) == death(first)


# -- out of memory -----------------------------------------------------------------------------------------------------


def test_stores_an_out_of_memory_kill_in_either_order() -> None:
    gone, killed = replace(exited(at=AT + 1), wait_status=KILLED), out_of_memory(at=AT + 1)

    for seen in ((gone, killed), (killed, gone)):
        known = death(*seen)
        assert known is not None
        assert (known.process, known.wait_status, known.out_of_memory) == (READING, KILLED, True)


def test_stores_an_out_of_memory_kill_of_an_unmonitored_process() -> None:
    assert reduced(out_of_memory(700)).node.deaths == {700: Death(at=AT, pid=700, out_of_memory=True)}


def test_an_earlier_process_with_the_pid_was_not_killed() -> None:
    later = AT + DYING_SECONDS + 1
    known = death(exited(), out_of_memory(at=later))

    assert known == Death(at=later, pid=CLIENT, out_of_memory=True)


def test_the_next_process_with_the_pid_was_not_killed() -> None:
    known = death(out_of_memory(), process(ticks=7, at=AT + 1), exited(ticks=7, at=AT + 2))

    assert known is not None
    assert (known.start_ticks, known.out_of_memory) == (7, False)


@pytest.mark.parametrize("prefix", [8, 11, 12, 30])
def test_ignores_kernel_log_lines_of_programs(prefix: int) -> None:
    assert death(out_of_memory(prefix=prefix)) is None


@pytest.mark.parametrize("name", ["", ") total-vm", "x): Killed process 1 (", "Out of memory: Killed process 1 ("])
def test_ignores_kernel_messages_in_process_names(name: str) -> None:
    assert set(reduced(out_of_memory(name=name)).node.deaths) == {CLIENT}


# -- bounds --------------------------------------------------------------------------------------------------------


def test_stores_exits_for_a_minute() -> None:
    assert death(exited(), look(at=AT + REMEMBERED_SECONDS)) is not None
    assert death(exited(), look(at=AT + REMEMBERED_SECONDS + 1)) is None


def test_stores_a_bounded_number_of_exits() -> None:
    last = 10_000 + MOST_DEATHS + 9
    deaths = reduced(*(out_of_memory(pid) for pid in range(10_000, last + 1))).node.deaths

    assert len(deaths) == MOST_DEATHS
    assert last in deaths


# -- recently disconnected clients -------------------------------------------------------------------------------------


def test_monitors_a_disconnected_client_until_its_process_exits() -> None:
    """Its exit status shows whether it was killed. The log is quicker."""
    ending = server_log(f"Client {{PID: {CLIENT}, Context ID: 1}} exit", at=AT + 1)
    gone = gpu_reading((), at=AT + 1.2)
    left = reduced(*at_work(), *server_log(active()), READING, *ending, gone).node

    assert CLIENT not in left.daemons["/tmp/nvidia-mps"].clients
    assert CLIENT in poll_schedule.processes_wanted(left)
    after = reduced(look(at=AT + 1.5), replace(exited(at=AT + 1.6), wait_status=KILLED), start=left).node
    assert after.deaths[CLIENT].process == READING
    assert after.deaths[CLIENT].wait_status == KILLED


def test_monitors_the_holder_of_a_session_for_its_names() -> None:
    held = reduced(*at_work(), refusal(at=AT + 1), holder(4000, at=AT + 2)).node
    assert 4000 in poll_schedule.processes_wanted(held)
    assert None not in poll_schedule.processes_wanted(reduced(holder(None, at=AT + 3), start=held).node)


def test_monitors_a_disconnected_client_only_briefly() -> None:
    left = reduced(*at_work(CLIENT), clients(at=AT + 2), clients(at=AT + 4)).node

    assert CLIENT in poll_schedule.processes_wanted(left)
    assert CLIENT not in poll_schedule.processes_wanted(replace(left, at=AT + 4 + poll_schedule.EXIT_SECONDS + 1))


# -- processes that nothing refers to ------------------------------------------------------------------------------


def test_keeps_the_process_of_a_client_that_waited_for_its_server() -> None:
    """Its collector reads a process once, and does not notice that nothing refers to it for a moment."""
    queued = control_log(
        f"Starting new server {SERVER} for user 1001",
        f"NEW CLIENT {CLIENT} from user 1001: Server is not ready, push client to pending list",
    )
    begun = control_log(f"NEW SERVER {SERVER}: Ready", at=AT + 1)
    between = reduced(*at_work(), *queued, READING, *begun, look(at=AT + 1)).node

    assert CLIENT not in poll_schedule.processes_wanted(between)
    after = reduced(*server_log(active(), at=AT + 1.1), look(at=AT + 1.1), start=between).node
    assert after.processes[CLIENT] == READING


def test_removes_a_process_that_nothing_refers_to() -> None:
    assert CLIENT in reduced(READING, look(at=AT + UNWANTED_SECONDS - 1)).node.processes
    assert CLIENT not in reduced(READING, look(at=AT + UNWANTED_SECONDS + 1)).node.processes


def test_stores_a_bounded_number_of_processes() -> None:
    many = (process(pid) for pid in range(10_000, 10_001 + MOST_STORED_PROCESSES))
    assert reduced(*many, look()).node.processes == {}


# Accounts of workloads: each client counts once, and an account without clients is removed.


JOB_CGROUP = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"

MINUTE = 60.0


def connected(present: Node) -> dict[str, int]:
    return {workload.name: each.connected for workload, each in present.accounts.items()}


def connects_and_exits(pid: int, *, at: float = AT, user: str = "alice", stays: float = 1.0) -> tuple[Observation, ...]:
    """A client connects, its process is read, and it exits."""
    return (
        *server_log(active(pid), at=at),
        process(pid, at=at + 0.1, user=user),
        exited(pid, at=at + stays),
    )


@pytest.mark.parametrize("known_first", [True, False])
def test_client_counts_once_in_either_order_of_connection_and_process(known_first: bool) -> None:
    reading, connects = process(cgroup=JOB_CGROUP), server_log(active())[0]
    seen = (reading, connects) if known_first else (connects, reading)
    present = reduced(*at_work(), *seen, reading, connects, clients(CLIENT, at=AT + 1)).node
    assert connected(present) == {"42": 1}


def test_client_of_unknown_workload_is_not_counted_for_a_process_that_reuses_its_pid() -> None:
    present = reduced(*at_work(CLIENT), clients(at=AT + 5), clients(at=AT + 7), process(at=AT + 8, user="bob")).node
    assert connected(present) == {}
    assert not present.unattributed


def test_reused_pid_counts_for_its_own_workload() -> None:
    again = process(ticks=2, at=AT + 5, user="bob")
    present = reduced(*at_work(CLIENT), process(ticks=1), again, *server_log(active(), at=AT + 6)).node
    assert connected(present) == {"alice": 1, "bob": 1}


def test_account_without_clients_is_removed_after_20_minutes() -> None:
    left = reduced(*at_work(), *connects_and_exits(CLIENT, stays=10 * MINUTE)).node
    ended = AT + 10 * MINUTE
    assert connected(reduced(look(at=ended + FORGOTTEN_SECONDS), start=left).node) == {"alice": 1}
    assert connected(reduced(look(at=ended + FORGOTTEN_SECONDS + 1), start=left).node) == {}


def test_account_with_a_client_is_not_removed() -> None:
    present = reduced(*at_work(CLIENT), process()).node
    for number in range(1, 5):
        present = reduced(look(at=AT + number * FORGOTTEN_SECONDS + number), start=present).node
    assert connected(present) == {"alice": 1}


def test_newest_accounts_remain_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_WORKLOADS", 3)
    sequences = (connects_and_exits(600 + number, at=AT + 10 * number, user=f"user{number}") for number in range(5))
    present = reduced(*at_work(), *(seen for sequence in sequences for seen in sequence)).node
    assert set(connected(present)) == {"user2", "user3", "user4"}


def faults(present: Node) -> dict[str, tuple[int, int]]:
    """Return for each workload how many faults affected it, and for how many it is suspected."""
    return {workload.name: (each.faults_affected, each.faults_suspected) for workload, each in present.accounts.items()}


def test_fault_without_known_workloads_has_no_account() -> None:
    unknown = faulted_client(600, None)
    assert processes.count_fault(node(), (unknown,)) == node()
    assert processes.count_end_of_fault(node(), (unknown,), suspect(600, 0.9, None)) == node()


def test_account_with_only_faults_is_removed_after_20_minutes() -> None:
    present = processes.count_fault(reduced(look()).node, (faulted_client(),))
    assert faults(reduced(look(at=AT + FORGOTTEN_SECONDS), start=present).node) == {"alice": (1, 0)}
    assert faults(reduced(look(at=AT + FORGOTTEN_SECONDS + 1), start=present).node) == {}


def test_account_with_only_faults_remains_while_its_workload_has_a_client() -> None:
    at_work_without_account = replace(reduced(*at_work(CLIENT), process()).node, accounts={})
    present = processes.count_fault(at_work_without_account, (faulted_client(),))
    for number in range(1, 4):
        present = reduced(look(at=AT + number * FORGOTTEN_SECONDS + number), start=present).node
    assert faults(present) == {"alice": (1, 0)}


def test_faults_of_too_many_workloads_are_limited_to_the_maximum_of_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_WORKLOADS", 3)
    hit = [faulted_client(600 + number, f"user{number}") for number in range(5)]
    present = processes.count_end_of_fault(processes.count_fault(node(), hit), (), suspect(600, 0.9, "user0"))
    assert set(faults(present)) == {"user3", "user4", "user0"}


@given(timelines)
@settings(max_examples=50)
def test_accounts_have_no_more_clients_than_connected(observations: list[Observation]) -> None:
    present = reduced(*observations).node
    total = sum(daemon.totals.connected for daemon in present.daemons.values())
    assert sum(connected(present).values()) + len(present.unattributed) <= total
    assert present.unattributed <= {pid for daemon in present.daemons.values() for pid in daemon.clients}
