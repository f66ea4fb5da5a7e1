"""`record`: what is observation is written down."""

import contextlib
import sys
from argparse import Namespace

from exporter import log
from exporter.app import Assembly
from exporter.clock import SystemClock
from exporter.collectors.thread import Inbox
from exporter.config.settings import Config
from exporter.config.values import DURATION
from exporter.loop import Loop
from exporter.recording import opened, write_header, write_observation
from exporter.recording_header import header_with_gpus
from exporter.service import handle_signals


def record(arguments: Namespace, config: Config) -> int:
    """Write down what is observation, until interrupted."""
    log.configure(config.log_level, config.log_format, sys.stderr)
    clock = SystemClock()
    inbox: Inbox = Inbox()
    seconds = None if arguments.duration is None else DURATION.of_text("--for", arguments.duration)
    ends = None if seconds is None else clock.monotonic() + seconds
    header = header_with_gpus(config, clock)
    with (
        opened(arguments.file, "w") as file,
        handle_signals(lambda: inbox.put(())) as signals,
        contextlib.closing(Assembly(config, clock, inbox)) as assembly,
    ):
        write_header(file, header)
        loop = Loop(
            header.node(),
            assembly.pool(),
            inbox=inbox,
            clock=clock,
            intervals=config.constants.intervals,
            publish=lambda _node: file.flush(),
            record=lambda observation: write_observation(file, observation),
        )
        loop.run(lambda: not signals.stop.is_set() and (ends is None or clock.monotonic() < ends))
    return 0
