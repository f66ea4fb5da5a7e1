"""Memory is on the account of who holds it, as long as it is known: to the byte and the millisecond."""

import pytest

from exporter.model.accounting import Account, SharedAccount
from exporter.model.node import Node
from exporter.model.observation import GpuReading, Observation
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

STRANGER = 801
BYTES = 100 * MIB


def reads(at: float, mib: int = 100, *, pid: int = CLIENT, gpu: str = GPU) -> GpuReading:
    """NVML reads a client's memory, at so many seconds."""
    return gpu_reading({pid: mib}, server=None, at=AT + at, gpu=gpu)


def alices(at: float = 0.0, *, pid: int = CLIENT) -> tuple[Observation, ...]:
    """A client of hers connects."""
    return (*server_log(active(pid), at=AT + at), process(pid, at=AT + at))


def held(*seen: Observation, start: Node | None = None) -> dict[Account, float]:
    """Byte-seconds, of a node where a server is at work."""
    node = reduced(*at_work(), *seen, start=start).node
    sums: dict[Account, float] = {}
    for usage in node.usage_totals.gpus.values():
        for account, amount in usage.memory_byte_ms.items():
            sums[account] = sums.get(account, 0) + amount / 1000
    return sums


def test_it_is_held_from_one_reading_to_the_next_as_the_first_has_it() -> None:
    assert held(*alices(), reads(0), reads(10, 300), reads(15)) == {USER_ALICE: 10 * BYTES + 5 * 3 * BYTES}


def test_who_leaves_holds_it_until_that_was_seen() -> None:
    assert held(*alices(), reads(0), exited(at=AT + 4), gpu_reading((), server=None, at=AT + 10)) == {
        USER_ALICE: 4 * BYTES
    }


def test_who_disconnects_holds_none_though_the_process_lives() -> None:
    leaves = (clients(at=AT + 3), clients(at=AT + 4))
    assert held(*alices(), reads(0), *leaves, exited(at=AT + 8)) == {USER_ALICE: 4 * BYTES}


def test_who_came_between_holds_it_from_when_it_was_a_client() -> None:
    assert held(reads(0, pid=CLIENT + 1), *alices(4), reads(10)).get(USER_ALICE) == 6 * BYTES


def test_who_was_a_client_before_but_held_none_then_holds_it_since_that_was_read() -> None:
    assert held(*alices(), gpu_reading((), server=None, at=AT + 5), reads(10)) == {USER_ALICE: 5 * BYTES}


def test_who_is_no_client_holds_it_from_when_it_was_read() -> None:
    beside = (gpu_reading((), beside={STRANGER: 100}, server=None, at=AT + at) for at in (0, 10))
    assert held(process(STRANGER, user="bob"), *beside) == {USER_BOB: 10 * BYTES}


def test_a_server_is_nobodys() -> None:
    readings = (gpu_reading((), at=AT + at) for at in (0, 10))
    assert held(process(SERVER, user="root"), *readings) == {SharedAccount.SERVER: 10 * SERVER_BYTES}


def test_a_server_that_has_gone_was_nobodys() -> None:
    seen = (process(SERVER, user="root"), gpu_reading((), at=AT), exited(SERVER, at=AT + 3))
    assert held(*seen) == {SharedAccount.SERVER: 3 * SERVER_BYTES}


def test_on_two_gpus_it_is_held_on_both() -> None:
    seen = (reads(0), reads(0, 300, gpu=OTHER_GPU), exited(at=AT + 2))
    assert held(*alices(), *seen) == {USER_ALICE: 2 * BYTES + 2 * 3 * BYTES}


def test_whose_it_is_may_be_known_later() -> None:
    connects, known = alices()
    assert held(connects, reads(0), process(at=AT + 0.5), reads(10)) == {USER_ALICE: 10 * BYTES}
    assert held(connects, reads(0), reads(10)) == {SharedAccount.UNATTRIBUTED: 10 * BYTES}
    assert known == process()


def test_a_pid_that_another_has_now_is_anothers_account() -> None:
    """Whoever had it before held memory until that was seen."""
    another = process(ticks=7, at=AT + 4, user="bob")
    assert held(*alices(), reads(0), another, *server_log(active(), at=AT + 5), reads(10)) == {
        USER_ALICE: 4 * BYTES,
        USER_BOB: 5 * BYTES,
    }


@pytest.mark.parametrize("again", [reads(10), reads(7), reads(10, 900)], ids=["doubled", "late", "changed"])
def test_what_was_read_twice_or_late_is_held_once(again: GpuReading) -> None:
    assert held(*alices(), reads(0), reads(10), again, reads(15)) == {USER_ALICE: 15 * BYTES}


def test_a_failed_reading_says_nothing() -> None:
    failed = GpuReading(at=AT + 5, gpu=GPU, problem=failure("lost"))
    assert held(*alices(), reads(0), failed, reads(10)) == {USER_ALICE: 10 * BYTES}


def test_what_was_in_a_long_gap_is_not_known() -> None:
    gap = LONGEST_GAP_SECONDS + 1
    assert held(*alices(), reads(0), reads(gap), reads(gap + 5)) == {USER_ALICE: 5 * BYTES}


def test_a_clock_that_is_set_back_begins_anew() -> None:
    back = -2 * LONGEST_GAP_SECONDS
    assert held(*alices(), reads(0), reads(back), reads(back + 5)) == {USER_ALICE: 5 * BYTES}


def test_what_leaves_late_in_the_story_but_early_in_time_is_held_once() -> None:
    """An exit may be told after a reading that was made later."""
    gone = gpu_reading((), server=None, at=AT + 12)
    assert held(*alices(), reads(0), reads(10), exited(at=AT + 9), gone) == {USER_ALICE: 10 * BYTES}
