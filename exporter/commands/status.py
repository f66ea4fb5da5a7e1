"""`status`: the state of the node."""

import json
import os
import sys
from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING

from exporter.config.settings import Config
from exporter.errors import ConfigError
from exporter.status_client import service_query, status_report
from exporter.terminal import Terminal, all_lines

if TYPE_CHECKING:
    from exporter.model.node import Node


def status(arguments: Namespace, config: Config) -> int:
    """Show the state of the node, from the service or else by collecting."""
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    if arguments.url is not None and arguments.pipe_directory is not None:
        raise ConfigError("--url: not allowed with --pipe-directory")
    query = partial(service_query(config.runtime_directory, arguments.url, arguments.cert), "status")
    report = status_report(
        None if arguments.look or arguments.pipe_directory else query,
        partial(_collect, config),
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


def _collect(config: Config) -> "Node":
    """Collect once. The imports of the collectors and the reducer take long."""
    from exporter import log
    from exporter.one_shot import collect_once

    log.configure(config.log_level, config.log_format, sys.stderr)
    return collect_once(config)
