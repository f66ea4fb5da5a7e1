"""Where a daemon's logs are."""

from exporter.model.daemon import Daemon
from exporter.model.replace import replace


def told(daemon: Daemon, *, foreground: bool | None, stdout_kept: bool | None) -> Daemon:
    """It is told where they are; None: not told.

    Files that turn out to be none of them were looked for in vain: nothing more is said of those.
    """
    kept = daemon.stdout_kept if stdout_kept is None else stdout_kept
    return replace(
        daemon,
        foreground=daemon.foreground if foreground is None else foreground,
        stdout_kept=kept,
        log_problems=daemon.log_problems if kept == daemon.stdout_kept else {},
        log_sizes=daemon.log_sizes if kept == daemon.stdout_kept else {},
    )
