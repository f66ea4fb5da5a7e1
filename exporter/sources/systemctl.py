"""Asks systemd by `systemctl`: a child with fixed words, nothing of our environment, and a deadline."""

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass

from exporter.clock import Clock
from exporter.sources.talk import talk

_SHOW = ("show", "--all", "--no-pager", "--no-ask-password")
"""Without --all it would leave out units that do not run, and what is empty."""

_NO_SYSTEMD = ("not been booted with systemd", "bus: No such file or directory", "bus: Host is down")


@dataclass(frozen=True, slots=True)
class Shown:
    """What was shown, or the `problem` that kept it from being; neither where systemd does not run."""

    text: str | None = None
    problem: str | None = None


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
            return Shown(problem=f"{self._executable} cannot be started: {error.strerror}")
        with child:
            told = talk(child, b"", self._deadline, self._clock)
            if told is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                return Shown(problem=f"systemctl did not list the units within {self._deadline:g} s")
        stdout, stderr = (each.decode(errors="replace") for each in told)
        if child.returncode == 0:
            return Shown(stdout)
        if any(each in stderr for each in _NO_SYSTEMD):
            return Shown()
        said = (stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1][:200]
        return Shown(problem=f"systemctl cannot list the units: {said}")
