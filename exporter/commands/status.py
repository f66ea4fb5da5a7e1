"""`status`: how the node is, once, or again and again."""

import json
import os
import sys
from argparse import Namespace
from functools import partial

from exporter.clock import SystemClock
from exporter.config import Config
from exporter.inquiry import Inquiry
from exporter.look import look
from exporter.service_socket import SERVICE_SECONDS, ask_service
from exporter.terminal.fitting import bare, whole
from exporter.terminal.terminal import Terminal
from exporter.terminal.watching import Watching


def show_status(arguments: Namespace, config: Config) -> int:
    """Say how the node is: as the running service knows it, or else by one look; once, or again and again."""
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    inquiry = Inquiry(
        None
        if arguments.look or arguments.pipe_directory
        else partial(ask_service, config.runtime_directory, "status", SERVICE_SECONDS),
        partial(look, config),
        SystemClock(),
        as_json=arguments.json,
        daemon=arguments.daemon,
    )
    if arguments.watch is not None:
        return Watching(
            inquiry.report,
            terminal,
            SystemClock(),
            seconds=arguments.watch,
            as_json=arguments.json,
            brief=arguments.brief,
        ).run()
    report = inquiry.report(terminal.width)
    if report.sheet is None:
        terminal.show_text(json.dumps(report.node, indent=2) + "\n")
    elif arguments.brief:
        terminal.show(report.sheet.head)
    else:
        terminal.show(whole(report.sheet) if terminal.width is not None else bare(report.sheet))
    return report.exit_code
