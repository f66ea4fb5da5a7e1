"""What lasts has an event when it begins and one when it ends, and a flood of them displaces nothing else."""

from collections.abc import Sequence

import pytest

from exporter.history import MAX_TIMELINE, History
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.report.node_findings import findings
from exporter.report.problems import NodeProblem
from exporter.usage.contention import STARVED_SECONDS
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    GPU_BYTES,
    PAUSED,
    at_work,
    contended,
    failure,
    gpu_reading,
    idle,
    look,
    looks,
    memory_filled,
    process,
    reduced,
    three_clients,
)

FAILS = failure("no driver", ReasonCode.DRIVER_NOT_LOADED)
LOST = failure("GPU is lost", ReasonCode.GPU_LOST)
NVML = [EventName.NVML_FAILED, EventName.NVML_RECOVERED]


def collections(*problems: Reason | None) -> list[Observation]:
    """Return collections of NVML, ten seconds after each other."""
    return [look(at=AT + 10 * number, problem=problem) for number, problem in enumerate(problems, start=1)]


@pytest.mark.parametrize(
    ("problems", "expected"),
    [
        ((FAILS, FAILS, None), NVML),
        ((None, FAILS, None, FAILS), [*NVML, NVML[0]]),
        ((LOST, None), []),
        ((PAUSED, None), []),
        ((FAILS, PAUSED, FAILS, None), NVML),
    ],
    ids=["fails once", "fails twice", "another GPU is lost", "is paused", "is paused meanwhile"],
)
def test_a_failure_of_nvml_is_an_event_when_it_begins_and_ends(
    problems: Sequence[Reason | None], expected: list[EventName]
) -> None:
    after = reduced(*collections(*problems), start=idle())
    assert after.names(EventName.GPU_LOST) == expected
    assert all(each.gpu is None and each.daemon is None for each in after.events if each.event in NVML)


def test_a_failure_of_nvml_has_its_beginning_and_reason() -> None:
    after = reduced(*collections(None, FAILS, FAILS, FAILS), start=idle())
    (event,) = after.of(EventName.NVML_FAILED)
    assert (event.at, event.reason) == (AT + 20, FAILS)
    (found,) = (each for each in findings(after.node, AT + 50) if each.problem is NodeProblem.EXPORTER_CANNOT_COLLECT)
    assert (found.since, found.text.partition(":")[0]) == (
        AT + 20,
        "CUDA MPS exporter has been unable for 30 s to collect nvml",
    )


def test_nvml_that_never_worked_is_no_event() -> None:
    assert reduced(*collections(FAILS, FAILS, None)).names() == []


# -- memory ----------------------------------------------------------------------------------------------------------


def filled(at: float, megabytes: int = 25_000) -> tuple[Observation, ...]:
    """Return a reading of a GPU that a workload fills, unless much of its memory is free."""
    return gpu_reading({600: 20_000, 601: (GPU_BYTES >> 20) - 66 - megabytes}, at=at), look(at=at)


def free(at: float) -> tuple[Observation, ...]:
    return filled(at, 60_000)


def two_users(first: str = "u600") -> Node:
    owners = process(600, user=first), process(601, user="u601")
    return reduced(*at_work(600, 601), *owners, *looks()).node


def test_a_filled_gpu_is_an_event_when_it_begins_and_ends() -> None:
    after = reduced(*free(AT + 10), *filled(AT + 20), *filled(AT + 30), *free(AT + 40), start=two_users())
    assert [(each.event, each.at, each.gpu, each.daemon, each.pid, each.user) for each in after.events] == [
        (EventName.MEMORY_FILLED, AT + 20, GPU, DAEMON, 601, "u601"),
        (EventName.MEMORY_FREED, AT + 40, GPU, DAEMON, 601, "u601"),
    ]
    assert not reduced(*filled(AT + 20), start=two_users("u601")).events, "it takes the memory of no other workload"


def test_the_finding_has_the_beginning_unless_that_may_be_before_the_exporter() -> None:
    def since(present: Node) -> float | None:
        (found,) = (each for each in findings(present, present.at) if each.problem is NodeProblem.WORKLOAD_FILLS_MEMORY)
        return found.since

    assert since(reduced(*free(AT + 10), *filled(AT + 20), *filled(AT + 30), start=two_users()).node) == AT + 20
    assert since(memory_filled()) is None


def test_it_is_unknown_whether_memory_is_still_filled_while_nvml_fails() -> None:
    failing = reduced(*filled(AT + 20), look(at=AT + 30, problem=FAILS), start=two_users())
    assert failing.names() == [EventName.MEMORY_FILLED, EventName.NVML_FAILED]
    assert reduced(*filled(AT + 40), start=failing.node).names() == [EventName.NVML_RECOVERED]
    assert reduced(*free(AT + 40), start=failing.node).names() == [EventName.MEMORY_FREED, EventName.NVML_RECOVERED]


def test_a_flood_of_filled_gpus_displaces_no_events_of_others() -> None:
    history, present = History(), two_users()
    kept = [Event(at=AT, event=name, daemon="/run/other") for name in (EventName.DAEMON_LOST, EventName.CLIENT_REFUSED)]
    kept.append(Event(at=AT, event=EventName.DAEMON_LOST, daemon=DAEMON))
    history.add(present, kept)
    for number in range(1, 2 * MAX_TIMELINE):
        after = reduced(*(filled if number % 2 else free)(AT + 10 * number), start=present)
        present = after.node
        history.add(present, after.events)
    assert set(kept) <= set(history.timeline)
    assert len(history.timeline) <= 2 * MAX_TIMELINE


# -- starved clients -------------------------------------------------------------------------------------------------


def test_each_starved_client_is_an_event_when_it_begins_and_ends() -> None:
    present = replace(contended(three_clients(), 601, 600), at=AT + 700)
    state = replace(present.contention[GPU], starved_since={601: AT, 602: AT + 1, 777: AT + 600})
    windows = tuple(replace(each, at=AT + 700) for each in state.windows)
    present = replace(present, contention={GPU: replace(state, windows=windows)})
    begun = reduced(look(at=AT + 700), look(at=AT + 710), start=present)
    events = begun.of(EventName.CLIENT_STARVED)
    assert [(each.pid, each.gpu, each.daemon) for each in events] == [(601, GPU, DAEMON), (602, GPU, DAEMON)]
    assert all(each.at - STARVED_SECONDS >= AT for each in events)
    assert reduced(look(at=AT + 710), start=begun.node).events == ()
    assert reduced(look(at=AT + 900), start=begun.node).names() == [EventName.CLIENT_NOT_STARVED] * 2
