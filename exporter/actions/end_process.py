"""The end of a process, and of no other that has its PID by then."""

import os
import signal
from pathlib import Path

from exporter.actions.patience import Patience
from exporter.model.action import EndProcess, Role
from exporter.model.reason import Reason, ReasonCode
from exporter.model.variables import PIPE_DIRECTORY
from exporter.parse.proc import MpsProgram, mps_program
from exporter.sources.directory import Directory, Root
from exporter.sources.proc import Proc

_END_SECONDS = 5.0
"""A process that sleeps in the kernel ends when it wakes, which may be never."""

_GRACE_SECONDS = 0.5

_PROGRAMS = {Role.DAEMON: MpsProgram.CONTROL, Role.SERVER: MpsProgram.SERVER, Role.CLIENT: None}


def end_process(step: EndProcess, *, pipe: Directory, proc: Proc, patience: Patience) -> Reason | None:
    """Send SIGKILL, and wait for the end. Return the problem if it does not come; None if the process had ended.

    `pipe` is the pipe directory of the daemon for which this is done. A process that is another than the one that is
    meant, or has another role by now, is left alone.
    """
    pid = step.identity.pid
    if pid <= 0:
        return Reason(ReasonCode.PROCESS_NOT_IN_NAMESPACE, pid=pid)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        return Reason(ReasonCode.PROCESS_NOT_OPENED, pid=pid, text=error.strerror)
    try:
        # Checked only now: while the descriptor is open, a signal through it cannot reach another process.
        if not _is_meant(step, pipe, proc):
            return None
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if patience.until_end(descriptor, _END_SECONDS, grace=_GRACE_SECONDS):
            return None
    except ProcessLookupError:
        return None
    except PermissionError:
        return Reason(ReasonCode.PROCESS_NOT_KILLABLE, pid=pid)
    finally:
        os.close(descriptor)
    return Reason(ReasonCode.PROCESS_NOT_ENDED, pid=pid)


def _is_meant(step: EndProcess, pipe: Directory, proc: Proc) -> bool:
    """Return whether it is the same process still, runs the program of its role, and names no other daemon."""
    pid = step.identity.pid
    facts = proc.facts(pid)
    if facts is None or facts.start_ticks != step.identity.start_ticks:
        return False
    if mps_program(facts.executable, facts.command) is not _PROGRAMS[step.role]:
        return False
    # A client chooses its environment, and could exempt itself.
    return step.role is Role.CLIENT or not _is_of_another_daemon(step, pipe, proc)


def _is_of_another_daemon(step: EndProcess, pipe: Directory, proc: Proc) -> bool:
    """Return whether its environment names another pipe directory, as far as both can be reached."""
    path = (proc.variables(step.identity.pid, (PIPE_DIRECTORY,)) or {}).get(PIPE_DIRECTORY)
    if path is None or not path.startswith("/"):
        return False
    root = Root(proc, step.identity.pid, step.identity.start_ticks)
    there, here = Directory(Path(path), root).identity(), pipe.identity()
    return there is not None and here is not None and there != here
