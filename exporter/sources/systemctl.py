"""Asks systemd by `systemctl`: a child with fixed words, nothing of our environment, and a deadline."""

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass

from exporter.clock import Clock
from exporter.model.problem import Problem, command_failed, not_started, timed_out
from exporter.sources.talk import talk

_SHOW = ("show", "--all", "--no-pager", "--no-ask-password")
"""Without --all it would leave out units that do not run, and what is empty."""

_NO_SYSTEMD = ("not been booted with systemd", "bus: No such file or directory", "bus: Host is down")


@dataclass(frozen=True, slots=True)
class Shown:
    """The output of `systemctl show`, or the problem that prevented it; neither if systemd does not run."""

    text: str | None = None
    problem: Problem | None = None


class Systemctl:
    """`systemctl show`, which anybody may."""

    def __init__(
        self, clock: Clock, *, executable: str = "systemctl", path: str = os.defpath, deadline: float = 5.0
    ) -> None:
        """`path` is where `executable` is looked for; `deadline` is how long it may take to answer, in seconds."""
        self._clock = clock
        self._executable = executable
        self._environment = {"PATH": path, "LC_ALL": "C"}
        self._deadline = deadline

    def show(self, properties: tuple[str, ...], *units: str) -> Shown:
        """These properties of these units; of all that a pattern among them fits."""
        command = (self._executable, *_SHOW, f"--property={','.join(properties)}", "--", *units)
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except FileNotFoundError:
            return Shown()
        except OSError as error:
            return Shown(problem=not_started(self._executable, error))
        with child:
            told = talk(child, b"", self._deadline, self._clock)
            if told is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                return Shown(problem=timed_out(self._executable, self._deadline))
        stdout, stderr = (each.decode(errors="replace") for each in told)
        if child.returncode == 0:
            return Shown(stdout)
        if any(each in stderr for each in _NO_SYSTEMD):
            return Shown()
        last_line = (stderr.strip().splitlines() or [""])[-1][:200]
        return Shown(problem=command_failed(self._executable, child.returncode, last_line))
