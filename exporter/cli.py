"""The command line: reads it, does what it says, and returns the exit code."""

import contextlib
import faulthandler
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from prometheus_client import generate_latest

from exporter import log
from exporter.assembly import Assembly
from exporter.clock import SystemClock
from exporter.config import (
    Config,
    Reloader,
    as_toml,
    build_config,
    nearest_config,
    parse_arguments,
    parse_duration,
    planned,
)
from exporter.core.fold import fold_all
from exporter.core.watchdog.rehearsal import orders_for, rehearse
from exporter.core.watchdog.results import taken_up
from exporter.cycle import Cycle
from exporter.demo import CALM_SECONDS, PAST_SECONDS, Simulation, serve_simulated, simulated
from exporter.doctor import Surroundings, examine, gather, report_object, report_text
from exporter.errors import ConfigError, ExporterError, HistoryError, ServiceError
from exporter.history import History
from exporter.inquiry import Inquiry, told_lines, understood
from exporter.look import look
from exporter.metrics.catalogue import NodeCollector
from exporter.model.watch import Mode
from exporter.recording import Recording, write_header, write_observation
from exporter.recording_file import opened
from exporter.recording_header import header_of, header_with_gpus
from exporter.service import Service
from exporter.service_socket import ask_service
from exporter.signals import wishes
from exporter.sources.eye import Inbox
from exporter.store.archive import Archive, read_history
from exporter.store.writer import Writer
from exporter.telling import incidents
from exporter.telling.wanted import Wanted
from exporter.terminal.fitting import bare, whole
from exporter.terminal.terminal import Terminal
from exporter.terminal.watching import Watching
from exporter.view import View
from exporter.web import WebSecurity

STDERR = 2
"""As a descriptor: what has crashed may not be able to use a file object."""

SERVICE_SECONDS = 30.0
"""How long the running service may take to do as it is asked."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: well; 1: it failed, or what it shows is not well; 2: it was asked wrongly.

    Of `doctor`, 1 is that something is worth a warning, 2 that something is an error.
    """
    parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        if parsed.command == "doctor":
            return doctor(parsed)
        config = build_config(parsed, os.environ)
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


def serve(arguments: Namespace, config: Config) -> int:
    """Watch this node and serve its metrics; or say how it would."""
    if arguments.config_check:
        if config.web_config_file is not None:
            WebSecurity.load(config.web_config_file)
        sys.stdout.write(as_toml(config))
        return 0
    # systemd ends a service that hangs by SIGABRT: then each thread says what it was at.
    faulthandler.enable(STDERR)
    clock = SystemClock()
    inbox: Inbox = Inbox()
    assembly = Assembly(config, clock, inbox)
    reloader = Reloader(arguments, os.environ, config, clock)
    writer = Writer(Archive(config.state_directory, config.history, clock), clock)
    hands = assembly.hands()
    with contextlib.closing(assembly), contextlib.closing(writer), contextlib.closing(hands):
        remembered = writer.open()
        Service(
            config,
            taken_up(remembered.into(header_of(config).node()), clock.now()),
            assembly.lookout(),
            inbox,
            clock,
            reloader=reloader,
            driver=assembly.nvml,
            history=History(incidents=remembered.incidents, events=remembered.events),
            writer=writer,
            hands=hands,
        ).run()
    return 0


def demo(arguments: Namespace, config: Config) -> int:
    """Serve a simulated node, through the same core."""
    clock = SystemClock()
    plan = tuple(map(planned, arguments.at))
    past = CALM_SECONDS if arguments.calm else PAST_SECONDS
    simulation = Simulation(arguments.seed, clock, calm=arguments.calm, past=past)
    config = simulated(config)
    reloader = Reloader(arguments, os.environ, config, clock, completed=simulated)
    serve_simulated(config, simulation, plan, reloader, clock)
    return 0


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


def show_incidents(arguments: Namespace, config: Config) -> int:
    """List the last faults, or tell all of one: as the running service knows them, or as it kept them."""
    terminal = Terminal(sys.stdout, os.environ, arguments.color)
    wanted = Wanted(id=arguments.id, daemon=arguments.daemon, open=arguments.open, limit=arguments.limit)
    shape = {"as_json": arguments.json, "width": terminal.width}
    told = ask_service(config.runtime_directory, "incidents", SERVICE_SECONDS, **shape, **asdict(wanted))
    if told is None:
        told = _kept_incidents(config, wanted, **shape)
        print(
            "no service runs: this is what one has kept; what is open may be over by now, and a PID be somebody else's",
            file=sys.stderr,
        )
    exit_code = understood(lambda: int(told["exit_code"]))
    if arguments.json:
        terminal.show_text(understood(lambda: str(told["text"])))
    else:
        terminal.show(told_lines(told))
    return exit_code


def _kept_incidents(config: Config, wanted: Wanted, **shape: Any) -> Mapping[str, Any]:
    try:
        kept, _ = read_history(config.state_directory)
    except HistoryError as error:
        raise ServiceError(
            f"no service answers in {config.runtime_directory}, and nothing that one has kept can be read: {error}"
        ) from error
    told = incidents.told(kept, wanted, **shape, now=SystemClock().now(), directory_of=lambda _: None, watched=False)
    if "problem" in told:
        raise ServiceError(told["problem"])
    return told


def pause(_arguments: Namespace, config: Config) -> int:
    """Have the running service let go of the driver."""
    return _command(config, "pause")


def resume(arguments: Namespace, config: Config) -> int:
    """Have it take up the driver again, or restart a daemon again."""
    return _command(config, "resume", **({} if arguments.daemon is None else {"daemon": arguments.daemon}))


def _command(config: Config, command: str, **arguments: str) -> int:
    told = ask_service(config.runtime_directory, command, SERVICE_SECONDS, **arguments)
    if told is None:
        raise ServiceError(f"no service answers in {config.runtime_directory}; is it running?")
    print(understood(lambda: str(told["said"])))
    return 0


def doctor(arguments: Namespace) -> int:
    """Find the classic mistakes, and say how to mend each. A configuration that cannot be used is one of them."""
    config, problem = nearest_config(arguments, os.environ)
    log.configure(config.log_level, config.log_format, sys.stderr)
    surroundings = Surroundings(path=os.environ.get("PATH", os.defpath))
    facts = gather(config, surroundings, SystemClock(), look=look, problem=problem)
    report = examine(facts)
    if arguments.json:
        sys.stdout.write(json.dumps(report_object(report, facts), indent=2) + "\n")
    else:
        sys.stdout.write(report_text(report, facts, verbose=arguments.verbose))
    return report.exit_code


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


_COMMANDS: Mapping[str, Callable[[Namespace, Config], int]] = {
    "serve": serve,
    "demo": demo,
    "status": show_status,
    "incidents": show_incidents,
    "record": record,
    "replay": replay,
    "pause": pause,
    "resume": resume,
}
