"""`record` and `replay`: what is seen is written down, and read again."""

import contextlib
import json
import sys
from argparse import Namespace

from prometheus_client import generate_latest

from exporter.assembly import Assembly
from exporter.clock import SystemClock
from exporter.config import Config, parse_duration
from exporter.core.fold import fold_all
from exporter.core.watchdog.rehearsal import orders_for, rehearse
from exporter.cycle import Cycle
from exporter.metrics.catalogue import NodeCollector
from exporter.model.watch import Mode
from exporter.recording import Recording, write_header, write_observation
from exporter.recording_file import opened
from exporter.recording_header import header_with_gpus
from exporter.signals import wishes
from exporter.sources.eye import Inbox
from exporter.view import View


def record(arguments: Namespace, config: Config) -> int:
    """Write down what is seen, until interrupted."""
    clock = SystemClock()
    inbox: Inbox = Inbox()
    seconds = None if arguments.duration is None else parse_duration("--for", arguments.duration)
    ends = None if seconds is None else clock.monotonic() + seconds
    header = header_with_gpus(config, clock)
    with (
        opened(arguments.file, "w") as file,
        wishes() as told,
        contextlib.closing(Assembly(config, clock, inbox)) as assembly,
    ):
        write_header(file, header)
        cycle = Cycle(
            header.node(),
            assembly.lookout(),
            inbox=inbox,
            clock=clock,
            rhythm=config.rhythm,
            publish=lambda _node: file.flush(),
            record=lambda seen: write_observation(file, seen),
        )
        cycle.run(lambda: not told.stop.is_set() and (ends is None or clock.monotonic() < ends))
    return 0


def replay(arguments: Namespace, config: Config) -> int:
    """Tell what a recording tells: its events as they happen, or the metrics as they stand at its end."""
    orders = None
    with opened(arguments.file, "r") as file:
        recording = Recording(file)
        last = recording.header.node()
        told = fold_all(last, recording.observations())
        if arguments.watchdog is not None:
            orders = orders_for(last, Mode(arguments.watchdog), config.rules)
            told = rehearse(last, recording.observations(), orders)
        for node, events in told:
            last = node
            for event in events if arguments.events else ():
                print(json.dumps(event.as_json()), flush=True)
    if arguments.metrics:
        view = View(last, config.client_min_age, orders=orders)
        sys.stdout.write(generate_latest(NodeCollector(view)).decode())
    sys.stdout.flush()
    return 0
