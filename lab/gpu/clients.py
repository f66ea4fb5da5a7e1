"""Load programs, and their own reports."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.eventually import eventually

from .child import Child
from .mps import ControlDaemon

Event = dict[str, Any]

# It starts a program again when that has ended.
AGAIN = ("sh", "-c", 'while :; do "$@"; done', "sh")
# A directory without a daemon: CUDA starts without MPS and reports nothing.
NO_DAEMON = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
FAREWELL_SECONDS = 10
LOAD_PROGRAM = Path(__file__).with_name("load.cu")
LOADS: Mapping[str, Mapping[str, object]] = {
    "idle": {"busy_ms": 0, "every_ms": 10},
    "busy": {"busy_ms": 2, "every_ms": 10},
    "full": {"busy_ms": 20, "every_ms": 0},
}
"""Options of the load program."""


class Client:
    """A running load program. Its own report is the truth for the tests."""

    def __init__(self, name: str, child: Child, uid: int, options: Mapping[str, str]) -> None:
        self.name = name
        self.child = child
        self.uid = uid
        self.options = options

    @property
    def pid(self) -> int:
        """The PID that MPS, NVML and the exporter should report."""
        return self.child.pid

    @property
    def inner_pid(self) -> int:
        """Its own PID. In a container, it is another one."""
        return int(self._one("ready")["pid"])

    @property
    def started(self) -> float:
        """Unix time of its start."""
        return self.child.started

    @property
    def allocated_bytes(self) -> int:
        """Bytes that it allocated with cudaMalloc, without its context."""
        return int(self._one("ready")["allocated_bytes"])

    @property
    def ready_at(self) -> float:
        """Unix time at which it had its context and its memory."""
        return float(self._one("ready")["at"])

    @property
    def processors(self) -> int:
        """Number of SMs that it may use."""
        return int(self._one("ready")["processors"])

    @property
    def done_at(self) -> float:
        """Unix time right before its exit."""
        return float(self._one("done")["at"])

    @property
    def error_codes(self) -> list[int]:
        """CUDA errors that it received."""
        return [event["code"] for event in self.events("error")]

    def events(self, kind: str) -> list[Event]:
        """Return its events of a kind so far. An incomplete last line is ignored."""
        return events_of(self.child.text(), kind)

    def settle(self, within: float = 40) -> None:
        """Wait until it is ready or refused."""
        eventually(self._assert_settled, within=within)

    def ready(self) -> None:
        """Wait until it has its context and its memory."""
        self.settle()
        if not self.events("ready"):
            raise RuntimeError(self.child.evidence())

    def fails(self, within: float = 20) -> list[int]:
        """Wait for its first CUDA error, and return its errors."""
        eventually(self._assert_failed, within=within)
        return self.error_codes

    def leave(self) -> None:
        """Let it exit normally."""
        self.child.end()

    def truth(self) -> dict[str, Any]:
        """Return what happened to it, in the format of truth files."""
        truth: dict[str, Any] = {
            "name": self.name,
            "started": round(self.started, 4),
            "gpus": self.options.get("--devices", "0"),
            "environment": None,
            "uid": self.uid,
            "exit_code": self.child.exit_code,
        }
        for event in self.events("ready"):
            truth.update(ready_at=event["at"], allocated_bytes=event["allocated_bytes"])
        for event in self.events("fault"):
            truth.update(fault=event["kind"], faulted=event["at"])
        for event in self.events("done"):
            truth.update({key: event[key] for key in ("launches", "busy_seconds", "wall_seconds")})
            truth["done_at"] = event["at"]
        if self.error_codes:
            truth["cuda_errors"] = [_truth_of_error(event) for event in self.events("error")]
        return truth

    def _one(self, kind: str) -> Event:
        (event,) = self.events(kind)
        return event

    def _assert_settled(self) -> None:
        over = self.child.exit_code is not None
        assert over or self.events("ready") or self.events("error"), f"{self.name} has reported nothing yet"

    def _assert_failed(self) -> None:
        assert self.error_codes, f"{self.name} has had no CUDA error"


class Clients:
    """Start clients of one daemon, and end all of them."""

    _kind: type[Client] = Client

    def __init__(self, program: Path, daemon: ControlDaemon, directory: Path) -> None:
        self._program = program
        self._daemon = daemon
        self._directory = directory
        self._started: list[Client] = []
        directory.mkdir()

    def start(
        self,
        name: str,
        *,
        environment: Mapping[str, str] | None = None,
        uid: int | None = None,
        again: bool = False,
        command: Sequence[str] = (),
        **options: object,
    ) -> Client:
        """Start a load program, or another command. `again`: start it again whenever it ends."""
        texts = {f"--{key.replace('_', '-')}": str(value) for key, value in options.items()}
        words = [*(command or [str(self._program)]), *(word for option in texts.items() for word in option)]
        output = self._directory / f"{len(self._started)}-{name}.jsonl"
        child = self._child([*(AGAIN if again else ()), *words], output, environment or {}, uid)
        client = self._kind(name, child, os.getuid() if uid is None else uid, texts)
        self._started.append(client)
        return client

    def start_ready(self, name: str, **options: Any) -> Client:
        """Start a client, and wait until it is ready."""
        client = self.start(name, **options)
        client.ready()
        return client

    def _child(self, words: Sequence[str], output: Path, environment: Mapping[str, str], uid: int | None) -> Child:
        return Child(words, output=output, environment={**self._daemon.environment, **environment}, uid=uid)

    def end(self) -> None:
        """Terminate all clients at the same time, then wait for each."""
        running = [client for client in self._started if client.child.exit_code is None]
        for client in running:
            client.child.send(signal.SIGTERM)
        deadline = time.monotonic() + FAREWELL_SECONDS
        for client in running:
            client.child.end(within=max(0.1, deadline - time.monotonic()))

    def evidence(self) -> str:
        """Return the output of clients with errors, else of the first, for the report of a failed test."""
        unhappy = [client for client in self._started if client.error_codes or client.child.exit_code not in (None, 0)]
        return "\n".join(client.child.evidence() for client in (unhappy or self._started)[:8])


def build(source: Path, program: Path, *options: str) -> Path:
    """Compile the load program for the present GPU, and let every user run it."""
    subprocess.run(["nvcc", "-arch=native", "-O2", *options, "-o", str(program), str(source)], check=True, timeout=120)
    program.chmod(0o755)
    return program


def events_of(text: str, kind: str) -> list[Event]:
    """Return the events of a kind in the output of a load program. An incomplete last line is ignored."""
    events = (json.loads(line) for line in text.splitlines(keepends=True) if _is_event(line))
    return [event for event in events if event["event"] == kind]


def _is_event(line: str) -> bool:
    return line.startswith("{") and line.endswith("}\n")


def _truth_of_error(event: Event) -> Event:
    return {"at": event["at"], "call": event["call"], "cuda_error": event["code"], "name": event["name"]}
