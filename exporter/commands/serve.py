"""`serve`: serve the metrics of this node."""

import contextlib
import ctypes
import faulthandler
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from exporter import log
from exporter.actions.locks import ActLocks
from exporter.app import Assembly
from exporter.clock import SystemClock
from exporter.collectors.processes import raise_open_file_limit
from exporter.collectors.thread import Inbox
from exporter.config.load import Reloader
from exporter.config.reference import as_toml
from exporter.config.settings import Config, DaemonConfig
from exporter.errors import ConfigError
from exporter.history import History
from exporter.recording import header_of
from exporter.service import Service
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
        node = end_all_interrupted(stored.restore(header_of(config).node()), clock.now())
        Service(
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
    return 0
