"""The service with twelve clients: its metrics, the sums of its totals, and its cost.

    OUT=DIR python3 -m lab.attribution.live

DIR gets `metrics.txt`, `status.txt`, `status.json` and `live.json`. It takes less than a minute.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from lab.gpu.child import Child
from lab.gpu.clients import build
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Exporter
from lab.gpu.scrape import Scrape

from .mixes import MIXES

MIX = "twelve"
SETTLE_SECONDS = 6
MEASURED_SECONDS = 20
MIB = 1 << 20


def conserved(scrape: Scrape) -> dict[str, dict[str, float]]:
    """Return the SM seconds of each GPU, of its workloads, and of ended series."""
    return {
        sample.labels["gpu"]: {
            "device": sample.value,
            "workloads": _sum(scrape, "cuda_mps_workload_sm_seconds_total", sample.labels["gpu"]),
            "closed": _sum(scrape, "cuda_mps_gpu_closed_sm_seconds_total", sample.labels["gpu"]),
        }
        for sample in scrape.select("cuda_mps_gpu_sm_seconds_total")
    }


def adds_up(totals: dict[str, dict[str, float]]) -> bool:
    """Return whether the parts add up to the total, to a microsecond, and are not empty."""
    return bool(totals) and all(
        each["device"] > 0 and abs(each["workloads"] + each["closed"] - each["device"]) < 1e-6
        for each in totals.values()
    )


def _sum(scrape: Scrape, name: str, gpu: str) -> float:
    return sum(sample.value for sample in scrape.select(name, gpu=gpu))


def play(directory: Path, out: Path) -> bool:
    """Run the clients, and return whether the totals add up."""
    program = build(Path(__file__).with_name("known.cu"), directory / "known")
    daemon = ControlDaemon(directory / "d")
    daemon.start()
    exporter = Exporter(daemon, "--attribution=bpf", "--client-min-age=0s")
    clients: list[Child] = []
    try:
        exporter.wait()
        for part in next(mix for mix in MIXES if mix.name == MIX).parts:
            words = [word for item in part.options.items() for word in item if word]
            environment = {**daemon.environment, **part.environment}
            output = directory / f"{part.name}.jsonl"
            clients.append(Child([str(program), *words], output=output, environment=environment))
        time.sleep(SETTLE_SECONDS)
        process = psutil.Process(exporter.pid)
        spent, began = _cpu(process), time.monotonic()
        time.sleep(MEASURED_SECONDS)
        cost = (_cpu(process) - spent) / (time.monotonic() - began)
        scrape = exporter.scrape()
        totals = conserved(scrape)
        found = {
            "clients": len(clients),
            "clients_well": sum(client.exit_code is None for client in clients),
            "cpu_percent": round(100 * cost, 2),
            "rss_mib": round(process.memory_info().rss / MIB, 1),
            "scrape_seconds": round(scrape.seconds, 4),
            "sm_seconds": totals,
            "conserved": adds_up(totals),
        }
        (out / "live.json").write_text(json.dumps(found, indent=1) + "\n")
        (out / "metrics.txt").write_text(scrape.text)
        print(json.dumps(found), flush=True)
        (out / "status.txt").write_text(exporter.status())
        (out / "status.json").write_text(exporter.status("--json"))
        return adds_up(totals)
    finally:
        for client in clients:
            client.terminate()
        for client in clients:
            client.end(within=3)
        exporter.end()
        (out / "exporter.txt").write_text(exporter.child.text()[-20_000:])
        daemon.end()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> int:
    """Run everything."""
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
        return 0 if play(Path(directory), Path(os.environ["OUT"])) else 1


if __name__ == "__main__":
    sys.exit(main())
