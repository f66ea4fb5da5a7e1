"""The command line: reads it, builds every part, runs, and returns the exit code. The only place that wires parts."""

import contextlib
import gzip
import json
import os
import signal
import sys
import threading
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TextIO, cast

import structlog
from prometheus_client import ProcessCollector, generate_latest

from exporter import log, status
from exporter.clock import Clock, SystemClock
from exporter.config import Config, build_config, parse_arguments, parse_duration
from exporter.core.fold import LOGS, fold, fold_all
from exporter.core.gpus import NVML
from exporter.cycle import Cycle, Sources
from exporter.demo import Simulation
from exporter.errors import ConfigError, ExporterError, RecordingError
from exporter.glance import Glance
from exporter.metrics.catalogue import NodeCollector
from exporter.metrics.exposition import Exposition
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.notify import Notifier
from exporter.privilege import keep_capabilities_from_children
from exporter.recording import Header, RecordedDaemon, RecordedGpu, Recording, write_header, write_observation
from exporter.sources.control import ATTEMPTS as CONTROL_ATTEMPTS
from exporter.sources.control import ControlClient
from exporter.sources.eye import Eye, Inbox
from exporter.sources.logs import DaemonLogs
from exporter.sources.nvml import Nvml
from exporter.sources.processes import Processes
from exporter.sources.reading import Reading, within
from exporter.view import View
from exporter.web import Site, WebServer

HEALTHY_SECONDS = 30.0
"""The cycle turns at least twice a second; after this long without a turn it has stopped."""

LOG_PERIOD = 0.2
PROCESS_PERIOD = 0.0
PROCESS_WAIT = 0.2
TOLD_EVERY = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: well; 1: it failed, or `status` found something wrong; 2: it was asked wrongly."""
    parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        log.configure(parsed.log_level, parsed.log_format, sys.stderr)
        return _COMMANDS[parsed.command](parsed, build_config(parsed, os.environ))
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
    return _serve(config, _header(config).node(), _sources(config, inbox, clock), inbox, clock)


def demo(arguments: Namespace, config: Config) -> int:
    """Serve a simulated node, through the same core."""
    clock = SystemClock()
    inbox: Inbox = Inbox()
    simulation = Simulation(arguments.seed, clock)
    node = simulation.node()
    for seen in simulation.look().observations:
        node, _ = fold(node, seen)
    eye = Eye("demo", simulation.look, period=1.0, deadline=5.0, inbox=inbox, clock=clock)
    return _serve(config, node, Sources(eyes=(eye,), control={}), inbox, clock)


def show_status(arguments: Namespace, config: Config) -> int:
    """Look once, and say how the node is."""
    clock = SystemClock()
    wait = threading.Event().wait
    glance = Glance(_header(config).node(), clock, deadline=_ask_deadline(config), wait=wait)
    nvml, processes, logs = Nvml(clock), _processes(config, clock, wait=0.0), _logs(config, clock)
    control = _control_clients(config, clock)
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
    with _opened(arguments.file, "w") as file, _stopping() as stopping:
        write_header(file, header)
        cycle = Cycle(
            header.node(),
            _sources(config, inbox, clock),
            inbox=inbox,
            clock=clock,
            rhythm=config.rhythm,
            publish=lambda _node: file.flush(),
            record=lambda seen: write_observation(file, seen),
        )
        cycle.run(lambda: not stopping.is_set() and (ends is None or clock.monotonic() < ends))
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


def _serve(config: Config, node: Node, sources: Sources, inbox: Inbox, clock: Clock) -> int:
    keep_capabilities_from_children()
    exposition = Exposition(clock)
    itself = ProcessCollector(registry=None)
    notifier = Notifier(os.environ)
    turned_at = clock.monotonic()
    ready = False

    def publish(node: Node) -> None:
        exposition.publish(NodeCollector(View(node, config.client_min_age, clock.step()), beside=itself))

    def turned() -> None:
        nonlocal turned_at, ready
        turned_at = clock.monotonic()
        if cycle.node.sources and not ready:
            ready = True
            notifier.ready()
        notifier.alive(status.line(cycle.node))

    cycle = Cycle(node, sources, inbox=inbox, clock=clock, rhythm=config.rhythm, publish=publish, turned=turned)
    site = Site(
        exposition,
        healthy=lambda: clock.monotonic() - turned_at < HEALTHY_SECONDS,
        status=lambda: status.table(cycle.node),
    )
    web = WebServer(site, [config.listen])
    with _stopping() as stopping:
        web.open()
        structlog.get_logger().info(
            "serving", metrics=f"{web.scheme}://{config.listen[0] or 'localhost'}:{web.port}/metrics"
        )
        cycle.run(lambda: not stopping.is_set())
        notifier.stopping()
        web.close()
    return 0


def _sources(config: Config, inbox: Inbox, clock: Clock) -> Sources:
    def eye(
        name: str,
        look: Callable[[], Reading],
        period: float | None,
        deadline: float = config.look_deadline,
        told_every: float = 0.0,
    ) -> Eye:
        return Eye(name, look, period=period, deadline=deadline, inbox=inbox, clock=clock, told_every=told_every)

    nvml = eye(NVML, Nvml(clock).look, period=None)
    processes = _processes(config, clock, wait=PROCESS_WAIT)
    control = {
        client.daemon: (client, eye("control", client.look, period=None, deadline=_ask_deadline(config)))
        for client in _control_clients(config, clock)
    }
    eyes = (
        nvml,
        *(eye for _, eye in control.values()),
        eye(LOGS, _logs(config, clock).look, period=LOG_PERIOD, told_every=TOLD_EVERY),
        eye("process", processes.look, period=PROCESS_PERIOD, told_every=TOLD_EVERY),
    )
    return Sources(eyes=eyes, control=control, processes=processes, nvml=nvml)


def _ask_deadline(config: Config) -> float:
    """How long one look at a daemon may take: it may be refused a few times, and then not answer."""
    return config.control_deadline * (CONTROL_ATTEMPTS + 1)


def _control_clients(config: Config, clock: Clock) -> tuple[ControlClient, ...]:
    return tuple(
        ControlClient(
            daemon.name,
            daemon.pipe_directory,
            executable=config.control_executable,
            deadline=config.control_deadline,
            clock=clock,
            path=os.environ.get("PATH", os.defpath),
        )
        for daemon in config.daemons
    )


def _processes(config: Config, clock: Clock, wait: float) -> Processes:
    directories = {daemon.name: daemon.pipe_directory for daemon in config.daemons}
    return Processes(directories, proc=config.proc, clock=clock, wait=wait)


def _logs(config: Config, clock: Clock) -> DaemonLogs:
    return DaemonLogs({daemon.name: daemon.log_directory for daemon in config.daemons}, clock)


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
def _stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets."""
    stopping = threading.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, lambda *_: stopping.set()) for each in signals]
    try:
        yield stopping
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


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
