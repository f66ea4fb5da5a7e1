"""Which daemons there are: those that were named, and those that were found, as long as there is something to tell."""

from collections.abc import Iterable
from typing import Any

from exporter.model.daemon import FORGOTTEN_SECONDS, Daemon, Declaration
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, DaemonProcess, Observation, ProcessExit, SourceReading
from exporter.model.problem import Problem
from exporter.state.reducer import reduce
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
    told = {"pipe_directory": FOUND, "log_directory": "/log", "unit": "x.service", **more}
    return DaemonFound(at=at, daemon=daemon, expected=expected, by=by, **told)


def alive_then_gone(at: float = 2.0) -> Iterable[Observation]:
    yield DaemonProcess(at=at, daemon=FOUND, pid=77, start_ticks=5)
    yield ProcessExit(at=at + 1, pid=77, start_ticks=5)


def looked(at: float, problem: Problem | None = None, daemon: str | None = None) -> SourceReading:
    return SourceReading(at=at, name="control", seconds=0.1, problem=problem, daemon=daemon)


def test_a_daemon_that_is_found_is_known_where_it_is_and_not_expected() -> None:
    daemon = after(found()).daemons[FOUND]

    assert (daemon.pipe_directory, daemon.log_directory, daemon.runtime.unit) == (FOUND, "/log", "x.service")
    assert not daemon.declared.expected


def test_a_daemon_that_is_found_and_never_seen_to_live_is_nobodys_business() -> None:
    node = after(found())

    assert [daemon.name for daemon in View(node).daemons()] == [NAMED]


def test_a_unit_that_names_a_daemon_makes_it_expected_and_finding_it_again_changes_nothing() -> None:
    assert after(found(), found(expected=True), found()).daemons[FOUND].declared.expected


def test_a_configuration_that_no_longer_names_a_daemon_makes_it_one_that_is_only_there() -> None:
    node = after(found(daemon=NAMED, expected=False))

    assert not node.daemons[NAMED].declared.expected


def test_a_found_daemon_is_told_of_for_a_while_after_its_end_and_then_forgotten() -> None:
    node = after(found(), *alive_then_gone())
    ended = 3.0

    soon = after(looked(ended + FORGOTTEN_SECONDS - 1), node=node)
    later = after(looked(ended + FORGOTTEN_SECONDS + 2), node=soon)

    assert FOUND in {daemon.name for daemon in View(soon).daemons()}
    assert FOUND not in later.daemons


def test_a_forgotten_daemon_that_is_found_again_is_known_again() -> None:
    node = after(found(), *alive_then_gone(), looked(1000.0), found(at=1001.0))

    assert FOUND in node.daemons


def test_an_expected_daemon_is_never_forgotten() -> None:
    node = after(found(expected=True), *alive_then_gone(), looked(1e6))

    assert FOUND in node.daemons


def test_a_source_is_well_where_it_is_well_for_every_daemon() -> None:
    node = after(found(), looked(1, HANGS, NAMED), looked(2, None, FOUND))
    assert node.sources["control"].last.problem == HANGS
    assert node.sources["control"].last_success is None

    node = after(looked(3, None, NAMED), node=node)
    assert node.sources["control"].last.problem is None
    assert node.sources["control"].last_success == 3


def test_a_daemon_that_was_forgotten_takes_its_problem_with_it() -> None:
    node = after(found(), *alive_then_gone(), looked(4, HANGS, FOUND), looked(1000, None, NAMED))
    node = after(looked(1001, None, NAMED), node=node)

    assert node.sources["control"].last.problem is None
