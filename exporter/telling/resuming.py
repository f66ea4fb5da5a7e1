"""What `pause` and `resume` have done, in words, and their exit codes."""

from collections.abc import Iterable, Mapping
from typing import Any

from exporter.model.node import Node
from exporter.model.watch import Watch, WatchState
from exporter.parse.printable import printable
from exporter.report.problems import of_watch_state
from exporter.telling.remedy import command_to_resume

_SUSPENDED = (WatchState.CIRCUIT_OPEN, WatchState.QUARANTINED, WatchState.STATE_LOST)


def paused(*, before: bool) -> Mapping[str, Any]:
    """Return what `pause` has done; `before` is whether the driver was paused already."""
    return {"said": f"{'already ' if before else ''}paused: no handle on the driver is open until you say resume"}


def resumed(node: Node, *, before: bool) -> Mapping[str, Any]:
    """Return what `resume` without a name has done; `before` is whether the driver was paused.

    The exit code is 1 if nothing was paused and restarts of a daemon are suspended: these need their names.
    """
    suspended = list(_suspended(node))
    said = "resumed: the driver is in use again" if before else "the driver was not paused"
    lines = (said, *(["restarts are suspended; nothing was changed for:"] if suspended else []), *suspended)
    return {"said": "\n".join(lines), "exit_code": int(bool(suspended) and not before)}


def _suspended(node: Node) -> Iterable[str]:
    for name, watch in sorted(node.watches.items()):
        if watch.state in _SUSPENDED and name in node.daemons:
            command = command_to_resume(name)
            how = "" if command is None else f": {command}"
            yield f"  {printable(name)} ({of_watch_state(watch.state).label}){how}"


def resumed_daemon(name: str, watch: Watch) -> Mapping[str, Any]:
    """Return what `resume NAME` has done, where the watchdog knew this of the daemon."""
    shown = printable(name)
    if watch.state in _SUSPENDED:
        return {"said": f"resumed: {shown} may be restarted again"}
    if watch.restarts or watch.failures:
        return {"said": f"restarts of {shown} were not suspended; its restarts are counted from 0 again"}
    return {"said": f"restarts of {shown} were not suspended; nothing has changed"}
