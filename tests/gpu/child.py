"""One process that the tests have started."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

EVIDENCE_CHARACTERS = 4000


class Child:
    """A process in a group of its own, whose output goes to a file: no pipe to fill up, and no thread to read it."""

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
        """The PID, its group's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def text(self) -> str:
        """All that it has said so far."""
        return self.output.read_text(errors="replace")

    def evidence(self) -> str:
        """The end of its output, for the report of a failed test."""
        return f"{' '.join(self.arguments)}\nexit code {self.exit_code}\n{self.text()[-EVIDENCE_CHARACTERS:]}"

    def send(self, number: signal.Signals) -> None:
        """Send it alone a signal."""
        self._process.send_signal(number)

    def wait(self, within: float | None = 15) -> int:
        """Its exit code, once it has ended; None: however long that takes."""
        return self._process.wait(within)

    def end_later(self) -> None:
        """Ask it to leave, and don't wait for it."""
        self.send(signal.SIGTERM)

    def end(self, within: float = 10) -> None:
        """Ask it to leave, wait, and then kill whatever is left of its group."""
        self.send(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.wait(within)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
