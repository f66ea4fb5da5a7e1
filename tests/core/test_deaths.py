"""Who has died lately, and how, as far as it was seen."""

from dataclasses import replace

import pytest

from exporter.model.incident import Death
from exporter.model.observation import KernelRecord, Observation
from exporter.state import poll_schedule
from exporter.state.processes import DYING_SECONDS, MOST_DEATHS, REMEMBERED_SECONDS
from tests.builders import (
    AT,
    CLIENT,
    active,
    at_work,
    clients,
    exited,
    gpu_reading,
    look,
    process,
    reduced,
    server_log,
    servers,
)

KILLED, SEGMENTATION_FAULT, EXIT_7 = 9, 11, 7 << 8
READING = process()


def out_of_memory(pid: int = CLIENT, *, at: float = AT, prefix: int = 3, name: str = "train.py") -> KernelRecord:
    """The kernel says whom it killed."""
    text = f"Memory cgroup out of memory: Killed process {pid} ({name}) total-vm:9kB, anon-rss:8kB, file-rss:0kB"
    return KernelRecord(at=at, record=f"{prefix},360,27859548,-;{text}")


def death(*seen: Observation) -> Death | None:
    """What is known of the client's end."""
    return reduced(servers(), READING, *seen).node.deaths.get(CLIENT)


# -- exits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [None, 0, KILLED, SEGMENTATION_FAULT, EXIT_7])
def test_who_has_exited_is_remembered_with_who_it_was_and_how_it_ended(status: int | None) -> None:
    gone = replace(exited(at=AT + 1), wait_status=status)

    assert death(gone) == Death(
        at=AT + 1, pid=CLIENT, start_ticks=READING.start_ticks, process=READING, wait_status=status
    )


def test_of_one_that_was_never_read_there_is_its_identity() -> None:
    (known,) = reduced(replace(exited(700), wait_status=KILLED)).node.deaths.values()

    assert known == Death(at=AT, pid=700, start_ticks=70_000, wait_status=KILLED)


def test_the_exit_of_one_that_had_the_pid_before_is_not_this_ones() -> None:
    assert death(exited(ticks=1)) is None


def test_whoever_lost_its_pid_to_another_has_died_somehow() -> None:
    reused = process(ticks=7, at=AT + 1)

    assert death(reused) == Death(at=AT + 1, pid=CLIENT, start_ticks=READING.start_ticks, process=READING)


def test_who_is_told_of_twice_has_died_once() -> None:
    """The second one knows nothing more."""
    first = replace(exited(at=AT + 1), wait_status=KILLED)

    assert death(first, exited(at=AT + 2)) == death(first)


# -- memory --------------------------------------------------------------------------------------------------------


def test_whom_the_kernel_killed_for_memory_is_known_whichever_comes_first() -> None:
    gone, killed = replace(exited(at=AT + 1), wait_status=KILLED), out_of_memory(at=AT + 1)

    for seen in ((gone, killed), (killed, gone)):
        known = death(*seen)
        assert known is not None
        assert (known.process, known.wait_status, known.out_of_memory) == (READING, KILLED, True)


def test_one_that_nobody_watched_is_known_too() -> None:
    assert reduced(out_of_memory(700)).node.deaths == {700: Death(at=AT, pid=700, out_of_memory=True)}


def test_another_that_had_its_pid_long_before_was_not_killed() -> None:
    later = AT + DYING_SECONDS + 1
    known = death(exited(), out_of_memory(at=later))

    assert known == Death(at=later, pid=CLIENT, out_of_memory=True)


def test_one_that_was_killed_for_memory_is_not_the_next_one_with_its_pid() -> None:
    known = death(out_of_memory(), process(ticks=7, at=AT + 1), exited(ticks=7, at=AT + 2))

    assert known is not None
    assert (known.start_ticks, known.out_of_memory) == (7, False)


@pytest.mark.parametrize("prefix", [8, 11, 12, 30])
def test_what_a_program_writes_into_the_kernels_log_kills_nobody(prefix: int) -> None:
    assert death(out_of_memory(prefix=prefix)) is None


@pytest.mark.parametrize("name", ["", ") total-vm", "x): Killed process 1 (", "Out of memory: Killed process 1 ("])
def test_nor_does_a_name_kill_another(name: str) -> None:
    assert set(reduced(out_of_memory(name=name)).node.deaths) == {CLIENT}


# -- bounds --------------------------------------------------------------------------------------------------------


def test_the_dead_are_remembered_for_a_minute() -> None:
    assert death(exited(), look(at=AT + REMEMBERED_SECONDS)) is not None
    assert death(exited(), look(at=AT + REMEMBERED_SECONDS + 1)) is None


def test_and_no_more_than_so_many() -> None:
    last = 10_000 + MOST_DEATHS + 9
    deaths = reduced(*(out_of_memory(pid) for pid in range(10_000, last + 1))).node.deaths

    assert len(deaths) == MOST_DEATHS
    assert last in deaths


# -- who just left is watched to its end ---------------------------------------------------------------------------


def test_a_client_whose_last_context_has_ended_is_watched_until_its_process_has() -> None:
    """Its exit status tells whether it was killed; the log is quicker."""
    ending = server_log(f"Client {{PID: {CLIENT}, Context ID: 1}} exit", at=AT + 1)
    gone = gpu_reading((), at=AT + 1.2)
    left = reduced(*at_work(), *server_log(active()), READING, *ending, gone).node

    assert CLIENT not in left.daemons["/tmp/nvidia-mps"].clients
    assert CLIENT in poll_schedule.processes_wanted(left)
    after = reduced(look(at=AT + 1.5), replace(exited(at=AT + 1.6), wait_status=KILLED), start=left).node
    assert after.deaths[CLIENT].process == READING
    assert after.deaths[CLIENT].wait_status == KILLED


def test_but_not_for_long() -> None:
    left = reduced(*at_work(CLIENT), clients(at=AT + 2), clients(at=AT + 4)).node

    assert CLIENT in poll_schedule.processes_wanted(left)
    assert CLIENT not in poll_schedule.processes_wanted(replace(left, at=AT + 4 + poll_schedule.EXIT_SECONDS + 1))
