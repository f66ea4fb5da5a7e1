"""Runs the command that starts a daemon, where no systemd does."""

from exporter.actions.patience import Patience
from exporter.actions.program import run
from exporter.model.action import RunCommand
from exporter.sources.user import user

DEADLINE_SECONDS = 15.0
"""`nvidia-cuda-mps-control -d` returns in 14 ms (measured, R580); a script may do more than that."""

GRACE_SECONDS = 1.0
"""A daemon that is half started is no daemon: the command is let end where the exporter itself is told to."""


def run_command(step: RunCommand, *, path: str, patience: Patience, seconds: float = DEADLINE_SECONDS) -> str | None:
    """Run it, and wait for its end, not for that of the daemon which it leaves; the problem, where it fails.

    Its user's own are its only rights: a daemon of root's has root's, since it starts servers for others.
    """
    program = step.arguments[0] if step.arguments else ""
    if not program:
        return "there is no command to run"
    try:
        ended = run(
            step.arguments,
            environment={"PATH": path, **step.environment},
            seconds=seconds,
            patience=patience,
            user=user(step.uid),
            grace=GRACE_SECONDS,
        )
    except OSError as error:
        return f"{program} cannot be started: {error.strerror}"
    except ValueError as error:
        return f"{program!r} cannot be started: {error}"
    if ended.exit_code is None:
        return f"{program} did not end within {seconds:g} s: it must start the daemon in the background (-d)"
    return None if ended.exit_code == 0 else f"{program} failed (exit code {ended.exit_code}): {ended.last_words}"
