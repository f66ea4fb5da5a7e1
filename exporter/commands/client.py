"""`status`, `incidents`, `once`, `pause` and `resume`: commands that the running service answers.

Modules that take long to import are imported in the functions that need them.
"""

import contextlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from exporter.config.settings import Config
from exporter.errors import ExporterError, HistoryError, ServiceError
from exporter.logger import configured_at_first_record
from exporter.model.values import plain
from exporter.parse.printable import printable, printable_value
from exporter.status_client import SERVICE_SECONDS, Answer, parse_answer, parse_incidents, parse_status, query_service
from exporter.terminal import Terminal, progress

if TYPE_CHECKING:
    from exporter.report.document import StatusDocument
    from exporter.report.document_parts import IncidentFilter, IncidentStatus

METRICS_MODE = 0o644


def status(arguments: Namespace, config: Config) -> int:
    """Show the state of the node, from the service or else by collecting."""
    with progress(sys.stderr, "Reading the state of the node ..."):
        look = arguments.look or arguments.pipe_directory
        answer = None if look else query_service(config.runtime_directory, "status", SERVICE_SECONDS)
        document = _collected(config) if answer is None else parse_status(answer)
    from exporter.report.document_parts import Severity
    from exporter.report.status_text import headline, only_daemon, status_lines

    if arguments.daemon is not None:
        present = [each.name for each in document.daemons]
        if arguments.daemon not in present:
            names = ", ".join(map(printable, present)) or "none"
            raise ServiceError(f"no daemon {printable(arguments.daemon)} is here; there are: {names}")
        document = only_daemon(document, arguments.daemon)
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    if arguments.json:
        terminal.show_text(json.dumps(printable_value(plain(document)), indent=2) + "\n")
    else:
        terminal.show(headline(document) if arguments.brief else status_lines(document, terminal.width))
    return int(document.severity is not Severity.WELL)


def _collected(config: Config) -> "StatusDocument":
    from exporter.app import collect_once
    from exporter.report.node_status import document_of

    with configured_at_first_record(partial(_log_to_stderr, config)):
        node = collect_once(config)
    return document_of(node, host=os.uname().nodename)


def _log_to_stderr(config: Config) -> None:
    from exporter import log

    log.configure(config.log_level, config.log_format, sys.stderr)


def incidents(arguments: Namespace, config: Config) -> int:
    """List the last faults or show one, from the service or else from its state file."""
    from exporter.report.document_parts import IncidentFilter
    from exporter.report.incident_text import details, incidents_table

    wanted = IncidentFilter(id=arguments.id, daemon=arguments.daemon, open=arguments.open, limit=arguments.limit)
    # The table names no clients, of which there can be many.
    clients = {} if arguments.json or wanted.id is not None else {"clients": 1}
    answer = query_service(config.runtime_directory, "incidents", SERVICE_SECONDS, **asdict(wanted), **clients)
    if answer is None:
        found = _stored_incidents(config, wanted)
        print(
            "no service runs, so these incidents are from its state file: an open incident can be over now,"
            " and a PID can be that of another process",
            file=sys.stderr,
        )
    else:
        found = parse_incidents(answer)
    if wanted.id is not None and not found:
        raise ServiceError(f"no incident {printable(wanted.id)} is stored; `incidents` lists those that are")
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    if not arguments.json:
        terminal.show(incidents_table(found, terminal.width) if wanted.id is None else details(found[0]))
    elif wanted.id is not None:
        terminal.show_text(json.dumps(printable_value(plain(found[0])), indent=2) + "\n")
    else:
        texts = (json.dumps(printable_value(plain(each)), ensure_ascii=False) for each in found)
        terminal.show_text("[{}]\n".format(",\n".join(texts)))
    return int(any(each.open for each in found))


def _stored_incidents(config: Config, wanted: "IncidentFilter") -> "Sequence[IncidentStatus]":
    from exporter.clock import SystemClock
    from exporter.report.incident_status import incident_status
    from exporter.store.database import read_history

    try:
        with configured_at_first_record(partial(_log_to_stderr, config)):
            stored, _ = read_history(config.state_directory)
    except HistoryError as error:
        raise ServiceError(
            f"no service answers in {config.runtime_directory}, and its state file cannot be read: {error}"
        ) from error
    return [incident_status(each, SystemClock().now()) for each in wanted.apply(stored)]


def once(arguments: Namespace, config: Config) -> int:
    """Write the metrics to stdout (also for `-`), or replace a regular file by them.

    Without a service, the file remains as it is. A link is refused, because another user may have made it.
    """
    answer = _running_service(config, "metrics")
    text = parse_answer(lambda: str(answer["metrics"]))
    if arguments.output in (None, "-"):
        sys.stdout.write(text)
        return 0
    try:
        path = Path(arguments.output)
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ExporterError(f"{path} is not a regular file; name a file, or - for the standard output")
        _replace_file(path, text)
    except OSError as error:
        raise ExporterError(f"{arguments.output} cannot be written: {error.strerror or error}") from error
    return 0


def _replace_file(path: Path, text: str) -> None:
    """Write a temporary file in the same directory, and rename it, so that no reader finds half of it."""
    import tempfile

    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), METRICS_MODE)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def pause(_arguments: Namespace, config: Config) -> int:
    """Make the service close the GPU driver."""
    return _show_message(_running_service(config, "pause"))


def resume(arguments: Namespace, config: Config) -> int:
    """Make the service open the driver again, or permit restarts of a daemon again."""
    given = {} if arguments.daemon is None else {"daemon": arguments.daemon}
    return _show_message(_running_service(config, "resume", **given))


def _running_service(config: Config, command: str, **arguments: str) -> Answer:
    answer = query_service(config.runtime_directory, command, SERVICE_SECONDS, **arguments)
    if answer is None:
        raise ServiceError(f"no service answers in {config.runtime_directory}; is it running?")
    return answer


def _show_message(answer: Answer) -> int:
    print(parse_answer(lambda: str(answer["message"])))
    return parse_answer(lambda: int(answer.get("exit_code", 0)))
