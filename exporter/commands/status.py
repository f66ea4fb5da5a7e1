"""`status`: how the node is, once, or again and again."""

import json
import os
import sys
from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING

from exporter.clock import SystemClock
from exporter.config.settings import Config
from exporter.status_client import SERVICE_SECONDS, StatusClient, ask_service
from exporter.terminal import Terminal, bare, whole

if TYPE_CHECKING:
    from exporter.model.node import Node


def show_status(arguments: Namespace, config: Config) -> int:
    """Say how the node is: as the running service knows it, or else by one look; once, or again and again."""
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    inquiry = StatusClient(
        None
        if arguments.look or arguments.pipe_directory
        else partial(ask_service, config.runtime_directory, "status", SERVICE_SECONDS),
        partial(_look, config),
        SystemClock(),
        as_json=arguments.json,
        daemon=arguments.daemon,
    )
    if arguments.watch is not None:
        from exporter.terminal import Watching

        return Watching(
            inquiry.report,
            terminal,
            SystemClock(),
            seconds=arguments.watch,
            as_json=arguments.json,
            brief=arguments.brief,
        ).run()
    report = inquiry.report(terminal.width)
    if report.text is None:
        terminal.show_text(json.dumps(report.node, indent=2) + "\n")
    elif arguments.brief:
        terminal.show(report.text.head)
    else:
        terminal.show(whole(report.text) if terminal.width is not None else bare(report.text))
    return report.exit_code


def _look(config: Config) -> "Node":
    """Look at the node directly. Only this needs the sources and the core, which take long to import."""
    from exporter import log
    from exporter.one_shot import collect_once

    log.configure(config.log_level, config.log_format, sys.stderr)
    return collect_once(config)
