"""Expected and discovered daemons, and when a discovered one is removed."""

from collections.abc import Iterable
from typing import Any

from exporter.model.daemon import FORGOTTEN_SECONDS, Daemon, Declaration
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, DaemonProcess, Observation, ProcessExit, SourceReading
from exporter.model.reason import Reason
from exporter.reducer import reduce
from exporter.view import View
from tests.builders import HANGS

FOUND = "/run/nvidia/mps/nvidia.com/gpu/pipe"
NAMED = "training"


def after(*seen: Observation, node: Node | None = None) -> Node:
    node = node or Node(
        daemons={
            NAMED: Daemon(name=NAMED, pipe_directory="/t", log_directory="/t", declared=Declaration(expected=True))
        }
    )
    for each in seen:
        node, _ = reduce(node, each)
    return node


def found(
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
    daemon = after(found()).daemons[FOUND]

    assert (daemon.pipe_directory, daemon.log_directory, daemon.runtime.unit) == (FOUND, "/log", "x.service")
    assert not daemon.declared.expected


def test_does_not_report_a_found_daemon_that_never_ran() -> None:
    node = after(found())

    assert [daemon.name for daemon in View(node).daemons()] == [NAMED]


def test_a_daemon_with_a_unit_is_expected_and_remains_so() -> None:
    assert after(found(), found(expected=True), found()).daemons[FOUND].declared.expected


def test_a_daemon_without_a_configuration_is_no_longer_expected() -> None:
    node = after(found(daemon=NAMED, expected=False))

    assert not node.daemons[NAMED].declared.expected


def test_reports_a_discovered_daemon_for_some_time_after_its_end() -> None:
    node = after(found(), *alive_then_gone())
    ended = 3.0

    soon = after(collected(ended + FORGOTTEN_SECONDS - 1), node=node)
    later = after(collected(ended + FORGOTTEN_SECONDS + 2), node=soon)

    assert FOUND in {daemon.name for daemon in View(soon).daemons()}
    assert FOUND not in later.daemons


def test_a_removed_daemon_that_is_found_again_is_known_again() -> None:
    node = after(found(), *alive_then_gone(), collected(1000.0), found(at=1001.0))

    assert FOUND in node.daemons


def test_never_removes_an_expected_daemon() -> None:
    node = after(found(expected=True), *alive_then_gone(), collected(1e6))

    assert FOUND in node.daemons


def test_a_collector_succeeds_only_if_it_succeeds_for_every_daemon() -> None:
    node = after(found(), collected(1, HANGS, NAMED), collected(2, None, FOUND))
    assert node.sources["control"].last.problem == HANGS
    assert node.sources["control"].last_success is None

    node = after(collected(3, None, NAMED), node=node)
    assert node.sources["control"].last.problem is None
    assert node.sources["control"].last_success == 3


def test_removing_a_daemon_removes_its_collector_problem() -> None:
    node = after(found(), *alive_then_gone(), collected(4, HANGS, FOUND), collected(1000, None, NAMED))
    node = after(collected(1001, None, NAMED), node=node)

    assert node.sources["control"].last.problem is None
