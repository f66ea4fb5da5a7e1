"""Another user's daemon in an expected directory is not the expected one: that is absent, not asked, not restarted."""

from dataclasses import replace
from typing import Any

from exporter.model.action import RunCommand
from exporter.model.daemon import DaemonState
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, DaemonProcess
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import VISIBLE_DEVICES, PollIntervals
from exporter.model.watchdog import BlockReason
from exporter.report.findings import findings
from exporter.state import poll_schedule
from exporter.watchdog.context import block_reasons
from tests.builders import AT, DAEMON, node, reduced
from tests.watchdog.watched_daemon import COMMAND, DEATH, WatchedDaemon, dies, left

TENANT = 65534


def taken(at: float = AT) -> DaemonProcess:
    """Another user's daemon is found in the directory."""
    return DaemonProcess(at=at, daemon=DAEMON, pid=None, foreign_owner=TENANT)


def test_the_daemon_is_absent_without_a_loss() -> None:
    story = reduced(taken())

    assert (story.daemon.state, story.daemon.runtime.foreign_owner, story.events) == (DaemonState.ABSENT, TENANT, ())


def test_sends_the_daemon_no_command() -> None:
    daemon = reduced(taken()).daemon

    assert poll_schedule.commands(Node(daemons={DAEMON: daemon}, at=AT + 1000), DAEMON, PollIntervals()) == ()


def test_starts_no_daemon_in_the_directory_of_another_user() -> None:
    post = WatchedDaemon()
    end, _, last_look = dies()
    post.observe(end, taken(DEATH + 0.1), last_look)
    post.until(DEATH + 2000)
    assert (post.actions, post.watch.reason) == (
        [],
        Reason(ReasonCode.FOREIGN_DIRECTORY, uid=TENANT),
    )
    assert block_reasons(post.policy, post.daemon, post.watch) == (BlockReason.FOREIGN_DIRECTORY,)

    post.observe(left(DEATH + 2001))
    assert post.kinds == [("restart", "crashed")]
    assert block_reasons(post.policy, post.daemon, post.watch) == ()


def test_the_finding_names_the_directory_the_user_and_the_fix() -> None:
    (found,) = (each for each in findings(reduced(taken()).node, AT) if each.daemon == DAEMON)

    assert found.text == (
        f"The pipe directory of MPS daemon {DAEMON} belongs to a user who must not run this daemon "
        f"(UID {TENANT}, {DAEMON})"
    )
    assert "set `user` in [[daemons]]" in found.remedy


def restart(owner: int | None, **known: Any) -> RunCommand:
    """Return the start command of a daemon that had this process."""
    post = WatchedDaemon()
    process = DaemonProcess(at=AT, daemon=DAEMON, pid=441, start_ticks=44100, **known)
    daemon = replace(
        post.daemon,
        declared=replace(post.daemon.declared, owner=owner),
        runtime=replace(post.daemon.runtime, visible_devices=None),
    )
    post.node = replace(
        post.node, daemons={DAEMON: daemon}, watches={DAEMON: replace(post.watch, process=process, children=())}
    )
    post.observe(*dies())
    (step,) = (each for each in post.actions[0].steps if isinstance(each, RunCommand))
    return step


def test_the_command_runs_as_the_configured_user_in_its_own_environment() -> None:
    step = restart(1001, uid=TENANT, environment={VISIBLE_DEVICES: "7"})
    assert (step.arguments, step.uid, VISIBLE_DEVICES in step.environment) == (COMMAND, 1001, False)

    step = restart(1001, uid=1001, environment={VISIBLE_DEVICES: "7"})
    assert (step.uid, step.environment[VISIBLE_DEVICES]) == (1001, "7")


def test_the_command_runs_as_the_last_user_by_default() -> None:
    step = restart(None, uid=1001, environment={VISIBLE_DEVICES: "7"})
    assert (step.uid, step.environment[VISIBLE_DEVICES]) == (1001, "7")


def found(owner: int | None, by: str, unit: str | None = None) -> DaemonFound:
    return DaemonFound(
        at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="/l", expected=True, unit=unit, by=by, owner=owner
    )


def test_the_configuration_or_the_unit_names_the_user() -> None:
    unit = found(1002, "unit", "mps.service")
    assert reduced(unit, start=node("/other")).node.daemons[DAEMON].declared.owner == 1002
    both = reduced(found(None, "configuration", "mps.service"), unit, start=node("/other")).node
    assert both.daemons[DAEMON].declared.owner == 1002
    assert reduced(found(1001, "configuration", "mps.service"), start=both).node.daemons[DAEMON].declared.owner == 1001
    assert reduced(found(None, "configuration", "mps.service"), start=both).node.daemons[DAEMON].declared.owner == 1002
    named = reduced(found(1001, "configuration"), start=node("/other")).node
    assert reduced(found(None, "configuration"), start=named).node.daemons[DAEMON].declared.owner is None
