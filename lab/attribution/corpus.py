"""Record mixes of framework clients with their truth.

    OUT=DIR python3 -m lab.attribution.corpus [--smoke] [--seconds S] [--set first|second] [--only MIX]...

All clients start once. Each works alone first, so that GPM measures the SM time of a step. Then each mix is recorded
for S seconds: its clients work, and the others are idle. The constants of the attribution were fitted to the first set
of mixes; the second set was recorded afterwards to check them.

DIR gets `corpus.tar.gz`, written again after each mix, with MIX.jsonl.gz and MIX.truth.json, which
`tests/usage/mix_recordings.py` reads; and `alone.json`. `--smoke` starts all clients and records two mixes for 6 s.
"""

import argparse
import gzip
import itertools
import json
import os
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from lab.gpu.child import Child
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import SOURCE, Recorder

from .cost import boot_ns

READY_SECONDS = 120.0
SETTLE_SECONDS = 1.0
GPM_SECONDS = 0.25
TAIL_SECONDS = 1.5
SMS = 132
WATCHED_SECONDS = 20.0
SAMPLES = 5
"""So many reports of a client make one sample of the truth."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Clients that work in a mix, by kind; `#2` after a kind is a second client of it.

    `changes` are pairs of seconds and a client that starts or stops then.
    """

    name: str
    clients: tuple[str, ...]
    changes: tuple[tuple[float, str], ...] = field(default=())


MIXES = (
    Mix("conv-softmax-sort-copies", ("torch_conv", "triton_softmax", "cupy_sort", "torch_copies")),
    Mix("training-decoders-sort", ("jax_training_large", "torch_decode", "torch_decode_small", "cupy_sort")),
    Mix("fft-training-decode", ("cupy_fft", "jax_training", "torch_decode")),
    Mix("gemm-streams", ("torch_gemm", "torch_streams")),
    Mix("compiled-graph-conv", ("torch_compiled", "torch_graph", "jax_conv")),
    Mix(
        "twelve",
        (
            *("torch_prefill", "torch_decode_small", "torch_graph", "torch_lstm", "torch_conv", "torch_compiled"),
            *("torch_copies", "jax_conv", "cupy_fft", "cupy_gemm", "cupy_elementwise", "triton_softmax"),
        ),
    ),
    Mix(
        "come-and-go",
        ("torch_prefill", "cupy_fft"),
        ((8.0, "torch_conv_large"), (16.0, "cupy_fft"), (24.0, "cupy_gemm"), (32.0, "torch_prefill")),
    ),
    Mix("full-prefill-conv-sort", ("torch_prefill_large", "torch_conv_large", "torch_sort", "cupy_gemm")),
    Mix("lstm-elementwise", ("torch_lstm", "cupy_elementwise")),
    Mix("pageable-gemm-softmax", ("torch_copies_pageable", "cupy_gemm", "triton_softmax", "torch_decode_small")),
    Mix("full-training-gemm", ("jax_training_large", "torch_gemm", "torch_lstm", "cupy_sort", "torch_graph")),
)


def one_after_another(*clients: str, seconds: float = 3.0) -> tuple[tuple[float, str], ...]:
    """Return changes by which each client starts some seconds after the one before it."""
    return tuple((seconds * number, client) for number, client in enumerate(clients))


SECOND_MIXES = (
    Mix(
        "apart-decoders",
        (),
        one_after_another("torch_decode", "torch_decode#2", "torch_decode_small", "torch_prefill_medium"),
    ),
    Mix("apart-full", (), one_after_another("torch_gemm", "jax_training_large", "torch_graph", "cupy_sort")),
    Mix(
        "apart-training",
        (),
        one_after_another("jax_training_medium", "torch_conv_medium", "torch_lstm", "cupy_fft", "torch_copies"),
    ),
    Mix(
        "apart-six",
        (),
        one_after_another(
            *("torch_compiled", "triton_softmax", "cupy_elementwise", "cupy_gemm", "torch_sort", "jax_conv")
        ),
    ),
    Mix("together-full", ("jax_training_large", "torch_gemm", "torch_lstm", "cupy_sort", "torch_graph")),
    Mix("together-decoders", ("torch_decode", "torch_decode#2", "torch_prefill_medium")),
    Mix("together-light", ("jax_conv", "torch_lstm", "cupy_gemm", "torch_conv_medium")),
)
SETS = {"first": MIXES, "second": SECOND_MIXES}


class Gpm:
    """Samples of the GPU's SM utilization, taken by a thread of its own."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.windows: list[tuple[int, int, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def busy(self, began: int, ended: int) -> float:
        """Return the SM time between two times, in nanoseconds of the whole GPU."""
        return sum(use * max(0, min(b, ended) - max(a, began)) for a, b, use in list(self.windows))

    def end(self) -> None:
        """Stop."""
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        """Take samples. GPM reports what happened a tenth of a second ago."""
        samples = [pynvml.c_nvmlGpmSample_t(), pynvml.c_nvmlGpmSample_t()]
        samples = [pynvml.nvmlGpmSampleAlloc() for _ in samples]
        at = None
        while not self._ended.wait(GPM_SECONDS):
            pynvml.nvmlGpmSampleGet(self._gpu, samples[1])
            now = boot_ns() - 100_000_000
            if at is not None:
                get = pynvml.c_nvmlGpmMetricsGet_t()
                get.version = pynvml.NVML_GPM_METRICS_GET_VERSION
                get.numMetrics, get.sample1, get.sample2 = 1, samples[0], samples[1]
                get.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
                pynvml.nvmlGpmMetricsGet(get)
                self.windows.append((at, now, get.metrics[0].value / 100))
            at, samples = now, samples[::-1]


class Client:
    """A client of a kind."""

    def __init__(self, kind: str, daemon: ControlDaemon, directory: Path) -> None:
        self.kind = kind
        self._going = directory / f"{kind}.going"
        self._child = Child(
            [sys.executable, "-m", "lab.attribution.frameworks", kind.partition("#")[0], str(self._going)],
            output=directory / f"{kind}.out",
            environment={
                **daemon.environment,
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
            },
            directory=SOURCE,
        )
        self.sm_seconds_of_step = 0.0
        self._started = time.monotonic()
        self.seconds_to_start: float | None = None

    @property
    def pid(self) -> int:
        """The PID."""
        return self._child.pid

    @property
    def ready(self) -> bool:
        """Whether it has warmed up."""
        if self.seconds_to_start is None and "ready\n" in self._child.text():
            self.seconds_to_start = time.monotonic() - self._started
        return self.seconds_to_start is not None

    @property
    def ended(self) -> bool:
        """Whether it has exited."""
        return self._child.exit_code is not None

    def go(self) -> None:
        """Let it work."""
        self._going.touch()

    def stop(self) -> None:
        """Let it pause."""
        self._going.unlink(missing_ok=True)

    def toggle(self) -> None:
        """Let it pause if it works, else let it work."""
        if self._going.exists():
            self.stop()
        else:
            self.go()

    def steps(self) -> list[tuple[int, int]]:
        """Return the times and the numbers of steps until then."""
        lines = (line.split() for line in self._child.text().splitlines(keepends=True) if line.endswith("\n"))
        return [(int(each[0]), int(each[1])) for each in lines if len(each) == 2 and each[0].isdigit()]

    def end(self) -> None:
        """End it."""
        self._child.end(3)

    def evidence(self) -> str:
        """Return its last output."""
        return self._child.evidence()[-1500:]


def _steps_at(steps: Sequence[tuple[int, int]], at: int) -> float:
    for (a, before), (b, after) in itertools.pairwise(steps):
        if a <= at < b:
            return before + (after - before) * (at - a) / (b - a)
    return steps[-1][1] if steps and at >= steps[-1][0] else 0


def measure_alone(client: Client, gpm: Gpm, seconds: float) -> Mapping[str, Any]:
    """Let a client work alone, and return what a step takes."""
    client.go()
    time.sleep(SETTLE_SECONDS)
    began = boot_ns()
    time.sleep(seconds)
    ended = boot_ns()
    client.stop()
    time.sleep(0.3)
    number = _steps_at(client.steps(), ended) - _steps_at(client.steps(), began)
    busy = gpm.busy(began, ended)
    client.sm_seconds_of_step = busy / 1e9 / number if number else 0.0
    started = client.seconds_to_start
    return {"kind": client.kind, "start": started, "steps_per_second": number / seconds, "sm": busy / (ended - began)}


def record(mix: Mix, clients: Mapping[str, Client], daemon: ControlDaemon, directory: Path, seconds: float) -> None:
    """Record a mix. If the probes are not read, raise TimeoutError."""
    file = directory.parent / f"{mix.name}.jsonl"
    recorder = Recorder(daemon, file, "--attribution=bpf")
    try:
        deadline = time.monotonic() + WATCHED_SECONDS
        while recorder.text().count('"source": "work"') < 2:
            if time.monotonic() > deadline:
                raise TimeoutError(recorder.evidence())
            time.sleep(0.1)
        began = boot_ns()
        _work(mix, clients, seconds)
        ended = boot_ns()
    finally:
        for client in clients.values():
            client.stop()
        time.sleep(TAIL_SECONDS)
        recorder.end()
    epoch = time.time_ns() - boot_ns()
    (directory / f"{mix.name}.truth.json").write_text(json.dumps(_truth(clients, began, ended, epoch)))
    with file.open() as plain, gzip.open(directory / f"{file.name}.gz", "wt") as packed:
        packed.writelines(line for line in plain if '"source": "source"' not in line)


def _work(mix: Mix, clients: Mapping[str, Client], seconds: float) -> None:
    start = time.monotonic()
    changes = (*((0.0, kind) for kind in mix.clients), *mix.changes)
    for at, client in ((at, clients[kind]) for at, kind in changes if kind in clients and at < seconds):
        time.sleep(max(0.0, start + at - time.monotonic()))
        client.toggle()
    time.sleep(max(0.0, start + seconds - time.monotonic()))


def _truth(clients: Mapping[str, Client], began: int, ended: int, epoch: int) -> Mapping[str, Any]:
    """Return the truth as mix_recordings.py reads it: SM time so far of each client, in seconds of one SM."""
    samples = {}
    for client in clients.values():
        each = [(at, number) for at, number in client.steps() if began - 1e9 <= at <= ended + 2e9]
        if not each or each[-1][1] == each[0][1]:
            continue
        factor, first = SMS * client.sm_seconds_of_step, each[0][1]
        spaced = [*each[::SAMPLES], each[-1]]
        samples[client.pid] = [(round((at + epoch) / 1e9, 2), round((n - first) * factor, 3)) for at, n in spaced]
    kinds = {client.pid: client.kind for client in clients.values() if client.pid in samples}
    return {"sms": SMS, "from": (began + epoch) / 1e9, "to": (ended + epoch) / 1e9, "kinds": kinds, "clients": samples}


def main() -> None:
    """Record all mixes for which there is time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="start all clients, and record two mixes for 6 s")
    parser.add_argument("--seconds", type=float, default=40.0, help="for each mix")
    parser.add_argument("--alone", type=float, default=2.5, help="for each client")
    parser.add_argument("--budget", type=float, default=560.0, help="for all of it")
    parser.add_argument("--set", choices=SETS, default="first", help="of mixes")
    parser.add_argument("--only", action="append", metavar="MIX")
    options = parser.parse_args()
    if options.smoke:
        options.seconds, options.alone = 6.0, 2.0
    deadline = time.monotonic() + options.budget
    out = Path(os.environ["OUT"])
    mixes = [mix for mix in SETS[options.set] if options.only is None or mix.name in options.only]
    kinds = dict.fromkeys(kind for mix in mixes for kind in (*mix.clients, *(each for _, each in mix.changes)))
    with tempfile.TemporaryDirectory(prefix="mps") as name:
        directory, results = Path(name), Path(name, "results")
        results.mkdir()
        daemon = ControlDaemon(directory / "d")
        daemon.start()
        clients = {kind: Client(kind, daemon, directory) for kind in kinds}
        gpm = Gpm()
        try:
            _play(mixes[:2] if options.smoke else mixes, clients, daemon, gpm, results, out, options, deadline)
        finally:
            gpm.end()
            for client in clients.values():
                client.end()
            daemon.end()


def _play(
    mixes: Sequence[Mix],
    clients: dict[str, Client],
    daemon: ControlDaemon,
    gpm: Gpm,
    results: Path,
    out: Path,
    options: argparse.Namespace,
    deadline: float,
) -> None:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and sum(each.ready or each.ended for each in clients.values()) < len(clients):
        time.sleep(0.2)
    _log(f"{sum(each.ready for each in clients.values())} of {len(clients)} clients are ready")
    for kind in [kind for kind, client in clients.items() if not client.ready]:
        _log(clients[kind].evidence())
        clients.pop(kind).end()
    alone = [measure_alone(client, gpm, options.alone) for client in clients.values()]
    for each in alone:
        rate, sm, start = each["steps_per_second"], 100 * each["sm"], each["start"]
        _log(f"{each['kind']:24} started in {start:5.1f} s  {rate:8.1f} steps/s  SM {sm:5.1f} %")
    (results / "alone.json").write_text(json.dumps(alone))
    for mix in mixes:
        if time.monotonic() + options.seconds + 8 > deadline:
            _log(f"{mix.name}: no time")
            continue
        try:
            record(mix, clients, daemon, results, options.seconds)
            _log(f"{mix.name}: recorded; ended: {[kind for kind, each in clients.items() if each.ended]}")
        except Exception as problem:  # another mix may still succeed
            _log(f"{mix.name}: {problem!r}")
        with tarfile.open(out / "corpus.tar.gz", "w:gz") as archive:
            archive.add(results, arcname=".")


def _log(text: str) -> None:
    print(time.strftime("%T"), text, flush=True)


if __name__ == "__main__":
    main()
