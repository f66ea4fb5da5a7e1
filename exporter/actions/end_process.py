"""Ends a process, and no other that has its PID by then."""

import os
import signal

from exporter.actions.patience import Patience
from exporter.model.action import EndProcess
from exporter.sources.proc import Proc

_END_SECONDS = 5.0
"""A process that sleeps in the kernel ends when it wakes, which may be never."""

_GRACE_SECONDS = 0.5
_NAME_BYTES = 15
"""How much of a program's name the kernel keeps."""


def end_process(step: EndProcess, *, proc: Proc, patience: Patience) -> str | None:
    """SIGKILL, and wait for the end; the problem, where it does not come. Who has gone already is no problem."""
    pid = step.identity.pid
    if pid <= 0:
        return f"process {pid} is none of this PID namespace"
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        return f"process {pid} cannot be held: {error.strerror}"
    try:
        # Only now, since the PID cannot pass to anybody else unnoticed any more.
        if not _is_meant(step, proc):
            return None
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if patience.until_end(descriptor, _END_SECONDS, grace=_GRACE_SECONDS):
            return None
    except ProcessLookupError:
        return None
    except PermissionError:
        return f"process {pid} may not be ended: it takes CAP_KILL (the unit's drop-in act.conf)"
    finally:
        os.close(descriptor)
    return f"process {pid} was killed and has not ended: it may sleep in the kernel (state D in /proc/{pid}/stat)"


def _is_meant(step: EndProcess, proc: Proc) -> bool:
    pid = step.identity.pid
    if proc.start_ticks(pid) != step.identity.start_ticks:
        return False
    program = step.program.encode()[:_NAME_BYTES].decode(errors="ignore")
    return (proc.name(pid) or "").startswith(program)
