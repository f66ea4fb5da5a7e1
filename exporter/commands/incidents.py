"""`incidents`: the last faults, or the details of one."""

import os
import sys
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from exporter.clock import SystemClock
from exporter.config.settings import Config
from exporter.errors import HistoryError, ServiceError
from exporter.report.incident_filter import IncidentFilter
from exporter.status_client import Answer, incident_lines, parse_answer, service_query
from exporter.terminal import Terminal


def incidents(arguments: Namespace, config: Config) -> int:
    """List the last faults or show one, from the service or else from its state file."""
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    selected = IncidentFilter(id=arguments.id, daemon=arguments.daemon, open=arguments.open, limit=arguments.limit)
    form = {"as_json": arguments.json, "width": terminal.width}
    answer = service_query(config.runtime_directory, arguments.url, arguments.cert)(
        "incidents", **form, **asdict(selected)
    )
    if answer is None:
        answer = _stored_incidents(config, selected, **form)
        print(
            "no service runs, so these incidents are from its state file: an open incident can be over now,"
            " and a PID can be that of another process",
            file=sys.stderr,
        )
    exit_code = parse_answer(lambda: int(answer["exit_code"]))
    if arguments.json:
        terminal.show_text(parse_answer(lambda: str(answer["text"])))
    else:
        terminal.show(incident_lines(answer))
    return exit_code


def _stored_incidents(config: Config, selected: IncidentFilter, **form: Any) -> Answer:
    """Read the incidents from the state file. The imports of the store and the model take long."""
    from exporter import log
    from exporter.report import objects
    from exporter.store.database import read_history

    log.configure(config.log_level, config.log_format, sys.stderr)
    try:
        stored, _ = read_history(config.state_directory)
    except HistoryError as error:
        raise ServiceError(
            f"no service answers in {config.runtime_directory}, and its state file cannot be read: {error}"
        ) from error
    now = SystemClock().now()
    answer = objects.incidents_answer(stored, selected, **form, now=now, address_of=lambda _: None)
    if "problem" in answer:
        raise ServiceError(answer["problem"])
    return answer
