"""Where a daemon's logs are, and how they are."""

from exporter.core.step import counted
from exporter.model.daemon import Daemon
from exporter.model.observation import LogFile, LogGap
from exporter.model.problem import Problem
from exporter.model.replace import replace


def told(daemon: Daemon, *, foreground: bool | None, stdout_kept: bool | None) -> Daemon:
    """It is told where they are; None: not told.

    Files that turn out to be none of them were looked for in vain: nothing more is said of those.
    """
    kept = daemon.runtime.stdout_in_file if stdout_kept is None else stdout_kept
    return replace(
        daemon,
        runtime=replace(
            daemon.runtime,
            foreground=daemon.runtime.foreground if foreground is None else foreground,
            stdout_in_file=kept,
        ),
        log=replace(
            daemon.log,
            problems=daemon.log.problems if kept == daemon.runtime.stdout_in_file else {},
            sizes=daemon.log.sizes if kept == daemon.runtime.stdout_in_file else {},
            unread=daemon.log.unread if kept == daemon.runtime.stdout_in_file else {},
        ),
    )


def file_read(daemon: Daemon, seen: LogFile) -> Daemon:
    """One of them was looked at; or is none of them any more, of which nothing more is said."""
    if not seen.followed:
        return replace(
            daemon,
            log=replace(
                daemon.log,
                problems={file: problem for file, problem in daemon.log.problems.items() if file != seen.file},
                sizes={file: size for file, size in daemon.log.sizes.items() if file != seen.file},
                unread={file: unread for file, unread in daemon.log.unread.items() if file != seen.file},
            ),
        )
    totals = replace(
        daemon.totals,
        log_lines=counted(daemon.totals.log_lines, seen.file, by=0),
        log_lines_unrecognized=counted(daemon.totals.log_lines_unrecognized, seen.file, by=0),
        log_lines_lost=counted(daemon.totals.log_lines_lost, seen.file, by=0),
    )
    sizes = {file: size for file, size in daemon.log.sizes.items() if file != seen.file}
    unread = {file: count for file, count in daemon.log.unread.items() if file != seen.file}
    return replace(
        daemon,
        log=replace(
            daemon.log,
            problems={**daemon.log.problems, seen.file: seen.problem},
            sizes=sizes if seen.size is None else {**sizes, seen.file: seen.size},
            unread=unread if seen.unread is None else {**unread, seen.file: seen.unread},
        ),
        totals=totals,
    )


def looked(daemon: Daemon, problem: Problem | None) -> Daemon:
    """Take in the `problem` of one read of all logs of this daemon.

    If it is the problem of none of the files, the read as a whole hangs or failed. Until one ends, no file is followed.
    """
    before = daemon.log.stuck
    of_files = [each for each in daemon.log.problems.values() if each not in (None, before)]
    stuck = None if problem is None or any(each in of_files for each in problem.each) else problem
    if stuck == before:
        return daemon
    problems = {file: stuck if each in (None, before) else each for file, each in daemon.log.problems.items()}
    return replace(daemon, log=replace(daemon.log, problems=problems, stuck=stuck))


def gap_read(daemon: Daemon, seen: LogGap) -> Daemon:
    """Lines of it were lost."""
    lost = counted(daemon.totals.log_lines_lost, seen.file, by=seen.lines)
    return replace(daemon, totals=replace(daemon.totals, log_lines_lost=lost))
