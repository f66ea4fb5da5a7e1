"""Record clients that slow each other down, with the truth: `OUT=DIR python3 -m lab.contention.trial [--scene NAME]`.

It needs a node with a GPU, its driver, MPS, PyTorch, JAX and CuPy, as root, and ends within `--seconds`. All clients
start once. Each works alone first, then in mixes (`plan.py`), at last beside clients that are new. Scenes of `plan.py`
have other clients and phases: `services`, and `without-gpm`, whose recorder reads no GPM. GPU is the index of the GPU
(0). The scenes `several-gpus` and `all-reduce` use all GPUs: each of their phases is one for each GPU, and a client's
name has the GPU. DIR gets `recording.jsonl.gz` of `record --attribution=bpf`, and `truth.json.gz`, also if the trial is
interrupted:

    phases    clients, begin, end (CLOCK_BOOTTIME in ns, without the first half second), steps a second of each client
              (of `requests`: per second in its steps), and details: mix, forms, crowded, and new clients
    pids, kinds, boot_minus_epoch_ns
    steps     of each client: when its latest step ended, and their number
    requests  of clients with requests: when the latest ended, their number, nanoseconds in them
    answers   of services: when each came, nanoseconds since its request, and its tokens
"""

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.gpu.child import Child, attempt
from lab.gpu.device import devices
from lab.gpu.mps import ControlDaemon, chosen_gpu
from lab.gpu.program import SOURCE, Recorder

from . import without_gpm
from .client import boot_ns
from .plan import (
    BASE,
    BESIDE_NEWCOMERS,
    HEAVY,
    LIGHT,
    LOADS,
    NEWCOMERS,
    SCENES,
    STEPS,
    Load,
    Phase,
    Scene,
    all_reduce,
    alone,
    mixes,
    several_gpus,
)

SETTLE_SECONDS = 0.5
RECORDED_SECONDS = 2.5  # until the recording has all about a phase
WATCHED_SECONDS, READY_SECONDS, NEW_SECONDS = 40.0, 100.0, 14.0
END_SECONDS = 10.0
"""For the end of all processes, and for the results."""

NEWCOMERS_SECONDS = 40.0
"""Reserved for the phases with newcomers."""


class Client:
    """A client that works while its file exists."""

    def __init__(self, name: str, load: Load, daemon: ControlDaemon, kind: str | None) -> None:
        self.name, self.load = name, load
        self._file = daemon.directory / f"{name}.going"
        options = [f"--group={load.group}", f"--period={load.period}", *(["--late"] if name in NEWCOMERS else [])]
        if len(load.gpus) > 1:
            options.append(f"--devices={len(load.gpus)}")
        if kind and load.module != STEPS:
            kind, options = None, [*options, "--small"]
        forms = [f"{form}={kind or each}" for form, each in {BASE: load.kind, **load.forms}.items()]
        self.child = Child(
            [sys.executable, "-m", load.module, *options, str(self._file), *forms],
            output=daemon.directory / f"{name}.out",
            environment={
                **daemon.environment,
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                "TORCHINDUCTOR_CACHE_DIR": str(daemon.directory / "inductor"),
                **({"CUDA_VISIBLE_DEVICES": ",".join(map(str, load.gpus))} if load.gpus else {}),
                **load.environment,
            },
            directory=SOURCE,
        )

    @property
    def ready(self) -> bool:
        """Whether it has warmed up and runs."""
        return self.child.exit_code is None and "ready\n" in self.child.text()

    def work(self, form: str | None) -> None:
        """Let it work in this form; None: let it pause."""
        if form is None:
            self._file.unlink(missing_ok=True)
        else:
            draft = self._file.with_suffix(".draft")
            draft.write_text(form)
            draft.replace(self._file)

    def rows(self, device: int = 0) -> list[tuple[int, int, int]]:
        """Return when the latest step ended, the number of steps, and the nanoseconds in them, over time."""
        label = [str(device)] if len(self.load.gpus) > 1 else []
        rows = []
        for line in self.child.text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n") and words[3:] == label and "".join(words).isdigit() and len(words) >= 3:
                rows.append((int(words[0]), int(words[1]), int(words[2])))
        return rows

    def answers(self) -> list[tuple[int, ...]]:
        """Return when each answer of a service came, the nanoseconds since its request, and its tokens."""
        lines = (line.split() for line in self.child.text().splitlines() if line.startswith("answer "))
        return [tuple(map(int, words[1:])) for words in lines if len(words) == 4 and "".join(words[1:]).isdigit()]

    def run_on(self, cpus: Iterable[int]) -> None:
        """Restrict all its threads to some CPUs."""
        with suppress(FileNotFoundError):
            for task in os.listdir(f"/proc/{self.child.pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task), cpus)


class Trial:
    """All clients of one daemon, and the phases so far."""

    def __init__(
        self, daemon: ControlDaemon, recorder: Recorder, kind: str | None, scale: float, deadline: float
    ) -> None:
        self._daemon, self._recorder = daemon, recorder
        self._kind, self._scale, self._deadline = kind, scale, deadline
        self._settle = SETTLE_SECONDS
        self.uuids: Sequence[str] = ()
        """The GPUs of the daemon, if the scene uses all."""
        self.clients: dict[str, Client] = {}
        self.phases: list[tuple[Phase, list[str], int, int]] = []

    def start(self, loads: Mapping[str, Load]) -> None:
        """Start all clients, and do not wait."""
        self.clients = {name: Client(name, load, self._daemon, self._kind) for name, load in loads.items()}

    def run(self, scene: Scene | None) -> None:
        """Wait until the clients are ready, and play all phases for which there is time."""
        if scene is not None:
            self._ready([*scene.loads], READY_SECONDS)
            self._settle = scene.settle
            for phase in scene.phases:
                self._play(phase)
            time.sleep(RECORDED_SECONDS)
            return
        standing = [*HEAVY, *LIGHT]
        ready = self._ready(standing, READY_SECONDS)
        for phase in alone([name for name in standing if name in ready]):
            self._play(phase)
        for phases in mixes(ready):
            if self._left() > NEWCOMERS_SECONDS + sum(map(self._length, phases)):
                for phase in phases:
                    self._play(phase)
        for phase in BESIDE_NEWCOMERS:
            self._play(phase)
        # Once more, as long as there is time: this shows how exact the truth is.
        for phase in alone([*NEWCOMERS, *(name for name in standing if name in ready)]):
            self._play(phase)

    def _ready(self, standing: Sequence[str], seconds: float) -> set[str]:
        """Return the clients that are ready in time, and end the others."""
        self._wait(standing, seconds)
        ready = {name for name in standing if self.clients[name].ready}
        for name in sorted(set(standing) - ready):
            log(f"is not ready: {self.clients[name].child.evidence()[-1500:]}")
            self.clients.pop(name).child.end(1)
        log(f"{len(ready)} of {len(standing)} clients are ready")
        return ready

    def _play(self, phase: Phase) -> None:
        names = [name for name in phase.clients if name in self.clients and self.clients[name].child.exit_code is None]
        if not names or self._left() < self._length(phase):
            log(f"left out: {' '.join(phase.clients)}")
            return
        for client in self.clients.values():
            client.work(phase.forms.get(client.name, BASE) if client.name in names else None)
        burners = self._crowd(phase.crowded)
        try:
            self._wait(names, NEW_SECONDS)
            time.sleep(self._settle)
            began = boot_ns()
            time.sleep(phase.seconds * self._scale)
            ended = boot_ns()
        finally:
            self._release(phase.crowded, burners)
        names = [name for name in names if self.clients[name].ready]
        self.phases.append((phase, names, began, ended))
        log(f"{phase.mix} {' '.join(names)} {dict(phase.forms) or ''} {' '.join(phase.crowded)}")

    def _wait(self, names: Sequence[str], seconds: float) -> None:
        """Wait until the clients are ready or have exited."""
        deadline = time.monotonic() + min(seconds, self._left())
        clients = [self.clients[name] for name in names]
        while time.monotonic() < deadline and not all(
            each.ready or each.child.exit_code is not None for each in clients
        ):
            time.sleep(0.1)

    def _length(self, phase: Phase) -> float:
        return self._settle + phase.seconds * self._scale

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _crowd(self, names: Sequence[str]) -> "list[subprocess.Popen[bytes]]":
        """Put each client on a CPU of its own with a process that never waits."""
        burners = []
        for name, cpu in zip(names, sorted(os.sched_getaffinity(0), reverse=True), strict=False):
            self.clients[name].run_on({cpu})
            burners.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            os.sched_setaffinity(burners[-1].pid, {cpu})
        return burners

    def _release(self, names: Sequence[str], burners: "Sequence[subprocess.Popen[bytes]]") -> None:
        for burner in burners:
            burner.kill()
            burner.wait()
        for name in names:
            self.clients[name].run_on(os.sched_getaffinity(0))

    def end(self) -> None:
        """End all clients."""
        for client in self.clients.values():
            client.child.terminate()
        for client in self.clients.values():
            client.child.end(1)

    def truth(self) -> dict[str, Any]:
        """Return the truth, as this module's docstring describes it."""
        places = {
            name: [(name, None, 0)]
            if not load.gpus
            else [(f"{name}@{gpu}", gpu, at) for at, gpu in enumerate(load.gpus)]
            for name, load in ((name, client.load) for name, client in self.clients.items())
        }
        clients = {place: client for name, client in self.clients.items() for place, _, _ in places[name]}
        rows = {place: self.clients[name].rows(at) for name in places for place, _, at in places[name]}
        phases = []
        for phase, names, began, ended in self.phases:
            new = [name for name in names if name in NEWCOMERS and phase in BESIDE_NEWCOMERS]
            details = {
                "mix": phase.mix,
                "forms": phase.forms,
                "crowded": phase.crowded,
                "new": new,
            }
            for gpu in sorted({gpu for name in names for _, gpu, _ in places[name]}, key=str):
                here = [place for name in names for place, on, _ in places[name] if on == gpu]
                rates = {place: _rate(clients[place].load, rows[place], began, ended) for place in here}
                known = {place: rate for place, rate in rates.items() if rate}
                phases.append((here, began, ended, known, {**details, "gpu": None if gpu is None else self.uuids[gpu]}))
        return {
            "phases": phases,
            "pids": {place: client.child.pid for place, client in clients.items()},
            "kinds": {place: client.load.kind for place, client in clients.items()},
            "environments": {name: client.load.environment for name, client in self.clients.items()},
            "boot_minus_epoch_ns": boot_ns() - time.time_ns(),
            "steps": {name: [(at, steps) for at, steps, _ in each] for name, each in rows.items()},
            "requests": {name: each for name, each in rows.items() if clients[name].load.period},
            "answers": {name: each for name, client in self.clients.items() if (each := client.answers())},
        }


def _rate(load: Load, rows: Sequence[tuple[int, int, int]], began: int, ended: int) -> float | None:
    """Return the steps a second between the ends of the first and the last step; of requests, in their time."""
    inside = [row for row in rows if began <= row[0] <= ended]
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    column = 2 if load.period else 0
    return 1e9 * (last[1] - first[1]) / (last[column] - first[column])


def log(text: str) -> None:
    """Print a line with the time."""
    print(time.strftime("%T"), text, flush=True)


def _wait_watched(recorder: Recorder) -> None:
    deadline = time.monotonic() + WATCHED_SECONDS
    while '"source": "work"' not in recorder.text():
        if time.monotonic() > deadline:
            raise TimeoutError(recorder.evidence())
        time.sleep(0.1)


def main() -> None:
    """Record a trial."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=560.0, help="for all of it")
    parser.add_argument("--stand-ins", action="store_true", help="use clients and probes of no GPU, to try the plan")
    parser.add_argument("--scene", choices=[*SCENES, "several-gpus", "all-reduce"], help="instead of the mixes")
    parser.add_argument("--gpus", type=int, help="with --stand-ins, so many for the scenes of several GPUs")
    parser.add_argument("--scale", type=float, default=1.0, help="of the length of phases")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds - END_SECONDS
    out = Path(os.environ["OUT"])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as name:
        daemon, recording = ControlDaemon(Path(name, "d")), Path(name, "recording.jsonl")
        uuids = [f"GPU-{number}" for number in range(options.gpus)] if options.gpus else None
        scene = SCENES.get(options.scene)
        if options.scene in ("several-gpus", "all-reduce"):
            uuids = uuids or [device.uuid for device in devices()]
            count = len(uuids)
            several = options.scene == "several-gpus"
            scene = several_gpus(count) if several else all_reduce(count, str(Path(name, "ranks")))
        variables = {} if scene is None or scene.has_gpm else without_gpm.variables(Path(name, "nvml"))
        daemon.start(**({} if uuids else chosen_gpu()))
        recorder = Recorder(daemon, recording, "--attribution=bpf", environment=variables)
        trial = Trial(daemon, recorder, "stand_in" if options.stand_ins else None, options.scale, deadline)
        trial.uuids = uuids or ()

        def store() -> None:
            (out / "truth.json.gz").write_bytes(gzip.compress(json.dumps(trial.truth()).encode()))

        def pack() -> None:
            with recording.open("rb") as plain, gzip.open(out / "recording.jsonl.gz", "wb") as packed:
                shutil.copyfileobj(plain, packed)

        try:
            trial.start(LOADS if scene is None else scene.loads)
            if not options.stand_ins:
                _wait_watched(recorder)
            trial.run(scene)
        except KeyboardInterrupt:
            log("interrupted")
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            log(recorder.evidence())
            attempt(log, store, recorder.end, pack, trial.end, daemon.end)


if __name__ == "__main__":
    main()
