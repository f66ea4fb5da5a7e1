"""Planned failures of the demo happen at their time. If the demo is calm, no others happen."""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice

import pytest

from exporter.cli import main
from exporter.demo.simulation import FAILURES, PlannedFailure, Simulation, parse_planned
from exporter.errors import ConfigError
from exporter.model.event import EventName
from exporter.model.server import RefusalReason, ServerState
from exporter.model.watchdog import Condition
from exporter.report.node_status import document_of
from exporter.usage.capacity import gpu_sharing
from tests.builders import AT, Reduced
from tests.clocks import HandClock
from tests.report.test_document import assert_valid
from tests.simulated import ACTING, MINUTE, POLICY, minutes

PAST, AFTER, SECONDS = 30.0, 2.0, 73.0
DURING, OVER = (1, 2), 3
"""Minutes in which the failure lasts, and one in which the node has recovered from it. Minute 0 is before it."""


@cache
def calm_minutes(failure: str | None) -> tuple[Reduced, ...]:
    """Some minutes of a calm node, with or without a failure."""
    clock = HandClock(AT)
    # Other failures are reported without probes, which take most of the time.
    simulation = Simulation(1, clock, calm=True, past=PAST, probes=failure == "noisy-neighbour")
    # A circuit opens only after restarts.
    each_minute = minutes(clock, simulation, ACTING if failure == "daemon-keeps-dying" else POLICY)
    past = next(each_minute)
    if failure is not None:
        seconds = SECONDS if FAILURES[failure].lasts else 0.0
        simulation.plan([PlannedFailure(after=AFTER, failure=failure, seconds=seconds)])
    return (past, *islice(each_minute, OVER))


def has(*names: EventName) -> Callable[[Reduced], bool]:
    return lambda minute: set(names) <= set(minute.names())


def is_diagnosed(condition: Condition) -> Callable[[Reduced], bool]:
    return lambda minute: any(
        watch.diagnosis is not None and watch.diagnosis.condition is condition for watch in minute.node.watches.values()
    )


def is_held_up(minute: Reduced) -> bool:
    held = [incident for incident in minute.node.incidents.values() if incident.open and len(incident.blockers) == 1]
    return any(minute.daemon.servers[incident.server].state is ServerState.FAULT for incident in held)


def is_full(minute: Reduced) -> bool:
    return any(event.reason == RefusalReason.LIMIT for event in minute.of(EventName.CLIENT_REFUSED))


def has_little_memory(minute: Reduced) -> bool:
    readings = (gpu.reading for gpu in minute.node.gpus.values())
    return any((each.memory_used_bytes or 0) > 0.95 * (each.memory_total_bytes or 0) for each in readings)


def is_slowed_by_a_stream(minute: Reduced) -> bool:
    clients = [each for sharing in gpu_sharing(minute.node).values() for each in sharing.clients]
    causes = [each.slowdown.neighbours[:1] for each in clients if each.slowdown is not None and each.is_slowed]
    return any(minute.node.processes[pid].command == "etl-scan" for ((pid, _),) in filter(None, causes))


REPORTED: Mapping[str, Callable[[Reduced], bool]] = {
    "fault": has(EventName.FAULT, EventName.FAULT_RECOVERED),
    "fault-held": is_held_up,
    "contained-fault": has(EventName.CLIENT_FAULT_CONTAINED),
    "hardware-xid": has(EventName.GPU_XID, EventName.DAEMON_QUARANTINED),
    "daemon-restarts": has(EventName.DAEMON_LOST, EventName.DAEMON_UP),
    "daemon-dies": is_diagnosed(Condition.DOWN),
    "daemon-keeps-dying": has(EventName.CIRCUIT_OPENED),
    "daemon-hangs": is_diagnosed(Condition.UNRESPONSIVE),
    "session-held": is_diagnosed(Condition.HELD),
    "servers-crash": is_diagnosed(Condition.CRASH_LOOP),
    "server-full": is_full,
    "user-waits": lambda minute: any(daemon.connections.waiting for daemon in minute.node.daemons.values()),
    "limits-drift": has(EventName.LIMITS_DRIFTED),
    "bypass": has(EventName.PROCESS_BYPASSING),
    "memory-full": has_little_memory,
    "noisy-neighbour": is_slowed_by_a_stream,
    "unknown-line": lambda minute: sum(minute.daemon.totals.log_lines_unrecognized.values()) == 1,
    "nvml-fails": lambda minute: minute.node.sources["nvml"].last.problem is not None,
}


def test_a_planned_failure_is_reported_for_its_duration(subtests: pytest.Subtests) -> None:
    """The reducer reports it as it would for a real node. Without the plan it is absent, and then the node recovers."""
    for failure in list(FAILURES):
        with subtests.test(failure=failure):
            during = calm_minutes(failure)
            assert_valid(document_of(during[1].node, POLICY))
            assert any(REPORTED[failure](during[number]) for number in DURING)

            # A fault that recovers by itself does not last either.
            others = calm_minutes("fault" if failure == "fault-held" else None)
            assert not any(REPORTED[failure](minute) for minute in (during[0], *others[1:]))

            last = during[OVER].node
            found = [watch.diagnosis for watch in last.watches.values()]
            assert [each and each.condition for each in found] == [Condition.WELL] * 3
            assert not any(incident.open for incident in last.incidents.values())
            assert last.sources["nvml"].last.problem is None
            assert not any(daemon.connections.waiting for daemon in last.daemons.values())


def test_a_calm_demo_has_clients_and_no_failures() -> None:
    assert {event.event for minute in calm_minutes(None) for event in minute.events} == {
        EventName.DAEMON_UP,
        EventName.LIMITS_IN_FORCE,
        EventName.SERVER_STARTED,
        EventName.SERVER_STATE,
        EventName.CLIENT_CONNECTED,
        EventName.CLIENT_DISCONNECTED,
    }


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("30s:daemon-restarts", PlannedFailure(after=30, failure="daemon-restarts")),
        ("2m:fault-held:90s", PlannedFailure(after=120, failure="fault-held", seconds=90)),
        ("0:bypass", PlannedFailure(after=0, failure="bypass", seconds=FAILURES["bypass"].lasts)),
    ],
)
def test_parses_a_planned_failure(text: str, plan: PlannedFailure) -> None:
    assert parse_planned(text) == plan


def test_names_the_reason_that_a_planned_failure_is_invalid(subtests: pytest.Subtests) -> None:
    for text, problem in [
        ("", "expected WHEN:WHAT"),
        ("30s", "expected WHEN:WHAT"),
        ("30s:earthquake", "expected WHEN:WHAT"),
        ("fault:30s", "expected WHEN:WHAT"),
        (":fault", "expected a duration"),
        ("soon:fault", "expected a duration"),
        ("-1s:fault", "expected a duration"),
        ("30s:daemon-dies:", "expected a duration"),
        ("30s:daemon-dies:long", "expected a duration"),
        ("30s:fault:10s", "has no duration"),
    ]:
        with subtests.test(text=text, problem=problem), pytest.raises(ConfigError, match=problem):
            parse_planned(text)


def test_an_invalid_plan_is_an_error_before_the_demo_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists all failures."""
    assert main(("demo", "--at", "30s:\x1b[31m")) == 2
    error = capsys.readouterr().err
    assert "\x1b" not in error
    assert all(failure in error for failure in FAILURES)


assert MINUTE < AFTER + SECONDS < 2 * MINUTE < OVER * MINUTE
