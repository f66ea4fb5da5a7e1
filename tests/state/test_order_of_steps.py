"""The order in which the reducer takes its steps: its docstring states why."""

import pytest

from exporter import reducer
from exporter.model.node import Node
from exporter.reducer import finish, reduce
from tests.builders import (
    CLIENT,
    gpu_reading,
)

STEPS = [
    "xids.count_unmatched", "_resolve_by_time", "_take", "_decide_claims", "state_processes.count_events",
    "incidents.track", "deaths.track", "xids.report_unclaimed", "state_processes.identify",
    "attribution.attribute", "accounting.account",
]  # fmt: skip


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that were taken, in their order."""
    names: list[str] = []
    for name in STEPS:
        module, _, function = name.rpartition(".")
        owner = getattr(reducer, module) if module else reducer
        step = getattr(owner, function)
        monkeypatch.setattr(
            owner, function, lambda *args, _step=step, _name=name, **more: names.append(_name) or _step(*args, **more)
        )
    return names


def test_each_observation_takes_all_steps_in_order(taken: list[str]) -> None:
    reduce(Node(), gpu_reading((CLIENT,)))

    assert taken == STEPS


def test_the_end_of_a_recording_takes_no_step_that_needs_an_observation(taken: list[str]) -> None:
    finish(Node())

    assert taken == [
        step for step in STEPS if step not in ("_take", "state_processes.identify", "attribution.attribute")
    ]
