"""`serve` and `record`: commands that run the main loop."""

import contextlib
import ctypes
import faulthandler
import gc
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from exporter import log
from exporter.actions.locks import ActLocks
from exporter.app import Assembly
from exporter.clock import Clock, SystemClock, boot_ns
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.processes import raise_open_file_limit
from exporter.collectors.thread import Inbox, collect_each
from exporter.config.checks import checked, duration
from exporter.config.load import Reloader, as_toml
from exporter.config.settings import Config, DaemonConfig
from exporter.errors import ConfigError
from exporter.history import History
from exporter.loop import Loop
from exporter.model.node import CollectorName
from exporter.model.observation import GpuReading
from exporter.recording import Header, Mask, RecordedGpu, header_of, open_recording, write_header, write_observation
from exporter.service import Service, handle_signals
from exporter.store.database import StateFile
from exporter.store.writer import Writer
from exporter.watchdog.evaluation import mark_state_lost
from exporter.watchdog.restart import end_all_interrupted
from exporter.web.web_config import WebSecurity

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE_BYTES = 1 << 16


def use_few_arenas() -> None:
    """Make all threads allocate from one arena, and return large blocks to the kernel when they are freed.

    By default, glibc gives each thread an arena, and each arena retains freed memory. The exporter has about 15
    threads, and only one runs Python at a time, so they do not wait for the arena. The large blocks are the published
    metrics: some hundred KB whenever something changes.

    Environment variables (MALLOC_ARENA_MAX and others) have the same effect, but only if they are set before the
    process starts. Other C libraries do not have these settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)


SWITCH_SECONDS = 0.0005
"""How long a thread computes before another one may; Python's default is 0.005."""

FULL_COLLECTION_AFTER = 100
"""Partial garbage collections before a full one; Python's default is 10."""


def pause_threads_less() -> None:
    """Let no thread delay the others for long.

    A full garbage collection stops all threads: for 55 ms with 1,024 clients. It found nothing in a minute of scrapes
    and pages, because no lasting objects refer to each other in a cycle. Later collections leave out the modules. The
    garbage of their imports is removed before.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    youngest, middle, _ = gc.get_threshold()
    gc.set_threshold(youngest, middle, FULL_COLLECTION_AFTER)
    gc.collect()
    gc.freeze()


STDERR = 2
"""A descriptor, because a file object can be unusable after a crash."""


def same_directories(daemons: Sequence[DaemonConfig]) -> str | None:
    """Return a problem if two daemons have one pipe directory by two paths (a link or a bind mount).

    A path that cannot be reached now is skipped. This reads the file system, which may hang.
    """
    by_inode: dict[tuple[int, int], DaemonConfig] = {}
    for daemon in daemons:
        try:
            status = daemon.pipe_directory.stat()
        except OSError:
            continue
        first = by_inode.setdefault((status.st_dev, status.st_ino), daemon)
        if first is not daemon:
            return (
                f"daemons: {str(first.pipe_directory)!r} and {str(daemon.pipe_directory)!r} are the same directory"
                " (by a link or a bind mount), and a directory has one daemon; remove one of the two"
            )
    return None


def serve(arguments: Namespace, config: Config) -> int:
    """Serve until a signal, or check the configuration and print it."""
    if arguments.config_check:
        if config.web_config_file is not None:
            WebSecurity(config.web_config_file)
        problem = same_directories(config.daemons)
        if problem is not None:
            raise ConfigError(problem)
        sys.stdout.write(as_toml(config))
        return 0
    use_few_arenas()
    pause_threads_less()
    with log.in_background() as stderr:
        return _serve(arguments, config, stderr)


def _serve(arguments: Namespace, config: Config, stderr: log.BackgroundStream) -> int:
    log.configure(config.log_level, config.log_format, sys.stderr)
    # systemd ends a hung service with SIGABRT. faulthandler then writes the stack of each thread.
    faulthandler.enable(STDERR)
    raise_open_file_limit()
    clock = SystemClock()
    inbox: Inbox = Inbox()
    assembly = Assembly(config, clock, inbox)
    reloader = Reloader(arguments, os.environ, config)
    writer = Writer(StateFile(config.state_directory, config.constants.retention, clock), clock)
    runner = assembly.action_runner()
    locks = ActLocks((config.constants.lock_directory, config.runtime_directory))
    # Closed in reverse order: the locks are released after the last action has ended.
    with contextlib.ExitStack() as closing:
        for each in (locks, assembly, writer, runner):
            closing.callback(each.close)
        stored = writer.open()
        restored = stored.restore(header_of(config).node(), booted_at=clock.now() - boot_ns() / 1e9)
        node = end_all_interrupted(restored, clock.now())
        return Service(
            config,
            node if writer.available else mark_state_lost(node, clock.now()),
            assembly.pool(),
            inbox,
            clock,
            reloader=reloader,
            driver=assembly.nvml.driver,
            history=History(stored.incidents, stored.events, stored.samples),
            store=writer,
            runner=runner,
            locks=locks,
            stderr=stderr,
        ).run()


def record(arguments: Namespace, config: Config) -> int:
    """Write observations until interrupted, or for the given duration."""
    log.configure(config.log_level, config.log_format, sys.stderr)
    clock = SystemClock()
    inbox: Inbox = Inbox()
    seconds = None if arguments.duration is None else checked("--for", duration, arguments.duration)
    if seconds == 0:
        raise ConfigError("--for: invalid value '0': expected a duration above 0")
    end = None if seconds is None else clock.monotonic() + seconds
    header = _header(config, clock)
    mask = Mask(os.urandom(32)) if arguments.mask else None
    with (
        open_recording(arguments.file, "x") as file,
        handle_signals(lambda: inbox.put(())) as signals,
        contextlib.closing(Assembly(config, clock, inbox)) as assembly,
    ):
        write_header(file, header, mask)
        loop = Loop(
            header.node(),
            assembly.pool(),
            inbox=inbox,
            clock=clock,
            intervals=config.constants.intervals,
            publish=lambda _node: file.flush(),
            record=lambda observation: write_observation(file, observation, mask),
        )
        loop.run(lambda: not signals.stop and (end is None or clock.monotonic() < end))
    return 0


def _header(config: Config, clock: Clock) -> Header:
    """Return the header, with the GPUs and the driver if NVML returns them before the deadline."""
    with contextlib.closing(Nvml(clock)) as nvml:
        readings = collect_each(config.constants.collect_deadline, {CollectorName.NVML: nvml.collect})
        gpus = tuple(
            RecordedGpu(index=each.index, uuid=each.gpu, name=each.name or "", pci_bus_id=each.pci_bus_id)
            for each in readings[CollectorName.NVML].observations
            if isinstance(each, GpuReading) and each.index is not None
        )
        return header_of(config, gpus, nvml.driver_version() if gpus else None)
