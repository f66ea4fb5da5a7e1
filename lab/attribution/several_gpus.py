"""Clients on several GPUs of one node: the shares that `serve` reports on each GPU, compared with the truth.

    OUT=DIR python3 -m lab.attribution.several_gpus [SCENE]...

For each scene, DIR gets SCENE.json (truth and shares), SCENE.prom (the scrape), SCENE.jsonl.gz (a recording),
SCENE.truth.json (its truth, in the format of tests/attribution) and SCENE.txt (the exporter's log). A scene takes 100
seconds. Its daemon is new: its first client starts the server. `score DIR` instead of scenes prints what a replay of
the recordings shows, also without the lines of the log that show the GPU of a context; it needs no GPU.
"""

import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.gpu.child import Child
from lab.gpu.clients import build
from lab.gpu.device import devices
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Exporter, Recorder
from lab.gpu.scrape import Scrape
from tests.usage.mix_recordings import Mix, mixes_of

SMS = 132
COUNTED = "counted"
"""The scene whose clients use all GPUs. The others have clients on the first two."""

TOGETHER = "together"
"""How names of scenes begin whose clients begin at once, when nothing is known of them."""

APART_SECONDS, TOGETHER_SECONDS, GAUGE_SECONDS = 4.0, 65.0, 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """A client: what it does on each of its devices, as `several_gpus.cu` reads it, and the GPUs that it may use.

    It may have the `shared` library of the CUDA runtime. The `visible` GPUs are in its environment at its start. If
    other GPUs are `inside`, it makes those visible in its process.
    """

    name: str
    options: tuple[str, ...]
    visible: tuple[int, ...] = (0, 1)
    shared: bool = False
    inside: tuple[int, ...] = ()

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs by the client's own numbers."""
        return self.inside or self.visible

    def sm_seconds(self, device: int, launches: int) -> float:
        """Return the SM time of so many launches on a device, in seconds of one SM."""
        blocks, us, _ = [each for each in self.options if ":" in each][device].split(":")
        return int(blocks) * float(us) * launches / 1e6


ON_GPU_0, ON_GPU_1 = Load("on-gpu-0", ("30:400:1000",), (0,)), Load("on-gpu-1", ("50:400:1000",), (1,))


def counted(gpus: int) -> tuple[Load, ...]:
    """Return clients on all GPUs, on two of them in either order, and one on each."""
    everywhere = tuple(range(gpus))
    last = everywhere[:-3:-1]
    return (
        Load("threads", tuple(f"{40 if gpu % 2 else 20}:500:1000" for gpu in everywhere), everywhere),
        Load("one-thread", ("--one-thread", *(f"{24 - 8 * (gpu % 3)}:600:2000" for gpu in everywhere)), everywhere),
        *([Load("last-two", ("20:500:1500", "10:400:1000"), last)] if gpus > 2 else []),
        *(Load(f"on-gpu-{gpu}", (f"{20 + 5 * gpu}:400:1000",), (gpu,)) for gpu in everywhere),
    )


SCENES = {
    "together": (
        Load("both", ("40:700:1000", "16:300:1000")),
        Load("both-shared", ("12:500:1000", "30:400:1000"), shared=True),
        Load("one-thread", ("--one-thread", "20:600:2000", "24:600:2000")),
        Load("second", ("0:0:0", "20:600:1000")),
        ON_GPU_0,
    ),
    "chosen": (
        Load("ray-like", ("--visible=1", "40:600:1000"), inside=(1,)),
        Load("stale", ("--visible=0", "30:500:1000"), (1,), inside=(0,)),
        Load("set-device", ("0:0:0", "20:700:1500")),
        ON_GPU_0,
        ON_GPU_1,
    ),
    "together-chosen": (
        Load("ray-like", ("--visible=1", "40:600:1000"), inside=(1,)),
        Load("both", ("--visible=0,1", "36:500:1000", "16:300:1000"), (1,), inside=(0, 1)),
        Load("set-device", ("0:0:0", "20:700:1500")),
        ON_GPU_0,
    ),
    "uneven": (Load("uneven", ("100:760:1000", "20:760:1000")), ON_GPU_0, ON_GPU_1),
}

Samples = list[tuple[float, float]]


def samples(load: Load, child: Child, device: int) -> Samples:
    """Return times since the epoch, and the SM time on a device until then."""
    epoch = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    lines = (line.split() for line in child.text().splitlines(keepends=True) if line.endswith("\n"))
    return [(int(at) / 1e9 + epoch, load.sm_seconds(device, int(counts[device]))) for at, *counts in lines]


def used(samples: Samples, began: float, ended: float) -> float:
    """Return the SM time between the samples next to two times."""
    inside = [each for each in samples if began <= each[0] <= ended]
    if len(inside) < 2:
        return 0.0
    (first, before), *_, (last, after) = inside
    return (after - before) / (last - first) * (ended - began)


def scored(mix: Mix, *, with_log: bool) -> dict[str, Any]:
    """Return the errors of the shares of a GPU in percentage points, and after how many seconds each client has one.

    Without the log, the lines that show the GPU of a context are left out of the replay.
    """
    minutes = mix.minutes if with_log else mix.minutes_without_log
    every = [each for _, of_minute in minutes for each in of_minute]
    began = {
        pid: next((at for at, used_until in known if used_until), None) for pid, known in mix.truth.samples.items()
    }
    first: dict[int, float] = {}
    for split in mix.windows if with_log else mix.windows_without_log:
        for pid in split.shares.keys() - first.keys():
            first[pid] = split.at
    return {
        "gpu": mix.gpu,
        "with_log": with_log,
        "mean_error": round(sum(each.error for each in every) / len(every), 2),
        "largest_error": round(max(each.error for each in every), 2),
        "covered": sum(each.is_covered for each in every) / len(every),
        "seconds_to_share": {
            pid: None if pid not in first else round(first[pid] - at, 1) for pid, at in began.items() if at is not None
        },
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the errors of the shares at the end in points, and how many are within two standard errors.

    A client without work on a GPU needs no share there.
    """
    rows = [row for row in rows if row["truth"] or row["share"]]
    known = [(each["truth"], each["share"][0], each["error"][0]) for each in rows if each["share"] and each["error"]]
    points = [100 * abs(share - truth) for truth, share, _ in known]
    inside = sum(abs(share - truth) <= 2 * error + 0.001 for truth, share, error in known)
    figures = {"mean": round(sum(points) / max(1, len(points)), 2), "worst": round(max(points, default=0), 2)}
    return {**figures, "covered": f"{inside} of {len(rows)}"}


class Scene:
    """The clients of a scene, beside `serve` and `record`."""

    def __init__(self, name: str, directory: Path, uuids: Sequence[str]) -> None:
        self.name, self._uuids = name, uuids
        self._directory = directory
        source = Path(__file__).with_name("several_gpus.cu")
        self._programs = {
            shared: build(source, directory / f"several_gpus.{kind}", f"-cudart={kind}")
            for shared, kind in ((False, "static"), (True, "shared"))
        }
        self._daemon = ControlDaemon(directory / "d")
        self._recording = directory / "recording.jsonl"
        self._clients: dict[Load, Child] = {}

    def play(self, out: Path) -> None:
        """Run the clients, and write the results."""
        self._daemon.start()
        exporter = Exporter(self._daemon, "--attribution=bpf", "--client-min-age=0s")
        recorder = Recorder(self._daemon, self._recording, "--attribution=bpf")
        try:
            exporter.wait()
            time.sleep(APART_SECONDS)
            for load in counted(len(self._uuids)) if self.name == COUNTED else SCENES[self.name]:
                self._clients[load] = self._start(load)
                if not self.name.startswith(TOGETHER):
                    self._wait(load)
                    time.sleep(APART_SECONDS)
            for load in self._clients:
                self._wait(load)
            together = time.time()
            time.sleep(TOGETHER_SECONDS)
            scrape, ended = exporter.scrape(), time.time()
            (out / f"{self.name}.prom").write_text(scrape.text)
            time.sleep(1.5)
        finally:
            for client in self._clients.values():
                client.end(within=3)
            recorder.interrupt_later()
            exporter.end()
            recorder.end()
            (out / f"{self.name}.txt").write_text(exporter.child.text()[-20_000:])
            self._daemon.end()
        with self._recording.open("rb") as plain, gzip.open(out / f"{self.name}.jsonl.gz", "wb") as packed:
            shutil.copyfileobj(plain, packed)
        truth = self._truth()
        document = {"sms": SMS, "from": together, "to": ended, "gpus": truth}
        (out / f"{self.name}.truth.json").write_text(json.dumps(document) + "\n")
        rows = self._compared(scrape, truth, ended)
        gpus = {each.labels["gpu"]: each.value for each in scrape.select("cuda_mps_gpu_sm_utilization_ratio")}
        (out / f"{self.name}.json").write_text(json.dumps({"gpus": gpus, "clients": rows}, indent=1) + "\n")
        lines = ({"scene": self.name, "gpus": gpus}, *rows, summary(rows))
        print(*map(json.dumps, lines), sep="\n", flush=True)

    def _start(self, load: Load) -> Child:
        return Child(
            [str(self._programs[load.shared]), *load.options],
            output=self._directory / load.name,
            environment={**self._daemon.environment, "CUDA_VISIBLE_DEVICES": ",".join(map(str, load.visible))},
        )

    def _wait(self, load: Load) -> None:
        deadline = time.monotonic() + 60
        while not self._clients[load].text() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _truth(self) -> dict[str, dict[int, Samples]]:
        """Return the SM time of each client on each GPU, by its own counts."""
        counted: dict[str, dict[int, Samples]] = {uuid: {} for uuid in self._uuids}
        for load, child in self._clients.items():
            for device, gpu in enumerate(load.gpus):
                counted[self._uuids[gpu]][child.pid] = samples(load, child, device)
        return counted

    def _compared(
        self, scrape: Scrape, truth: Mapping[str, Mapping[int, Samples]], ended: float
    ) -> list[dict[str, Any]]:
        """Return the true and the reported share of each client on each of its GPUs, in the last minute."""
        series = {int(each.labels["pid"]): each.labels["client"] for each in scrape.select("cuda_mps_client_info")}
        rows = []
        for load, child in self._clients.items():
            for gpu in load.gpus:
                uuid = self._uuids[gpu]
                true = used(list(truth[uuid][child.pid]), ended - GAUGE_SECONDS, ended) / GAUGE_SECONDS / SMS
                labels = {"client": series[child.pid], "gpu": uuid}
                shares = scrape.select("cuda_mps_client_sm_utilization_ratio", **labels)
                errors = scrape.select("cuda_mps_client_sm_utilization_error_ratio", **labels)
                rows.append(
                    {
                        "client": load.name,
                        "gpu": gpu,
                        "truth": round(true, 4),
                        "share": [each.value for each in shares],
                        "error": [each.value for each in errors],
                    }
                )
        return rows


def main() -> None:
    """Run the scenes, all by default, or compare recordings with their truth."""
    if sys.argv[1:2] == ["score"]:
        for mix in mixes_of(Path(sys.argv[2])):
            if mix.truth.samples:
                print(mix, *(json.dumps(scored(mix, with_log=with_log)) for with_log in (True, False)), sep="\n ")
        return
    uuids = [device.uuid for device in devices()]
    for name in sys.argv[1:] or (COUNTED, *SCENES):
        with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
            Scene(name, Path(directory), uuids).play(Path(os.environ["OUT"]))


if __name__ == "__main__":
    main()
