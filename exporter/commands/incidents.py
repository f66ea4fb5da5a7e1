"""`incidents`: the last faults, or all of one."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from exporter.clock import SystemClock
from exporter.config.settings import Config
from exporter.errors import HistoryError, ServiceError
from exporter.report.incident_filter import IncidentFilter
from exporter.status_client import SERVICE_SECONDS, ask_service, told_lines, understood
from exporter.terminal import Terminal


def show_incidents(arguments: Namespace, config: Config) -> int:
    """List the last faults, or tell all of one: as the running service knows them, or as it kept them."""
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    wanted = IncidentFilter(id=arguments.id, daemon=arguments.daemon, open=arguments.open, limit=arguments.limit)
    shape = {"as_json": arguments.json, "width": terminal.width}
    told = ask_service(config.runtime_directory, "incidents", SERVICE_SECONDS, **shape, **asdict(wanted))
    if told is None:
        told = _kept_incidents(config, wanted, **shape)
        print(
            "no service runs: this is what one has kept; what is open may be over by now, and a PID be somebody else's",
            file=sys.stderr,
        )
    exit_code = understood(lambda: int(told["exit_code"]))
    if arguments.json:
        terminal.show_text(understood(lambda: str(told["text"])))
    else:
        terminal.show(told_lines(told))
    return exit_code


def _kept_incidents(config: Config, wanted: IncidentFilter, **shape: Any) -> Mapping[str, Any]:
    """Read the history that a service kept. Only this needs the store and the model, which take long to import."""
    from exporter import log
    from exporter.report import objects
    from exporter.store.archive import read_history

    log.configure(config.log_level, config.log_format, sys.stderr)
    try:
        kept, _ = read_history(config.state_directory)
    except HistoryError as error:
        raise ServiceError(
            f"no service answers in {config.runtime_directory}, and nothing that one has kept can be read: {error}"
        ) from error
    now = SystemClock().now()
    told = objects.incidents_answer(kept, wanted, **shape, now=now, address_of=lambda _: None, watched=False)
    if "problem" in told:
        raise ServiceError(told["problem"])
    return told
