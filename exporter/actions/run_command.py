"""The command that starts a daemon without systemd."""

from exporter.actions.patience import Patience
from exporter.actions.program import run
from exporter.model.action import RunCommand
from exporter.model.reason import Reason, ReasonCode
from exporter.sources.user import user

DEADLINE_SECONDS = 15.0
"""`nvidia-cuda-mps-control -d` returns in 14 ms (measured, R580); a script may do more than that."""

GRACE_SECONDS = 1.0
"""A daemon that is half started is no daemon: the command is let end where the exporter itself is told to."""


def run_command(step: RunCommand, *, path: str, patience: Patience, seconds: float = DEADLINE_SECONDS) -> Reason | None:
    """Run the command and wait for its end, not for that of the daemon that it starts. Return why it failed.

    It has the rights of its user and no others. A daemon of root has root's: it starts servers for other users.
    """
    program = step.arguments[0] if step.arguments else ""
    if not program:
        return Reason(ReasonCode.NO_PROGRAM)
    try:
        as_user = user(step.uid)
    except PermissionError:
        return Reason(ReasonCode.USER_NOT_PERMITTED, command=program, uid=step.uid)
    try:
        ended = run(
            step.arguments,
            environment={"PATH": path, **step.environment},
            seconds=seconds,
            patience=patience,
            user=as_user,
            grace=GRACE_SECONDS,
        )
    except OSError as error:
        return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=program, text=error.strerror)
    except ValueError as error:
        return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=program, text=str(error))
    if ended.exit_code is None:
        return Reason(ReasonCode.PROGRAM_NOT_ENDED, command=program, seconds=seconds)
    if ended.exit_code == 0:
        return None
    return Reason(ReasonCode.PROGRAM_FAILED, command=program, exit_code=ended.exit_code, text=ended.last_line)
