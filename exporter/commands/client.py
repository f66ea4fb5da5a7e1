"""`status`, `incidents`, `once`, `pause` and `resume`: commands that the running service answers.

Modules that take long to import are imported in the functions that need them.
"""

import contextlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.config.settings import Config
from exporter.errors import ConfigError, ExporterError, HistoryError, ServiceError
from exporter.report.incident_filter import IncidentFilter
from exporter.status_client import SERVICE_SECONDS, Answer, incident_lines, parse_answer, query_service, status_report
from exporter.terminal import Terminal, all_lines

if TYPE_CHECKING:
    from exporter.model.node import Node

METRICS_MODE = 0o644


def status(arguments: Namespace, config: Config) -> int:
    """Show the state of the node, from the service or else by collecting."""
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    if arguments.url is not None and arguments.pipe_directory is not None:
        raise ConfigError("--url: not allowed with --pipe-directory")
    query = partial(_query_of(arguments, config), "status")

    def collect() -> "Node":
        from exporter import log
        from exporter.one_shot import collect_once

        log.configure(config.log_level, config.log_format, sys.stderr)
        return collect_once(config)

    report = status_report(
        None if arguments.look or arguments.pipe_directory else query,
        collect,
        as_json=arguments.json,
        daemon=arguments.daemon,
        width=terminal.width,
    )
    if report.text is None:
        terminal.show_text(json.dumps(report.node, indent=2) + "\n")
    elif arguments.brief:
        terminal.show(report.text.headline)
    else:
        # With colours, a person reads it, for example by `watch -c`.
        person = terminal.width is not None or arguments.color == "always"
        terminal.show(all_lines(report.text) if person else report.text.body)
    return report.exit_code


def incidents(arguments: Namespace, config: Config) -> int:
    """List the last faults or show one, from the service or else from its state file."""
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    selected = IncidentFilter(id=arguments.id, daemon=arguments.daemon, open=arguments.open, limit=arguments.limit)
    form = {"as_json": arguments.json, "width": terminal.width}
    answer = _query_of(arguments, config)("incidents", **form, **asdict(selected))
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


def _query_of(arguments: Namespace, config: Config) -> Callable[..., Answer | None]:
    """Return the function that sends a command to the exporter of `--url`, or else to the service of this node."""
    if arguments.url is None:
        if arguments.cert is not None:
            raise ConfigError("--cert: a client certificate needs --url https://…")
        return lambda command, **given: query_service(config.runtime_directory, command, SERVICE_SECONDS, **given)
    # HTTP and TLS take long to import.
    from exporter.remote_client import RemoteExporter

    return RemoteExporter(arguments.url, arguments.cert).query


def _stored_incidents(config: Config, selected: IncidentFilter, **form: Any) -> Answer:
    from exporter import log
    from exporter.clock import SystemClock
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
