"""Energy is posted by the device's own counter, in proportion to the SM time since its last reading."""

from dataclasses import replace

from exporter.model.accounting import UsageKey
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.usage import Method
from exporter.usage.accounting import LONGEST_GAP_SECONDS, UNATTRIBUTED, post_time
from tests.builders import AT, GPU, USER_ALICE, USER_BOB, gpu_reading, reduced

ALICES: UsageKey = (USER_ALICE, Method.FLIGHT)
BOBS: UsageKey = (USER_BOB, Method.FLIGHT)


def reads(millijoules: int, at: float = 0.0) -> GpuReading:
    return gpu_reading(energy_millijoules=millijoules, at=AT + at)


def ran(node: Node, parts: dict[UsageKey, float], busy_us: int = 1000) -> Node:
    return replace(node, usage_totals=post_time(node.usage_totals, GPU, busy_us, parts, at=node.at))


def posted(node: Node) -> dict[UsageKey, int]:
    return {key: used.energy_mj for key, used in node.usage_totals.gpus[GPU].by_account.items() if used.energy_mj}


def test_what_was_used_before_it_was_watched_is_on_no_account() -> None:
    """Nor what was used while the exporter was down."""
    assert posted(reduced(reads(10**9)).node) == {}


def test_who_ran_pays_in_proportion() -> None:
    node = ran(reduced(reads(100)).node, {ALICES: 0.6, BOBS: 0.2})
    assert posted(reduced(reads(1100, 10), start=node).node) == {ALICES: 600, BOBS: 200, UNATTRIBUTED: 200}


def test_nobody_pays_where_nobody_ran() -> None:
    assert posted(reduced(reads(100), reads(1100, 10)).node) == {UNATTRIBUTED: 1000}


def test_who_ran_before_the_last_reading_has_paid() -> None:
    node = reduced(reads(200, 10), start=ran(reduced(reads(100)).node, {ALICES: 1.0})).node
    node = reduced(reads(300, 20), start=ran(node, {BOBS: 1.0})).node
    assert posted(reduced(reads(400, 30), start=node).node) == {ALICES: 100, BOBS: 100, UNATTRIBUTED: 100}


def test_a_driver_that_begins_anew_is_counted_on() -> None:
    assert posted(reduced(reads(1000), reads(1500, 10), reads(200, 20), reads(300, 30)).node) == {UNATTRIBUTED: 800}


def test_what_was_read_twice_or_late_is_paid_once() -> None:
    assert posted(reduced(reads(1000), reads(1500, 10), reads(1500, 10), reads(1200, 5), reads(1600, 20)).node) == {
        UNATTRIBUTED: 600
    }


def test_who_ran_in_a_long_gap_is_not_known() -> None:
    node = ran(reduced(reads(100)).node, {ALICES: 1.0})
    assert posted(reduced(reads(900, LONGEST_GAP_SECONDS + 1), start=node).node) == {UNATTRIBUTED: 800}


def test_a_part_too_small_for_a_millijoule_is_not_lost() -> None:
    node = ran(reduced(reads(0)).node, {ALICES: 0.5, BOBS: 0.5})
    node = reduced(reads(1, 1), start=node).node
    assert sum(posted(node).values()) == 1
