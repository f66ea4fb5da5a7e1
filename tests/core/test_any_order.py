"""Whatever is seen, in whatever order: nothing raises, no counter falls, nothing contradicts itself."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.metrics.catalogue import NodeCollector
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import PollIntervals
from exporter.state import poll_schedule
from exporter.state.reducer import reduce
from exporter.view import View
from tests.builders import RECORDINGS, Recorded, node
from tests.core.invariants import assert_consistent, assert_only_grown, assert_told, counters
from tests.core.strategies import DAEMONS, timelines, untimely

SLICE = 150
"""Observations of a recording that are shuffled at a time."""


def live(present: Node, seen: list[Observation], every: int = 1) -> Node:
    """Take in all, and look after every so many whether all is well."""
    events: list[Event] = []
    before = counters(present)
    for number, each in enumerate(seen):
        present, told = reduce(present, each)
        events.extend(told)
        if number % every == 0:
            assert_consistent(present)
            after = counters(present)
            assert_only_grown(before, after)
            before = after
    assert_consistent(present)
    assert_told(present, events)
    return present


@given(timelines)
@settings(max_examples=100)
def test_any_life(seen: list[Observation]) -> None:
    present = live(node(*DAEMONS), seen)
    list(NodeCollector(View(present)).collect())
    for name in present.daemons:
        poll_schedule.commands(present, name, PollIntervals())
    poll_schedule.nvml_due(present, PollIntervals())
    assert all(pid > 0 for pid in poll_schedule.processes_wanted(present))


@given(untimely)
@settings(max_examples=50)
def test_any_life_under_a_clock_that_is_set_back(seen: list[Observation]) -> None:
    live(node(*DAEMONS), seen)


@given(st.sampled_from([each for each in RECORDINGS if each.name != "many_clients"]), st.data())
@settings(max_examples=30)
def test_a_shuffled_piece_of_a_real_life(recorded: Recorded, data: st.DataObject) -> None:
    seen = recorded.observations
    start = data.draw(st.integers(0, max(0, len(seen) - SLICE)))
    piece = list(seen[start : start + SLICE])
    data.draw(st.randoms(use_true_random=False)).shuffle(piece)
    live(node(), piece)


@pytest.mark.parametrize("recorded", [each for each in RECORDINGS if each.name != "many_clients"], ids=repr)
def test_a_whole_real_life_shuffled(recorded: Recorded) -> None:
    seen = list(recorded.observations)
    random.Random(recorded.name).shuffle(seen)
    live(node(), seen, every=20)


@pytest.mark.parametrize("recorded", RECORDINGS, ids=repr)
def test_a_real_life_as_it_was(recorded: Recorded) -> None:
    assert_consistent(recorded.story.node)
    assert_told(recorded.story.node, recorded.story.events)
