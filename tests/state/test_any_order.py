"""Observations in any order: no exception, no decreasing counter, no inconsistent node."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.metrics.catalogue import NodeCollector
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import PollIntervals
from exporter.reducer import reduce
from exporter.state import poll_schedule
from exporter.view import View
from tests.builders import RECORDINGS, Recorded, node
from tests.state.invariants import assert_consistent, assert_counts_match_events, assert_only_grown, counters
from tests.state.strategies import DAEMONS, timelines, untimely

SLICE = 150
"""Number of observations of a recording that are shuffled together."""


def reduce_and_check(present: Node, seen: list[Observation], every: int = 1) -> Node:
    """Reduce the observations, and check the node after every few of them."""
    events: list[Event] = []
    before = counters(present)
    for number, each in enumerate(seen):
        present, added = reduce(present, each)
        events.extend(added)
        if number % every == 0:
            assert_consistent(present)
            after = counters(present)
            assert_only_grown(before, after)
            before = after
    assert_consistent(present)
    assert_counts_match_events(present, events)
    return present


@given(timelines)
@settings(max_examples=100)
def test_random_observations_keep_the_node_consistent(seen: list[Observation]) -> None:
    present = reduce_and_check(node(*DAEMONS), seen)
    list(NodeCollector(View(present)).collect())
    for name in present.daemons:
        poll_schedule.commands(present, name, PollIntervals())
    poll_schedule.nvml_due(present, PollIntervals())
    assert all(pid > 0 for pid in poll_schedule.processes_wanted(present))


@given(untimely)
@settings(max_examples=50)
def test_random_observations_with_a_clock_that_is_set_back(seen: list[Observation]) -> None:
    reduce_and_check(node(*DAEMONS), seen)


@given(st.sampled_from([each for each in RECORDINGS if each.name != "many_clients"]), st.data())
@settings(max_examples=30)
def test_shuffled_part_of_a_recording(recorded: Recorded, data: st.DataObject) -> None:
    seen = recorded.observations
    start = data.draw(st.integers(0, max(0, len(seen) - SLICE)))
    piece = list(seen[start : start + SLICE])
    data.draw(st.randoms(use_true_random=False)).shuffle(piece)
    reduce_and_check(node(), piece)


def test_shuffled_recording(subtests: pytest.Subtests) -> None:
    for recorded in [each for each in RECORDINGS if each.name != "many_clients"]:
        with subtests.test(recorded=recorded):
            seen = list(recorded.observations)
            random.Random(recorded.name).shuffle(seen)
            reduce_and_check(node(), seen, every=20)
