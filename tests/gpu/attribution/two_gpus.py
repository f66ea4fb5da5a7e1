"""Clients on two GPUs of one node: the shares that `serve` reports on each GPU, compared with their own counts.

    OUT=DIR python3 -m tests.gpu.attribution.two_gpus

DIR gets `two_gpus.json` and `exporter.txt`. It takes two minutes.
"""

import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from tests.gpu.child import Child
from tests.gpu.clients import build
from tests.gpu.mps import ControlDaemon
from tests.gpu.program import Exporter
from tests.gpu.scrape import Scrape

SMS = 132
APART_SECONDS, TOGETHER_SECONDS, GAUGE_SECONDS = 4.0, 65.0, 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """A client: what it does on each of its devices, as `two_gpus.cu` reads it, and the GPUs that it may use."""

    name: str
    options: tuple[str, ...]
    visible: tuple[int, ...] = (0, 1)

    def share(self, device: int, launches: float) -> float:
        """Return the fraction of the SMs that it used by so many launches a second on a device."""
        blocks, us, _ = [each for each in self.options if ":" in each][device].split(":")
        return int(blocks) * float(us) * launches / 1e6 / SMS


LOADS = (
    Load("two-threads", ("60:500:1000", "20:500:1000")),
    Load("one-thread", ("--one-thread", "40:600:2000", "70:600:2000")),
    Load("on-gpu-0", ("30:400:1000",), (0,)),
    Load("on-gpu-1", ("50:400:1000",), (1,)),
)


def counts(child: Child) -> list[tuple[int, int, int]]:
    """Return the times (ns) and the launches on each device until then."""
    lines = (line.split() for line in child.text().splitlines(keepends=True) if line.endswith("\n"))
    return [(int(at), int(first), int(second)) for at, first, second in lines]


def rates(child: Child) -> tuple[float, float]:
    """Return the launches a second on each device in the time that the gauges cover."""
    every = counts(child)
    last = every[-1]
    first = next(each for each in every if each[0] >= last[0] - GAUGE_SECONDS * 1e9)
    seconds = (last[0] - first[0]) / 1e9
    return (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds


def compare(scrape: Scrape, clients: Mapping[Load, Child], uuids: list[str]) -> list[dict[str, Any]]:
    """Return the true and the reported share of each client on each of its GPUs."""
    series = {int(each.labels["pid"]): each.labels["client"] for each in scrape.select("cuda_mps_client_info")}
    rows = []
    for load, child in clients.items():
        rate = rates(child)
        for device, gpu in enumerate(load.visible):
            labels = {"client": series[child.pid], "gpu": uuids[gpu]}
            shares = scrape.select("cuda_mps_client_sm_utilization_ratio", **labels)
            errors = scrape.select("cuda_mps_client_sm_utilization_error_ratio", **labels)
            rows.append(
                {
                    "client": load.name,
                    "gpu": gpu,
                    "truth": round(load.share(device, rate[device]), 4),
                    "share": [each.value for each in shares],
                    "error": [each.value for each in errors],
                }
            )
    return rows


def play(directory: Path, out: Path) -> None:
    """Run the clients, and write the result."""
    pynvml.nvmlInit()
    uuids = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(each)) for each in range(2)]
    program = build(Path(__file__).with_name("two_gpus.cu"), directory / "two_gpus")
    daemon = ControlDaemon(directory / "d")
    daemon.start()
    exporter = Exporter(daemon, "--attribution=bpf", "--client-min-age=0s")
    clients: dict[Load, Child] = {}
    try:
        exporter.wait()
        time.sleep(APART_SECONDS)
        for load in LOADS:
            visible = ",".join(map(str, load.visible))
            environment = {**daemon.environment, "CUDA_VISIBLE_DEVICES": visible}
            clients[load] = Child([str(program), *load.options], output=directory / load.name, environment=environment)
            time.sleep(APART_SECONDS)
        time.sleep(TOGETHER_SECONDS)
        scrape = exporter.scrape()
        used = [scrape.value("cuda_mps_gpu_sm_utilization_ratio", gpu=uuid) for uuid in uuids]
        rows = compare(scrape, clients, uuids)
        (out / "two_gpus.json").write_text(json.dumps({"gpus": used, "clients": rows}, indent=1) + "\n")
        print(json.dumps({"gpus": used}), *map(json.dumps, rows), sep="\n", flush=True)
    finally:
        for client in clients.values():
            client.end(within=3)
        exporter.end()
        (out / "exporter.txt").write_text(exporter.child.text()[-20_000:])
        daemon.end()


def main() -> None:
    """Run everything."""
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
        play(Path(directory), Path(os.environ["OUT"]))


if __name__ == "__main__":
    main()
