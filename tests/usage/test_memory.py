"""Memory use by account, in byte-milliseconds."""

import pytest

from exporter.model.node import Node
from exporter.model.observation import GpuReading, Observation
from exporter.model.usage import Account, SharedAccount
from exporter.reducer import reduce_all
from exporter.usage.accounting import LONGEST_GAP_SECONDS
from tests.builders import (
    AT,
    CLIENT,
    GPU,
    MIB,
    OTHER_GPU,
    SERVER,
    SERVER_BYTES,
    USER_ALICE,
    USER_BOB,
    active,
    at_work,
    clients,
    exited,
    failure,
    gpu_reading,
    process,
    reduced,
    server_log,
)

BYPASSING = 801
BYTES = 100 * MIB


def reading(at: float, mib: int = 100, *, pid: int = CLIENT, gpu: str = GPU) -> GpuReading:
    """Return a reading of a client's memory at this time."""
    return gpu_reading({pid: mib}, server=None, at=AT + at, gpu=gpu)


def alices(at: float = 0.0, *, pid: int = CLIENT) -> tuple[Observation, ...]:
    """Return the observations of a new client of Alice."""
    return (*server_log(active(pid), at=AT + at), process(pid, at=AT + at))


def held(*seen: Observation, start: Node | None = None) -> dict[Account, float]:
    """Return byte-seconds by account, on a node with a server."""
    return held_by(reduced(*at_work(), *seen, start=start).node)


def held_by(node: Node) -> dict[Account, float]:
    sums: dict[Account, float] = {}
    for usage in node.usage_totals.gpus.values():
        for account, amount in usage.memory_byte_ms.items():
            sums[account] = sums.get(account, 0) + amount / 1000
    return sums


def test_memory_counts_until_the_next_reading() -> None:
    assert held(*alices(), reading(0), reading(10, 300), reading(15)) == {USER_ALICE: 10 * BYTES + 5 * 3 * BYTES}


def test_the_end_of_a_recording_counts_memory_until_a_last_disconnect() -> None:
    """Only the log reports the disconnect, in the last line."""
    start = reduced(*at_work(), *alices(), reading(0)).node
    *_, (node, _) = reduce_all(start, server_log(f"Client process {CLIENT} disconnected", at=AT + 4))
    assert held_by(node)[USER_ALICE] == 4 * BYTES


def test_memory_counts_until_the_exit() -> None:
    assert held(*alices(), reading(0), exited(at=AT + 4), gpu_reading((), server=None, at=AT + 10)) == {
        USER_ALICE: 4 * BYTES
    }


def test_memory_ends_with_the_connection() -> None:
    leaves = (clients(at=AT + 3), clients(at=AT + 4))
    assert held(*alices(), reading(0), *leaves, exited(at=AT + 8)) == {USER_ALICE: 4 * BYTES}


def test_memory_of_a_new_client_counts_from_its_connection() -> None:
    assert held(reading(0, pid=CLIENT + 1), *alices(4), reading(10)).get(USER_ALICE) == 6 * BYTES


def test_memory_of_an_older_client_counts_from_the_reading() -> None:
    assert held(*alices(), gpu_reading((), server=None, at=AT + 5), reading(10)) == {USER_ALICE: 5 * BYTES}


def test_memory_of_other_processes_counts_from_the_reading() -> None:
    bypassing = (gpu_reading((), beside={BYPASSING: 100}, server=None, at=AT + at) for at in (0, 10))
    assert held(process(BYPASSING, user="bob"), *bypassing) == {USER_BOB: 10 * BYTES}


def test_memory_of_a_server_has_a_shared_account() -> None:
    readings = (gpu_reading((), at=AT + at) for at in (0, 10))
    assert held(process(SERVER, user="root"), *readings) == {SharedAccount.SERVER: 10 * SERVER_BYTES}


def test_memory_of_an_exited_server_has_a_shared_account() -> None:
    seen = (process(SERVER, user="root"), gpu_reading((), at=AT), exited(SERVER, at=AT + 3))
    assert held(*seen) == {SharedAccount.SERVER: 3 * SERVER_BYTES}


def test_memory_on_two_gpus_counts_on_both() -> None:
    seen = (reading(0), reading(0, 300, gpu=OTHER_GPU), exited(at=AT + 2))
    assert held(*alices(), *seen) == {USER_ALICE: 2 * BYTES + 2 * 3 * BYTES}


def test_the_workload_can_become_known_later() -> None:
    connects, known = alices()
    assert held(connects, reading(0), process(at=AT + 0.5), reading(10)) == {USER_ALICE: 10 * BYTES}
    assert held(connects, reading(0), reading(10)) == {SharedAccount.UNATTRIBUTED: 10 * BYTES}
    assert known == process()


def test_a_reused_pid_has_another_account() -> None:
    """Memory of the earlier process counts until its exit was observed."""
    another = process(ticks=7, at=AT + 4, user="bob")
    assert held(*alices(), reading(0), another, *server_log(active(), at=AT + 5), reading(10)) == {
        USER_ALICE: 4 * BYTES,
        USER_BOB: 5 * BYTES,
    }


@pytest.mark.parametrize("again", [reading(10), reading(7), reading(10, 900)], ids=["doubled", "late", "changed"])
def test_a_repeated_or_late_reading_counts_once(again: GpuReading) -> None:
    assert held(*alices(), reading(0), reading(10), again, reading(15)) == {USER_ALICE: 15 * BYTES}


def test_a_failed_reading_counts_nothing() -> None:
    failed = GpuReading(at=AT + 5, gpu=GPU, problem=failure("lost"))
    assert held(*alices(), reading(0), failed, reading(10)) == {USER_ALICE: 10 * BYTES}


def test_a_long_gap_counts_nothing() -> None:
    gap = LONGEST_GAP_SECONDS + 1
    assert held(*alices(), reading(0), reading(gap), reading(gap + 5)) == {USER_ALICE: 5 * BYTES}


def test_a_clock_that_goes_back_starts_a_new_interval() -> None:
    back = -2 * LONGEST_GAP_SECONDS
    assert held(*alices(), reading(0), reading(back), reading(back + 5)) == {USER_ALICE: 5 * BYTES}


def test_a_late_exit_with_an_early_time_counts_once() -> None:
    """An exit can be observed after a reading with a later time."""
    gone = gpu_reading((), server=None, at=AT + 12)
    assert held(*alices(), reading(0), reading(10), exited(at=AT + 9), gone) == {USER_ALICE: 10 * BYTES}
