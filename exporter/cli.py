"""The command line: reads it, builds every part, runs, and returns the exit code. The only place that wires parts."""

import contextlib
import gzip
import json
import os
import sys
import threading
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TextIO, cast

from prometheus_client import generate_latest

from exporter import log, status
from exporter.assembly import Assembly
from exporter.clock import Clock, SystemClock
from exporter.config import Config, as_toml, build_config, parse_arguments, parse_duration
from exporter.core.fold import LOGS, fold, fold_all
from exporter.core.gpus import NVML
from exporter.cycle import Cycle
from exporter.demo import Simulation
from exporter.errors import ConfigError, ExporterError, RecordingError
from exporter.glance import Glance
from exporter.metrics.catalogue import NodeCollector
from exporter.model.observation import GpuReading
from exporter.recording import Header, RecordedDaemon, RecordedGpu, Recording, write_header, write_observation
from exporter.service import Service, stopping
from exporter.sources.eye import Eye, Inbox
from exporter.sources.lookout import Lookout
from exporter.sources.nvml import Nvml
from exporter.sources.reading import within
from exporter.view import View


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: well; 1: it failed, or `status` found something wrong; 2: it was asked wrongly."""
    parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        config = build_config(parsed, os.environ)
        if getattr(parsed, "config_check", False):
            sys.stdout.write(as_toml(config))
            return 0
        log.configure(config.log_level, config.log_format, sys.stderr)
        return _COMMANDS[parsed.command](parsed, config)
    except ConfigError as error:
        print(f"cuda-mps-exporter: {error}", file=sys.stderr)
        return 2
    except ExporterError as error:
        print(f"cuda-mps-exporter: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (nobody reads on; the interpreter still flushes it)
        return 1


def serve(_arguments: Namespace, config: Config) -> int:
    """Watch this node and serve its metrics."""
    clock = SystemClock()
    inbox: Inbox = Inbox()
    assembly = Assembly(config, clock, inbox)
    Service(config, _header(config).node(), assembly.lookout(), inbox, clock).run({})
    return 0


def demo(arguments: Namespace, config: Config) -> int:
    """Serve a simulated node, through the same core."""
    clock = SystemClock()
    inbox: Inbox = Inbox()
    simulation = Simulation(arguments.seed, clock)
    node = simulation.node()
    for seen in simulation.look().observations:
        node, _ = fold(node, seen)
    eye = Eye("demo", simulation.look, period=1.0, deadline=5.0, inbox=inbox, clock=clock)
    Service(config, node, Lookout((eye,)), inbox, clock).run({})
    return 0


def show_status(arguments: Namespace, config: Config) -> int:
    """Look once, and say how the node is."""
    clock = SystemClock()
    wait = threading.Event().wait
    assembly = Assembly(config, clock, Inbox())
    glance = Glance(_header(config).node(), clock, deadline=assembly.ask_deadline, wait=wait)
    nvml, processes, logs = assembly.nvml, assembly.processes(wait=0.0), assembly.logs()
    control = [assembly.control_client(daemon) for daemon in glance.node.daemons.values()]
    with contextlib.closing(nvml), contextlib.closing(processes), contextlib.closing(logs):
        glance.look(LOGS, logs.look)
        glance.watch(processes)
        glance.ask(control)
        glance.look(NVML, nvml.look)
        glance.watch(processes)
        glance.look_at_strangers(nvml.look, control)
    told = json.dumps(status.as_json(glance.node), indent=2) + "\n" if arguments.json else status.table(glance.node)
    sys.stdout.write(told)
    return status.exit_code(glance.node)


def record(arguments: Namespace, config: Config) -> int:
    """Write down what is seen, until interrupted."""
    clock = SystemClock()
    inbox: Inbox = Inbox()
    seconds = None if arguments.duration is None else parse_duration("--for", arguments.duration)
    ends = None if seconds is None else clock.monotonic() + seconds
    header = _header(config, *_recorded_node(config, clock))
    with _opened(arguments.file, "w") as file, stopping() as stop:
        write_header(file, header)
        cycle = Cycle(
            header.node(),
            Assembly(config, clock, inbox).lookout(),
            inbox=inbox,
            clock=clock,
            rhythm=config.rhythm,
            publish=lambda _node: file.flush(),
            record=lambda seen: write_observation(file, seen),
        )
        cycle.run(lambda: not stop.is_set() and (ends is None or clock.monotonic() < ends))
    return 0


def replay(arguments: Namespace, config: Config) -> int:
    """Tell what a recording tells: its events as they happen, or the metrics as they stand at its end."""
    with _opened(arguments.file, "r") as file:
        recording = Recording(file)
        last = recording.header.node()
        for node, events in fold_all(last, recording.observations()):
            last = node
            for event in events if arguments.events else ():
                print(json.dumps(event.as_json()), flush=True)
    if arguments.metrics:
        sys.stdout.write(generate_latest(NodeCollector(View(last, config.client_min_age))).decode())
    sys.stdout.flush()
    return 0


_COMMANDS: Mapping[str, Callable[[Namespace, Config], int]] = {
    "serve": serve,
    "demo": demo,
    "status": show_status,
    "record": record,
    "replay": replay,
}


def _header(config: Config, gpus: tuple[RecordedGpu, ...] = (), driver: str | None = None) -> Header:
    daemons = tuple(
        RecordedDaemon(
            name=daemon.name,
            pipe_directory=str(daemon.pipe_directory),
            log_directory=str(daemon.log_directory),
            expected=daemon.expected,
        )
        for daemon in config.daemons
    )
    first = daemons[0]
    facts = {"driver": driver, "pipe_directory": first.pipe_directory, "log_directory": first.log_directory}
    return Header(daemons=daemons, gpus=gpus, facts={key: fact for key, fact in facts.items() if fact is not None})


def _recorded_node(config: Config, clock: Clock) -> tuple[tuple[RecordedGpu, ...], str | None]:
    """The GPUs and the driver, as far as NVML tells of them in time."""
    nvml = Nvml(clock)
    look = within(config.look_deadline, nvml.look)
    readings = [seen for seen in look.observations if isinstance(seen, GpuReading) and seen.index is not None]
    gpus = tuple(RecordedGpu(index=each.index or 0, uuid=each.gpu, name=each.name or "") for each in readings)
    return gpus, nvml.driver_version() if readings else None


@contextlib.contextmanager
def _opened(path: str, mode: Literal["r", "w"]) -> Iterator[TextIO]:
    """A recording to read or write, packed if it is named so; `-` is standard input or output."""
    if path == "-":
        yield sys.stdin if mode == "r" else sys.stdout
        return
    try:
        with cast("TextIO", (gzip.open if path.endswith(".gz") else open)(path, f"{mode}t", errors="replace")) as file:
            yield file
    except BrokenPipeError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
