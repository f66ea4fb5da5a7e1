"""A process that the tests start."""

import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

EVIDENCE_CHARACTERS = 4000


class Ending(Protocol):
    """Something that a fixture starts."""

    def end(self) -> None:
        """End it."""


Started = TypeVar("Started", bound=Ending)


def attempt(log: Callable[[str], None], *steps: Callable[[], object]) -> None:
    """Take all steps, even if one fails."""
    for step in steps:
        try:
            step()
        except Exception:
            log(traceback.format_exc())


def until_end(started: Started) -> Iterator[Started]:
    """Yield it, for a fixture, and end it after the tests."""
    yield started
    started.end()


class Child:
    """A process in its own group. Its output goes to a file, so no pipe can fill up."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        output: Path,
        environment: Mapping[str, str],
        directory: Path = Path("/"),
        uid: int | None = None,
    ) -> None:
        self.arguments = tuple(arguments)
        self.output = output
        self.started = time.time()
        with output.open("wb") as stream:
            self._process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=directory,
                start_new_session=True,
                user=uid,
                group=uid,
                extra_groups=None if uid is None else [],
            )

    @property
    def pid(self) -> int:
        """The PID, which is also that of the group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def text(self) -> str:
        """Return its output so far."""
        return self.output.read_text(errors="replace")

    def evidence(self) -> str:
        """Return the end of its output, for the report of a failed test."""
        return f"{' '.join(self.arguments)}\nexit code {self.exit_code}\n{self.text()[-EVIDENCE_CHARACTERS:]}"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, not to its group."""
        self._process.send_signal(number)

    def wait(self, within: float | None = 15) -> int:
        """Wait for its end, and return the exit code. None: without a limit."""
        return self._process.wait(within)

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        self.send(signal.SIGTERM)

    def end(self, within: float = 10) -> None:
        """Send SIGTERM, wait, then kill the rest of its group."""
        self.send(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.wait(within)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
