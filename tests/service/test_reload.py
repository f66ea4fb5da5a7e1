"""What the service says of its daemons when it is configured anew, and of itself when it stands still."""

from dataclasses import replace
from pathlib import Path

import pytest

from exporter.actions.runner import ActionRunner, Tools
from exporter.cli import parse_arguments
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.pool import CollectorPool
from exporter.collectors.proc import Proc
from exporter.collectors.thread import Inbox
from exporter.config.load import build_config
from exporter.config.settings import Config, DaemonConfig
from exporter.model.action import Action, ActionKind, ActionReason
from exporter.model.daemon import NamedBy
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.service import HEALTHY_SECONDS, Service, Signals, configured_daemons
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS


def config(*daemons: tuple[str, str]) -> Config:
    named = (
        DaemonConfig(label=name, pipe_directory=Path(directory), log_directory=Path("/log"))
        for name, directory in daemons
    )
    return replace(build_config(parse_arguments(["serve"]), {}, None), daemons=tuple(named))


def told(before: Config, after: Config) -> list[tuple[str, bool | None, str | None]]:
    return [(each.daemon, each.expected, each.by) for each in configured_daemons(before, after, 1.0)]


def test_a_daemon_that_is_dropped_is_one_that_is_only_there() -> None:
    assert told(config(("a", "/a"), ("b", "/b")), config(("b", "/b"))) == [
        ("a", False, NamedBy.DISCOVERED),
        ("b", True, NamedBy.CONFIGURATION),
    ]


def test_a_daemon_that_is_renamed_is_not_dropped() -> None:
    assert told(config(("old", "/a")), config(("new", "/a"))) == [("new", True, NamedBy.CONFIGURATION)]


def test_a_service_that_stands_still_does_not_tell_old_news() -> None:
    clock = HandClock()
    service = Service(config(), Node(), CollectorPool(()), Inbox(), clock)
    assert "text" in service.status()

    clock.time += HEALTHY_SECONDS

    assert "has not run for 30 s" in service.status()["problem"]


def test_who_is_told_to_stop_breaks_off_what_is_under_way_before_waiting_for_anybody() -> None:
    clock, inbox, wishes = HandClock(), Inbox(), Signals()
    tools = Tools(clock=clock, proc=Proc(Path("/proc"), clock), client=lambda *_: pytest.fail("asked"), path="")
    hands = ActionRunner(tools, inbox=inbox, location=lambda name, _: on_host(name, Path("/a"), Path("/b")))
    service = Service(config(), Node(), CollectorPool(()), inbox, clock, runner=hands)
    assert service.proceed(wishes)

    wishes.stop.set()

    assert not service.proceed(wishes)
    hands.do(Action(daemon="a", kind=ActionKind.RESTART, reason=ActionReason.CRASHED, steps=()), Node())
    (done,) = inbox.get(timeout=PATIENCE_SECONDS)
    assert done.problem == Reason(ReasonCode.EXPORTER_STOPPING)
