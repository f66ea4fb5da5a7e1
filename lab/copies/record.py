"""Record clients that copy beside clients with kernels, with the SM time, bandwidth and steps of each.

    OUT=DIR python3 -m lab.copies.record SEED...

DIR gets mixes.tar.gz, with NAME-SEED.jsonl.gz and NAME-SEED.truth.json of each mix. A mix takes 25 s. The truth has
cumulative numbers: the SM seconds of each client, the bytes that it moved in the GPU's memory, and its steps. Kernels
count their SM time. Copies have what GPM measured beyond that, by their bytes.
"""

import gzip
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

from exporter.model.launches import WorkReading
from exporter.model.sharing import GpuUse
from exporter.recording import Recording
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Recorder

HERE = Path(__file__).parent
SECONDS, FIRST_SECONDS, APART_SECONDS, GPM_LAG_SECONDS = 20.0, 3.0, 4.5, 0.1
WITHIN = ("d2d", "set", "both")
"""Kinds of clients that copy within the GPU."""


@dataclass(frozen=True, slots=True)
class Client:
    """A kind of clients.cu with its arguments."""

    kind: str
    a: int
    b: int
    gap_us: int = 0


def mixes(seed: int) -> Mapping[str, tuple[Client, ...]]:
    """Return the mixes of a seed. In those with the name together-*, all clients begin at once."""
    draw = random.Random(seed)
    size = draw.choice((1 << 22, 1 << 20, 1 << 16))
    spin = Client("spin", draw.choice((8, 24, 64, 100)), draw.choice((100, 300, 3000)), 300)
    read = Client("read", draw.choice((8, 24, 80)), 4, 200)
    copy, host = Client("d2d", size, max(1, (1 << 20) // size)), (Client("h2d", 1 << 16, 1), Client("d2h", 1 << 16, 1))
    return {
        "host": (host[0], spin, copy),
        "within": (spin, Client("d2d", size, 2, draw.choice((500, 3000)))),
        "set": (
            read,
            Client("set", 1 << 20, draw.choice((1, 4)), draw.choice((0, 1000))),
            Client("both", 1 << 14, 8, 500),
        ),
        "together": (spin, read, copy, host[1]),
        "together-two": (copy, Client("d2d", 1 << 17, 8, 100), spin),
    }


def record(name: str, clients: Sequence[Client], program: Path, out: Path) -> None:
    """Record one mix."""
    apart = 0.0 if name.startswith("together") else APART_SECONDS
    with tempfile.TemporaryDirectory() as place:
        daemon, stop = ControlDaemon(Path(place)), Path(place, "stop")
        daemon.start(CUDA_VISIBLE_DEVICES="0")
        recorder = Recorder(daemon, out / f"{name}.jsonl.gz", "--attribution=bpf")
        time.sleep(FIRST_SECONDS)
        running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        for client in clients:
            log, numbers = Path(place, str(len(running))), map(str, (client.a, client.b, client.gap_us))
            process = subprocess.Popen([program, client.kind, log, stop, *numbers], env=daemon.environment)
            running[process.pid] = client.kind, process
            time.sleep(apart)
        time.sleep(SECONDS - apart * len(clients))
        recorder.interrupt()
        stop.touch()
        for _, process in running.values():
            process.wait(20)
        daemon.end()
        logs = {pid: Path(place, str(number)).read_text() for number, pid in enumerate(running)}
    document = truth(recorder.file, {pid: kind for pid, (kind, _) in running.items()}, logs)
    (out / f"{name}.truth.json").write_text(json.dumps(document))


def truth(file: Path, kinds: Mapping[int, str], logs: Mapping[int, str]) -> dict[str, object]:
    """Return the document of a recording's truth, at the times when GPM was read."""
    with gzip.open(file, "rt") as stream:
        seen = tuple(Recording(stream).observations())
    work = next(each for each in seen if isinstance(each, WorkReading))
    uses = [each for each in seen if isinstance(each, GpuUse)]
    offset, copied = work.at - work.boot_ns / 1e9, dict.fromkeys(kinds, 0.0)
    samples = {
        pid: [[float(number) for number in line.split()] for line in log.splitlines()] for pid, log in logs.items()
    }
    clients: dict[int, list[list[float]]] = {pid: [] for pid in kinds}
    for before, use in pairwise(uses):
        began, ended = (
            [_at(rows, each.at - GPM_LAG_SECONDS - offset) for rows in samples.values()] for each in (before, use)
        )
        done = {
            pid: [b - a for a, b in zip(*rows, strict=True)] for pid, *rows in zip(kinds, began, ended, strict=True)
        }
        moved = {pid: count for pid, (_, count, _) in done.items() if kinds[pid] in WITHIN}
        rest = max(0.0, use.sm_utilization * use.seconds * work.sms - sum(used for used, *_ in done.values()) / 1e9)
        for pid, rows in zip(kinds, ended, strict=True):
            copied[pid] += rest * moved.get(pid, 0.0) / (sum(moved.values()) or 1.0)
            if samples[pid][0][0] / 1e9 + offset < use.at:
                clients[pid].append([round(use.at, 3), round(rows[0] / 1e9 + copied[pid], 4), *rows[1:]])
    return {
        "sms": work.sms,
        "from": uses[0].at,
        "to": uses[-1].at,
        "bandwidth": work.bandwidth,
        "kinds": kinds,
        "clients": {pid: [row[:2] for row in rows] for pid, rows in clients.items()},
        "bytes": {pid: [row[2] for row in rows] for pid, rows in clients.items()},
        "steps": {pid: [row[3] for row in rows] for pid, rows in clients.items()},
    }


def _at(rows: Sequence[Sequence[float]], boot: float) -> list[float]:
    """Return the numbers of a client at a time, in seconds since boot, by linear interpolation."""
    index = bisect_left(rows, boot * 1e9, key=itemgetter(0))
    if index in (0, len(rows)):
        return [*rows[max(0, index - 1)][1:]]
    before, after = rows[index - 1], rows[index]
    part = (boot * 1e9 - before[0]) / (after[0] - before[0])
    return [a + part * (b - a) for a, b in zip(before[1:], after[1:], strict=True)]


def main() -> None:
    """Record the mixes of the seeds."""
    out = Path(os.environ["OUT"])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as built, tarfile.open(out / "mixes.tar.gz", "w:gz") as archive:
        program, recorded = Path(built, "clients"), Path(built, "recorded")
        subprocess.run(["nvcc", "-O2", "-arch=sm_90", "-o", program, HERE / "clients.cu"], check=True)
        recorded.mkdir()
        for seed in map(int, sys.argv[1:]):
            for name, clients in mixes(seed).items():
                record(f"{name}-{seed}", clients, program, recorded)
        archive.add(recorded, ".")


if __name__ == "__main__":
    main()
