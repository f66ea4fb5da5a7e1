"""Locations, nodes, actions and a real clock for the tests of actions."""

from pathlib import Path

from exporter.clock import SystemClock
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.proc import Proc
from exporter.model.action import Action, ActionKind, ActionReason, ActionStep
from exporter.model.identity import ProcessIdentity
from exporter.model.node import Node
from exporter.recording import Header, RecordedDaemon
from tests.standin.mps import MpsStandIn

NAME = "node"
REAL = SystemClock()
PROC = Proc(Path("/proc"), REAL)


def location_of(mps: MpsStandIn, name: str = NAME) -> DaemonLocation:
    """Where the stand-in's daemon is."""
    return on_host(name, mps.pipe_directory, mps.log_directory)


def node_of(mps: MpsStandIn, name: str = NAME) -> Node:
    recorded = RecordedDaemon(
        name=name, pipe_directory=str(mps.pipe_directory), log_directory=str(mps.log_directory), expected=True
    )
    return Header(daemons=(recorded,)).node()


def action(*steps: ActionStep, daemon: str = NAME, uid: int | None = None) -> Action:
    return Action(daemon=daemon, kind=ActionKind.RESTART, reason=ActionReason.DOWN, steps=steps, uid=uid)


def identity(pid: int) -> ProcessIdentity:
    """Who a process is now."""
    ticks = PROC.start_ticks(pid)
    assert ticks is not None
    return ProcessIdentity(pid=pid, start_ticks=ticks)
