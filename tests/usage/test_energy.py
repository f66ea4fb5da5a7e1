"""Energy is posted by the device's own counter, in proportion to the SM time since its last reading."""

from dataclasses import replace

from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.usage import Method, UsageKey
from exporter.usage.accounting import LONGEST_GAP_SECONDS, UNATTRIBUTED, post_time
from tests.builders import AT, GPU, USER_ALICE, USER_BOB, gpu_reading, reduced

ALICE: UsageKey = (USER_ALICE, Method.FLIGHT)
BOB: UsageKey = (USER_BOB, Method.FLIGHT)


def reading(millijoules: int, at: float = 0.0) -> GpuReading:
    return gpu_reading(energy_millijoules=millijoules, at=AT + at)


def ran(node: Node, parts: dict[UsageKey, float], busy_us: int = 1000) -> Node:
    return replace(node, usage_totals=post_time(node.usage_totals, GPU, busy_us, parts, at=node.at))


def posted(node: Node) -> dict[UsageKey, int]:
    return {key: used.energy_mj for key, used in node.usage_totals.gpus[GPU].by_account.items() if used.energy_mj}


def test_energy_before_the_first_reading_is_not_posted() -> None:
    """Neither is energy used while the exporter was down."""
    assert posted(reduced(reading(10**9)).node) == {}


def test_energy_is_divided_in_proportion_to_sm_time() -> None:
    node = ran(reduced(reading(100)).node, {ALICE: 0.6, BOB: 0.2})
    assert posted(reduced(reading(1100, 10), start=node).node) == {ALICE: 600, BOB: 200, UNATTRIBUTED: 200}


def test_energy_without_sm_time_is_unattributed() -> None:
    assert posted(reduced(reading(100), reading(1100, 10)).node) == {UNATTRIBUTED: 1000}


def test_energy_is_divided_by_the_sm_time_since_the_last_reading() -> None:
    node = reduced(reading(200, 10), start=ran(reduced(reading(100)).node, {ALICE: 1.0})).node
    node = reduced(reading(300, 20), start=ran(node, {BOB: 1.0})).node
    assert posted(reduced(reading(400, 30), start=node).node) == {ALICE: 100, BOB: 100, UNATTRIBUTED: 100}


def test_a_counter_reset_by_the_driver_does_not_reduce_the_total() -> None:
    assert posted(reduced(reading(1000), reading(1500, 10), reading(200, 20), reading(300, 30)).node) == {
        UNATTRIBUTED: 800
    }


def test_repeated_and_late_readings_count_once() -> None:
    assert posted(
        reduced(reading(1000), reading(1500, 10), reading(1500, 10), reading(1200, 5), reading(1600, 20)).node
    ) == {UNATTRIBUTED: 600}


def test_energy_of_a_long_gap_is_unattributed() -> None:
    node = ran(reduced(reading(100)).node, {ALICE: 1.0})
    assert posted(reduced(reading(900, LONGEST_GAP_SECONDS + 1), start=node).node) == {UNATTRIBUTED: 800}


def test_parts_below_a_millijoule_are_not_lost() -> None:
    node = ran(reduced(reading(0)).node, {ALICE: 0.5, BOB: 0.5})
    node = reduced(reading(1, 1), start=node).node
    assert sum(posted(node).values()) == 1
