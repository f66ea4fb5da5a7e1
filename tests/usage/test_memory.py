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


def test_the_end_of_a_recording_counts_memory_until_a_last_disconnect() -> None:
    """Only the log reports the disconnect, in the last line."""
    start = reduced(*at_work(), *alices(), reading(0)).node
    *_, (node, _) = reduce_all(start, server_log(f"Client process {CLIENT} disconnected", at=AT + 4))
    assert held_by(node)[USER_ALICE] == 4 * BYTES


def test_memory_counts_while_a_client_holds_it(subtests: pytest.Subtests) -> None:
    gone = gpu_reading((), server=None, at=AT + 10)
    connects, known = alices()
    leaves = (clients(at=AT + 3), clients(at=AT + 4))
    assert known == process()
    for case, seen, expected in [
        ("until the next reading", (*alices(), reading(0), reading(10, 300), reading(15)), 10 + 5 * 3),
        ("until the exit", (*alices(), reading(0), exited(at=AT + 4), gone), 4),
        ("until the end of the connection", (*alices(), reading(0), *leaves, exited(at=AT + 8)), 4),
        ("from the reading", (*alices(), gpu_reading((), server=None, at=AT + 5), reading(10)), 5),
        ("on both GPUs", (*alices(), reading(0), reading(0, 300, gpu=OTHER_GPU), exited(at=AT + 2)), 2 + 2 * 3),
        ("of a workload that is known later", (connects, reading(0), process(at=AT + 0.5), reading(10)), 10),
    ]:
        with subtests.test(case=case):
            assert held(*seen) == {USER_ALICE: expected * BYTES}


def test_memory_of_a_new_client_counts_from_its_connection() -> None:
    assert held(reading(0, pid=CLIENT + 1), *alices(4), reading(10)).get(USER_ALICE) == 6 * BYTES


def test_a_reading_counts_once(subtests: pytest.Subtests) -> None:
    """Also if it comes again, late, or after a gap. Then it is unknown what was held in between."""
    gap, back = LONGEST_GAP_SECONDS + 1, -2 * LONGEST_GAP_SECONDS
    failed = GpuReading(at=AT + 5, gpu=GPU, problem=failure("lost"))
    for case, seen, seconds in [
        ("doubled", (reading(10), reading(10), reading(15)), 15),
        ("late", (reading(10), reading(7), reading(15)), 15),
        ("changed", (reading(10), reading(10, 900), reading(15)), 15),
        ("failed", (failed, reading(10)), 10),
        ("after a long gap", (reading(gap), reading(gap + 5)), 5),
        ("after the clock was set back", (reading(back), reading(back + 5)), 5),
        # An exit can be observed after a reading with a later time.
        ("late exit", (reading(10), exited(at=AT + 9), gpu_reading((), server=None, at=AT + 12)), 10),
    ]:
        with subtests.test(case=case):
            assert held(*alices(), reading(0), *seen) == {USER_ALICE: seconds * BYTES}


def test_memory_of_other_processes_counts_from_the_reading() -> None:
    bypassing = (gpu_reading((), beside={BYPASSING: 100}, server=None, at=AT + at) for at in (0, 10))
    assert held(process(BYPASSING, user="bob"), *bypassing) == {USER_BOB: 10 * BYTES}


def test_memory_of_a_server_has_a_shared_account() -> None:
    """Also after it has exited."""
    first, second = (gpu_reading((), at=AT + at) for at in (0, 10))
    server = process(SERVER, user="root")
    assert held(server, first, second) == {SharedAccount.SERVER: 10 * SERVER_BYTES}
    assert held(server, first, exited(SERVER, at=AT + 3)) == {SharedAccount.SERVER: 3 * SERVER_BYTES}


def test_memory_of_an_unknown_workload_is_unattributed() -> None:
    connects, _ = alices()
    assert held(connects, reading(0), reading(10)) == {SharedAccount.UNATTRIBUTED: 10 * BYTES}


def test_a_reused_pid_has_another_account() -> None:
    """Memory of the earlier process counts until its exit was observed."""
    another = process(ticks=7, at=AT + 4, user="bob")
    assert held(*alices(), reading(0), another, *server_log(active(), at=AT + 5), reading(10)) == {
        USER_ALICE: 4 * BYTES,
        USER_BOB: 5 * BYTES,
    }
