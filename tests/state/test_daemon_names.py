"""One pipe directory is one daemon. The configuration's name has precedence over a unit's, and that over the path."""

from collections.abc import Iterable
from typing import Any

import pytest

from exporter.model.daemon import FORGOTTEN_SECONDS, Daemon, Declaration, NamedBy
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, DaemonProcess, LogFile, Observation, ProcessExit, SourceReading
from exporter.model.reason import Reason
from exporter.reducer import reduce
from exporter.view import View
from tests.builders import AT, CLIENT, CONTROL, DAEMON, HANGS, Reduced, at_work, daemon_process, exited, look, reduced

UNIT, CONFIGURED, DISCOVERED = NamedBy.UNIT, NamedBy.CONFIGURATION, NamedBy.DISCOVERED


def found(
    name: str = DAEMON,
    by: NamedBy = DISCOVERED,
    *,
    directory: str = DAEMON,
    expected: bool | None = None,
    at: float = AT,
    unit: str | None = None,
    limit: int | None = None,
) -> DaemonFound:
    return DaemonFound(
        at=at,
        daemon=name,
        pipe_directory=directory,
        log_directory="/log",
        expected=by is not DISCOVERED if expected is None and by is not DISCOVERED else expected,
        unit=unit,
        clients_limit=limit,
        by=by,
    )


def declared(at: float = AT, *, expected: bool = True) -> DaemonFound:
    return found(by=NamedBy.DEVICE_PLUGIN, expected=expected, at=at)


def after(*seen: Observation) -> Reduced:
    return reduced(*seen, start=Node())


def names(*seen: Observation) -> list[str]:
    return list(after(*seen).node.daemons)


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (CONFIGURED, CONFIGURED, "second"),
        (UNIT, CONFIGURED, "second"),
        (DISCOVERED, UNIT, "second"),
        (UNIT, UNIT, "first"),
        (DISCOVERED, DISCOVERED, "first"),
        (CONFIGURED, UNIT, "first"),
    ],
)
def test_a_changed_configuration_renames_a_daemon_and_an_equal_source_does_not(
    first: NamedBy, second: NamedBy, wanted: str
) -> None:
    assert names(found("first", first), found("second", second)) == [wanted]


def test_a_unit_completes_a_configured_daemon() -> None:
    result = after(found("night", CONFIGURED, expected=False), found(by=UNIT, unit="x.service"))

    assert list(result.node.daemons) == ["night"]
    assert (result.daemon.runtime.unit, result.daemon.declared.expected, result.daemon.declared.by) == (
        "x.service",
        False,
        CONFIGURED,
    )


def test_a_found_unit_does_not_replace_the_configured_one() -> None:
    result = after(found("night", CONFIGURED, unit="night.service"), found(by=UNIT, unit="x.service"))

    assert result.daemon.runtime.unit == "night.service"


def test_the_name_of_higher_precedence_remains_in_either_order() -> None:
    assert names(found(), found("night", CONFIGURED)) == ["night"]
    assert names(found("night", CONFIGURED), found()) == ["night"]
    assert names(found(by=UNIT), found("night", CONFIGURED)) == ["night"]


def test_different_spellings_of_a_path_are_one_directory() -> None:
    assert names(found("night", CONFIGURED, directory="/run//mps/x/.."), found("/run/mps", directory="/run/mps/")) == [
        "night"
    ]


def test_the_directory_of_a_container_is_not_that_of_the_host() -> None:
    inside = f"{DAEMON}@0123456789ab"

    assert names(found("night", CONFIGURED), found(inside), found(inside)) == ["night", inside]


def test_a_renamed_daemon_retains_its_state_without_events() -> None:
    result = after(found(), *at_work(CLIENT), found("night", CONFIGURED, at=AT + 1), look("log", at=AT + 10))

    assert list(result.node.daemons) == ["night"]
    assert list(result.daemon.clients) == [CLIENT]
    assert len(result.of(EventName.CLIENT_CONNECTED)) == 1
    assert result.of(EventName.DAEMON_LOST) == result.of(EventName.CLIENT_DISCONNECTED) == []


def test_a_new_configured_name_replaces_the_old_one() -> None:
    assert names(found("old", CONFIGURED), found("new", CONFIGURED)) == ["new"]


def test_a_late_observation_under_an_old_name_restores_it_only_briefly() -> None:
    late = LogFile(at=AT + 1, daemon="old", file="control.log")
    much_later = SourceReading(at=AT + 1000, name="log", seconds=0.1)

    assert names(found("old", CONFIGURED), found("new", CONFIGURED), late, much_later) == ["new"]


def test_removes_what_the_configuration_no_longer_sets() -> None:
    result = after(found(by=CONFIGURED, unit="x.service", limit=20), found(by=CONFIGURED))

    assert (result.daemon.runtime.unit, result.daemon.declared.clients_limit) == (None, None)


def test_discovery_removes_nothing() -> None:
    result = after(found(by=CONFIGURED, unit="x.service", limit=20), found())

    assert (result.daemon.runtime.unit, result.daemon.declared.clients_limit, result.daemon.declared.expected) == (
        "x.service",
        20,
        True,
    )


def test_a_daemon_without_a_configuration_becomes_discovered() -> None:
    result = after(found("night", CONFIGURED, limit=20), found("night", expected=False))

    assert (result.daemon.discovered, result.daemon.declared.expected, result.daemon.declared.clients_limit) == (
        True,
        False,
        None,
    )


def test_a_disabled_unit_withdraws_only_its_own_declaration() -> None:
    disabled = found(by=UNIT, expected=False)

    assert after(found(by=UNIT), disabled).daemon.discovered
    assert after(found(by=CONFIGURED), disabled).daemon.declared.expected
    assert names(disabled) == []


def test_removes_a_discovered_daemon_without_a_process() -> None:
    later = look("control", at=AT + 2 * FORGOTTEN_SECONDS + 1)

    assert names(found(), later) == []
    assert names(found(by=UNIT), later) == [DAEMON]


def test_removes_a_daemon_that_only_a_late_observation_names() -> None:
    late = LogFile(at=AT, daemon=DAEMON, file="control.log")

    assert names(late) == [DAEMON]
    assert names(late, look("control", at=AT + 2 * FORGOTTEN_SECONDS + 1)) == []


def test_a_daemon_of_the_device_plugin_is_expected_until_the_plugin_stops_it() -> None:
    result = after(found(), declared(), found())
    assert (result.daemon.declared.expected, result.daemon.declared.by) == (True, NamedBy.DEVICE_PLUGIN)
    result = reduced(declared(AT + 10, expected=False), start=result.node)
    assert (result.daemon.declared.expected, result.daemon.discovered) == (False, True)


def test_a_unit_and_the_device_plugin_do_not_withdraw_each_others_declaration() -> None:
    assert after(found(by=UNIT), declared(), declared(expected=False)).daemon.declared.expected
    assert after(declared(), found(by=UNIT, expected=False)).daemon.declared.expected


def test_the_configuration_has_precedence_over_the_device_plugin() -> None:
    result = after(found("night", CONFIGURED, expected=False), declared())
    assert (result.daemon.name, result.daemon.declared.expected) == ("night", False)


def of_claim(at: float = AT, *, expected: bool = True) -> DaemonFound:
    return found(by=NamedBy.DRA, expected=expected, at=at)


RUNNING = (of_claim(), daemon_process(), *at_work())


@pytest.mark.parametrize(
    "seen",
    [
        (of_claim(AT + 10, expected=False), exited(CONTROL, at=AT + 11)),
        (exited(CONTROL, at=AT + 10), daemon_process(None, at=AT + 10.2, left=False), look("log", at=AT + 20)),
    ],
    ids=["the daemon ends after the directory", "the directory is found to be missing after the end"],
)
def test_the_end_of_a_claim_is_no_loss_of_its_daemon(seen: tuple[Observation, ...]) -> None:
    """The DRA driver removes the directory, and the pod of the daemon is killed."""
    result = reduced(*RUNNING, *seen, start=Node())
    ends = [each.event for each in result.events if each.event in (EventName.DAEMON_STOPPED, EventName.DAEMON_LOST)]
    assert ends == [EventName.DAEMON_STOPPED]


def test_a_crash_of_the_daemon_of_a_claim_is_a_loss() -> None:
    crash = (exited(CONTROL, at=AT + 10), daemon_process(None, at=AT + 10.2, left=True), look("log", at=AT + 20))
    result = reduced(*RUNNING, *crash, start=Node())
    assert EventName.DAEMON_LOST in [each.event for each in result.events]
    assert result.daemon.declared.expected


# Expected and discovered daemons, and when a discovered one is removed.


FOUND = "/run/nvidia/mps/nvidia.com/gpu/pipe"
NAMED = "training"


def node_after(*seen: Observation, node: Node | None = None) -> Node:
    node = node or Node(
        daemons={
            NAMED: Daemon(name=NAMED, pipe_directory="/t", log_directory="/t", declared=Declaration(expected=True))
        }
    )
    for each in seen:
        node, _ = reduce(node, each)
    return node


def daemon_found(
    at: float = 1.0, expected: bool | None = None, daemon: str = FOUND, by: str | None = None, **more: Any
) -> DaemonFound:
    fields = {"pipe_directory": FOUND, "log_directory": "/log", "unit": "x.service", **more}
    return DaemonFound(at=at, daemon=daemon, expected=expected, by=by, **fields)


def alive_then_gone(at: float = 2.0) -> Iterable[Observation]:
    yield DaemonProcess(at=at, daemon=FOUND, pid=77, start_ticks=5)
    yield ProcessExit(at=at + 1, pid=77, start_ticks=5)


def collected(at: float, problem: Reason | None = None, daemon: str | None = None) -> SourceReading:
    return SourceReading(at=at, name="control", seconds=0.1, problem=problem, daemon=daemon)


def test_a_found_daemon_is_not_expected() -> None:
    daemon = node_after(daemon_found()).daemons[FOUND]

    assert (daemon.pipe_directory, daemon.log_directory, daemon.runtime.unit) == (FOUND, "/log", "x.service")
    assert not daemon.declared.expected


def test_does_not_report_a_found_daemon_that_never_ran() -> None:
    node = node_after(daemon_found())

    assert [daemon.name for daemon in View(node).daemons()] == [NAMED]


def test_reports_a_discovered_daemon_for_some_time_after_its_end() -> None:
    node = node_after(daemon_found(), *alive_then_gone())
    ended = 3.0

    soon = node_after(collected(ended + FORGOTTEN_SECONDS - 1), node=node)
    later = node_after(collected(ended + FORGOTTEN_SECONDS + 2), node=soon)

    assert FOUND in {daemon.name for daemon in View(soon).daemons()}
    assert FOUND not in later.daemons


def test_never_removes_an_expected_daemon() -> None:
    node = node_after(daemon_found(expected=True), *alive_then_gone(), collected(1e6))

    assert FOUND in node.daemons


def test_a_collector_succeeds_only_if_it_succeeds_for_every_daemon() -> None:
    node = node_after(daemon_found(), collected(1, HANGS, NAMED), collected(2, None, FOUND))
    assert node.sources["control"].last.problem == HANGS
    assert node.sources["control"].last_success is None

    node = node_after(collected(3, None, NAMED), node=node)
    assert node.sources["control"].last.problem is None
    assert node.sources["control"].last_success == 3


def test_removing_a_daemon_removes_its_collector_problem() -> None:
    node = node_after(daemon_found(), *alive_then_gone(), collected(4, HANGS, FOUND), collected(1000, None, NAMED))
    node = node_after(collected(1001, None, NAMED), node=node)

    assert node.sources["control"].last.problem is None
