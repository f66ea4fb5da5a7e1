"""Starve a client for minutes: `OUT=DIR [GPU=INDEX] python3 -m lab.starvation [--stay S] [--starved-after S]`.

A language model decodes. It is alone first. Then a client that streams memory works beside it. The commands of the
runbook are executed in their order, and the last one ends the neighbour. If time is left, other neighbours work with a
limit of threads. It needs MPS and PyTorch, as root. DIR gets these files every half minute, and at the end, also after
a failure:

    starvation.json    figures, what each step did, the status and the events at each moment
    samples.json       steps of the decoder in each second; samples of /metrics, which `alert.py` evaluates
    log.txt            what happened, and the exporter's log
    page.html, client.html   the pages while the problem is shown

The exporter shows the problem after ten minutes. With `--starved-after`, the run uses a copy of it with another limit.
Without it, use `--seconds 980 --stay 720`.

The daemon gets only that GPU, and another experiment may use the others. It must not measure the cost of launches: the
probes of the exporter are on all clients of the node.
"""

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from lab.gpu.child import Child, attempt
from lab.gpu.installed import copy_exporter
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import SOURCE, Exporter

from . import runbook
from .results import Truth, figures, samples
from .watch import STATES, Watch

READY_SECONDS, PROBES_SECONDS = 60.0, 20.0
ALONE_SECONDS = 12.0, 25.0
AFTER_SECONDS, CLOSE_SECONDS = 52.0, 9.0
"""From the end of the neighbour to that of the run, at least, and of that for the end of all processes."""

STEPS_SECONDS = 85.0
"""From the first step of the runbook to the end of the neighbour."""

PAUSE_SECONDS, RESUMED_SECONDS, PRESENT_SECONDS = 10.0, 35.0, 10.0
"""The pause is so short that the last minute remains slow."""

LIMITED_SECONDS = 45.0
"""For a neighbour with a limit, from its start to the next one."""

STORE_SECONDS = 30.0
LOG_CHARACTERS, MOST_LINES = 60_000, 25
DECODERS, STREAM = ("torch_decoder", "torch_graph"), "torch_stream"
STARVED = "STARVED_SECONDS = 600.0"
LIMIT = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}


class Client:
    """A client that has imported its framework, and uses the GPU when it may work for the first time."""

    def __init__(self, name: str, kind: str, daemon: ControlDaemon, module: str, **environment: str) -> None:
        self.name, self.kind, self._file = name, kind, daemon.directory / f"{name}.going"
        self.child = Child(
            [sys.executable, "-m", module, "--late", str(self._file), f"base={kind}"],
            output=daemon.directory / f"{name}.out",
            environment={**daemon.environment, **environment},
            directory=SOURCE,
        )

    def work(self) -> None:
        """Let it work."""
        draft = self._file.with_suffix(".draft")
        draft.write_text("base")
        draft.replace(self._file)

    def pause(self) -> None:
        """Let it pause, and wait for the end of its step."""
        self._file.unlink(missing_ok=True)
        time.sleep(0.3)

    def rows(self) -> list[tuple[float, int]]:
        """Return when the latest step ended (Unix time), and the number of steps, over time."""
        offset = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        lines = (line.split() for line in self.child.text().splitlines(keepends=True) if line.endswith("\n"))
        return [(int(words[0]) / 1e9 + offset, int(words[1])) for words in lines if len(words) == 3]

    def words(self) -> str:
        """Return the end of its output, without its steps."""
        lines = [line for line in self.child.text().splitlines() if not re.fullmatch(r"[\d ]*", line)]
        return "\n".join([f"{self.name}: exit code {self.child.exit_code}", *lines[-MOST_LINES:]])

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self.child.exit_code is None


class OverError(Exception):
    """The run cannot go on."""


class Run:
    """One run, with all that it starts."""

    def __init__(self, options: argparse.Namespace, out: Path, directory: Path) -> None:
        self._options, self._out, self._directory = options, out, directory
        self._deadline = time.monotonic() + options.seconds
        self._log: list[str] = []
        self._daemon = ControlDaemon(directory / "d")
        self._source = SOURCE
        self._exporter: Exporter | None = None
        self._decoder: Client | None = None
        self._spare: list[Client] = []
        self._joined: list[Client] = []
        """All neighbours that starved the decoder."""
        self._neighbours: list[Client] = []
        """Those of them that still work."""
        self._limited: list[Client] = []
        """Later neighbours."""
        self._facts: dict[str, Any] = {}
        self._steps: list[dict[str, Any]] = []
        self._moments: list[dict[str, Any]] = []
        self._stored_at = 0.0
        self._watch: Watch | None = None

    # -- phases ----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Run all phases."""
        self._start()
        self._alone()
        self._starve()
        self._release()
        self._limits()

    def _start(self) -> None:
        """Start the daemon, the exporter, and the clients without their work."""
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(os.environ.get("GPU", "0")))
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        self._facts.update(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            gpu=pynvml.nvmlDeviceGetName(handle),
            driver=pynvml.nvmlSystemGetDriverVersion(),
            options=vars(self._options),
        )
        pynvml.nvmlShutdown()
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # the daemon selects the GPU
        self._daemon.start(CUDA_VISIBLE_DEVICES=uuid)
        module = self._options.client
        self._decoder = Client("decoder", DECODERS[0], self._daemon, module)
        self._spare = [Client(f"stream{number}", STREAM, self._daemon, module) for number in range(4)]
        self._spare.insert(1, Client("limited", STREAM, self._daemon, module, **LIMIT))
        if self._options.starved_after:
            self._source = shortened(self._directory / "source", self._options.starved_after)
        self._serve()
        name = str(self._daemon.pipe_directory)
        self._watch = Watch(self._url, self._pid, name, uuid)
        self._watch.start()
        self.log("the exporter serves")

    def _url(self) -> str:
        assert self._exporter is not None
        return f"http://{self._exporter.address}"

    def _pid(self) -> int:
        assert self._decoder is not None
        return self._decoder.child.pid

    def _serve(self) -> None:
        """Start the exporter. It ignores other daemons of the node, which other experiments may use."""
        self._exporter = Exporter(self._daemon, "--attribution=bpf", source=self._source, discovery=False)
        self._exporter.wait()
        deadline = time.monotonic() + PROBES_SECONDS
        name = "cuda_mps_exporter_source_up"
        while [each.value for each in self._exporter.scrape().select(name, source="libcuda_probes")] != [1.0]:
            if time.monotonic() > deadline:
                self.log("the probes do not work: " + self._exporter.evidence()[-2000:])
                return
            time.sleep(0.2)

    def _alone(self) -> None:
        """Let the decoder work alone, so that the exporter learns its pace. If it cannot work, try another one."""
        assert self._decoder is not None
        for number, kind in enumerate(DECODERS):
            if number:
                self._decoder = Client("decoder#2", kind, self._daemon, self._options.client)
            if self._works(self._decoder):
                break
            self.log("the decoder does not work: " + self._decoder.words())
            self._decoder.child.end(2)
        else:
            raise OverError("no decoder works")
        self.log(f"{self._decoder.kind} works alone")
        least, most = ALONE_SECONDS
        stay = self._options.stay + AFTER_SECONDS
        self._wait(max(least, min(most, self._left() - stay)))

    def _starve(self) -> None:
        """Let the neighbour join, wait until the problem is shown, and take steps that leave the neighbour alone."""
        self._join(self._spare.pop(0))
        end = min(time.monotonic() + self._options.stay, self._deadline - AFTER_SECONDS)
        steps_at = end - STEPS_SECONDS
        self._wait(steps_at - time.monotonic(), until=lambda: self._shows("expression"))
        self._moment("the expression holds")
        self._wait(steps_at - time.monotonic(), until=lambda: self._shows("problem"))
        self._moment("the problem is shown, or the steps are due", pages=True)
        self._wait(steps_at - time.monotonic())
        for step, seconds in self._runbook():
            attempt(self.log, step)
            self._wait(min(seconds, end - time.monotonic()))
        self._wait(end - time.monotonic())

    def _runbook(self) -> Iterator[tuple[Callable[[], None], float]]:
        """Yield each step, and how long to wait after it."""
        yield partial(self._command, "diagnosis: status", runbook.command(runbook.PROGRAM)), 1
        yield self._pause, PAUSE_SECONDS
        yield self._resume, RESUMED_SECONDS
        yield partial(self._limit, "mitigation 1: limit of the server, present clients", 50), PRESENT_SECONDS
        yield partial(self._limit, "undone: limit of the server", 100), 0

    def _release(self) -> None:
        """End the neighbour by the command that the status shows, and wait for the end of the starvation."""
        self._moment("before the end of the neighbour")
        if not self._neighbours:
            raise OverError("no neighbour is left")
        command = f"kill -TERM {self._neighbours[-1].child.pid}"
        shown = [line for step in self._shown_steps() for line in step.get("commands", ())]
        known = "which the status shows" if command in shown else f"but the status shows {shown}"
        neighbours, self._neighbours = self._neighbours, []  # its end is intended
        self._command(f"mitigation 2: the neighbour ends by a command, {known}", command)
        self._wait(1)
        for each in neighbours:
            if each.is_running:
                each.child.end(2)
        left = min(AFTER_SECONDS - CLOSE_SECONDS, self._left() - CLOSE_SECONDS)
        end = time.monotonic() + left
        self._wait(left, until=lambda: not any(map(self._shows, STATES)))
        self._moment("after the end")
        self._wait(min(10.0, end - 1 - time.monotonic()))
        self._moment("a little later")

    def _limits(self) -> None:
        """Start neighbours with a limit of threads, and one without for comparison, as far as there is time."""
        limited = next(each for each in self._spare if each.name == "limited")
        self._spare.remove(limited)
        self._beside(limited, "mitigation 1: a neighbour with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50")
        if self._left() > LIMITED_SECONDS + CLOSE_SECONDS:
            attempt(self.log, partial(self._limit, "mitigation 1: limit of the server", 50))
            self._beside(self._spare.pop(), "mitigation 1: a new neighbour under the limit of the server")
            attempt(self.log, partial(self._limit, "undone: limit of the server", 100))
        self._beside(self._spare.pop(), "a new neighbour without a limit")

    def _beside(self, client: Client, name: str) -> None:
        """Let a neighbour work for a while."""
        if self._left() < LIMITED_SECONDS + CLOSE_SECONDS:
            return
        self._limited.append(client)
        with self._step(name):
            if not self._works(client):
                self.log(client.words())
        self._wait(LIMITED_SECONDS - 10)
        self._moment(name)
        with self._step("it ends"):
            client.pause()
            client.child.end(2)
        self._wait(4)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _command(self, name: str, block: str) -> None:
        """Execute commands of the runbook, for this daemon."""
        assert self._exporter is not None
        block = block.replace(runbook.DIRECTORY, str(self._daemon.pipe_directory))
        if "SERVER" in block:
            block = block.replace("SERVER", str(self._daemon.server()))
        run = {**os.environ, "RUNTIME_DIRECTORY": str(self._daemon.directory / "run")}
        with self._step(name) as step:
            step |= runbook.run(block, runbook.with_program(self._directory / "bin", self._source, run))

    def _pause(self) -> None:
        with self._step("diagnosis 3: the neighbour gets no work"):
            self._neighbours[-1].pause()

    def _resume(self) -> None:
        with self._step("undone: the neighbour gets work"):
            self._neighbours[-1].work()

    def _limit(self, name: str, percentage: int) -> None:
        block = runbook.command("set_active_thread_percentage")
        self._command(name, block.replace(" 50'", f" {percentage}'"))

    def _join(self, client: Client) -> None:
        if not self._works(client):
            self.log(client.words())
            raise OverError(f"{client.name} does not work")
        self._neighbours.append(client)
        self._joined.append(client)
        self.log(f"{client.name} works beside it: PID {client.child.pid}")

    @contextmanager
    def _step(self, name: str) -> Iterator[dict[str, Any]]:
        step: dict[str, Any] = {"step": name, "at": time.time()}
        self._steps.append(step)
        self.log(name)
        yield step
        step["done"] = time.time()
        if "output" in step:
            self.log(f"$ {step['commands']}\n{step['output']}exit code {step['exit_code']}")

    def _works(self, client: Client) -> bool:
        """Let a client work, and return whether it does."""
        client.work()
        deadline = time.monotonic() + READY_SECONDS
        while client.is_running and time.monotonic() < min(deadline, self._deadline - CLOSE_SECONDS):
            if client.rows():
                return True
            time.sleep(0.1)
        return False

    # -- while it runs ---------------------------------------------------------------------------------------------

    def log(self, text: str) -> None:
        """Print and store a line with the time."""
        self._log.append(f"{time.strftime('%T')} {text}")
        print(self._log[-1], flush=True)

    def _left(self) -> float:
        left: float = self._deadline - time.monotonic()
        return left

    def _shows(self, state: str) -> bool:
        return self._watch is not None and self._watch.is_now(state)

    def _wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Wait. What died starts again, except the decoder: without it, the run is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < min(end, self._deadline - CLOSE_SECONDS) and not until():
            time.sleep(max(0.0, min(0.25, end - time.monotonic())))
            if self._decoder is not None and not self._decoder.is_running:
                raise OverError(f"the decoder has exited: {self._decoder.words()}")
            if self._exporter is not None and self._exporter.child.exit_code is not None:
                self.log("the exporter has exited, and starts again: " + self._exporter.child.evidence()[-2000:])
                self._serve()
            for dead in [each for each in self._neighbours if not each.is_running]:
                self.log(f"{dead.name} has exited, and another one starts: {dead.words()}")
                self._neighbours.remove(dead)
                if not self._spare:
                    raise OverError("no neighbour is left")
                self._join(self._spare.pop())
            if time.monotonic() - self._stored_at > STORE_SECONDS:
                self.store()

    def _moment(self, name: str, *, pages: bool = False) -> None:
        """Store the status and the events of now, in both forms."""
        assert self._exporter is not None
        assert self._watch is not None
        self.log(f"moment: {name}")
        try:
            status = json.loads(self._exporter.status("--json"))
            moment = {"moment": name, "at": time.time(), "status": self._exporter.status(), "document": status}
            self._moments.append({**moment, "events": self._watch.events()})
            if pages:
                (self._out / "page.html").write_text(self._watch.text("/"))
                (self._out / "client.html").write_text(self._watch.text(f"/clients/{self._watch.client()}"))
        except Exception as problem:  # an exporter that has died must not end the run
            self.log(repr(problem))

    def _shown_steps(self) -> list[Any]:
        """Return what the status shows against the starvation."""
        try:
            assert self._watch is not None
            found = [each for each in self._watch.status()["findings"] if each["code"] == "client_starved"]
        except Exception:
            self.log(traceback.format_exc())
            return []
        return [step for each in found for step in each["steps"]]

    # -- the end ---------------------------------------------------------------------------------------------------

    def store(self) -> None:
        """Write all results so far."""
        self._stored_at = time.monotonic()
        own = "" if self._exporter is None else self._exporter.child.text()[-LOG_CHARACTERS:]
        written = {"log.txt": "\n".join([*self._log, "", own])}
        if self._watch is not None and self._decoder is not None:
            try:
                truth = Truth(self._decoder.rows(), [each.rows() for each in self._joined], bool(self._neighbours))
                names = self._watch.names([each.child.pid for each in (self._decoder, *self._joined, *self._limited)])
                facts = {**self._facts, "decoder": self._decoder.kind}
                written["starvation.json"] = figures(facts, truth, self._watch, self._steps, self._moments)
                written["samples.json"] = samples(self._facts, truth, self._watch, names)
            except Exception:  # the log remains
                self.log(traceback.format_exc())
        for name, text in written.items():
            draft = self._directory / name
            draft.write_text(text)
            shutil.copyfile(draft, self._out / name)

    def end(self) -> None:
        """End all that was started, also if something of it fails."""
        clients = [each for each in (self._decoder, *self._joined, *self._limited, *self._spare) if each is not None]
        # They pause first, so that no kernel runs when one ends.
        attempt(self.log, *(each.pause for each in (*self._neighbours, *self._limited)))
        attempt(self.log, *(partial(client.child.end, 2) for client in clients))
        attempt(self.log, *(each.end for each in (self._watch, self._exporter, self._daemon) if each is not None))


def shortened(directory: Path, seconds: float) -> Path:
    """Return a copy of the exporter that shows a client as starved after so many seconds."""
    copy_exporter(directory)
    module = directory / "exporter" / "usage" / "contention.py"
    text = module.read_text()
    if text.count(STARVED) != 1:
        raise ValueError(f"{STARVED} is not in {module}")
    module.write_text(text.replace(STARVED, f"STARVED_SECONDS = {seconds:g}"))
    return directory


def main() -> int:
    """Run, and write the results in any case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=570.0, help="for all of it")
    parser.add_argument("--stay", type=float, default=480.0, help="seconds for which the neighbour starves the decoder")
    parser.add_argument("--starved-after", type=float, help="seconds after which the exporter shows the problem")
    parser.add_argument("--client", default="lab.contention.client", help="the module of the clients, for a rehearsal")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    out = Path(os.environ["OUT"])
    out.mkdir(parents=True, exist_ok=True)
    is_complete = False
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp", ignore_cleanup_errors=True) as name:
        run = Run(options, out, Path(name))
        try:
            run.play()
            is_complete = True
        except OverError as reason:
            run.log(str(reason))
        except (Exception, KeyboardInterrupt):
            run.log(traceback.format_exc())
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            attempt(run.log, run.store)
            run.end()
            run.log("ended")
            attempt(run.log, run.store)
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
