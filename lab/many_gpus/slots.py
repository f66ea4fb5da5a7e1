"""How many clients a server of several GPUs accepts: `OUT=DIR python3 -m lab.many_gpus.slots [ARM]...`.

Each arm is a daemon for all GPUs: clients that see one GPU each, clients that see all and use one, and clients that
use all. DIR gets slots.json: how many of each wave were ready, the CUDA errors of the others, and what the exporter
shows then. DIR also gets its status, 5 and 15 s after the last client was ready or refused.
"""

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.gpu.clients import LOAD_PROGRAM, Clients, build
from lab.gpu.device import devices
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Exporter

WAVE, LAST, MORE = 40, 20, 5
"""Clients for each GPU, then for the first, then for all. 48 or 60 fit on a GPU, by the version of MPS."""
SHOWN = (
    "cuda_mps_clients_connected_total",
    "cuda_mps_clients_refused_total",
    "cuda_mps_server_clients",
    "cuda_mps_server_clients_limit",
)
Choice = Mapping[str, Any]


def arms(gpus: int) -> Mapping[str, tuple[tuple[str, int, Choice], ...]]:
    """Return the waves of each arm: a name, a number of clients, and their options."""
    every = ",".join(map(str, range(gpus)))

    def waves(choice: Mapping[int, Choice]) -> tuple[tuple[str, int, Choice], ...]:
        own = [(f"GPU {gpu}", WAVE, choice[gpu]) for gpu in range(gpus)]
        return (*own, ("GPU 0 again", LAST, choice[0]), ("all", MORE, {"devices": every}))

    return {
        "see one": waves({gpu: {"environment": {"CUDA_VISIBLE_DEVICES": str(gpu)}} for gpu in range(gpus)}),
        "see all, use one": waves({gpu: {"devices": str(gpu)} for gpu in range(gpus)}),
        "use all": (("all", WAVE + LAST, {"devices": every}),),
    }


def play(root: Path, program: Path, waves: tuple[tuple[str, int, Choice], ...]) -> dict[str, Any]:
    """Start the waves one after another, and return what they report, and what the exporter shows at the end."""
    daemon = ControlDaemon(root)
    clients, result = Clients(program, daemon, root / "clients"), dict[str, Any]()
    daemon.start()
    exporter = Exporter(daemon, "--client-min-age=0s")
    try:
        exporter.wait()
        for name, number, options in waves:
            wave = [clients.start("idle", seconds=600, every_ms=200, **options) for _ in range(number)]
            for client in wave:
                client.settle(within=120)
            ready = [client for client in wave if client.events("ready")]
            refused = Counter(code for client in wave if client not in ready for code in client.error_codes)
            result[name] = {"started": number, "ready": len(ready), "refused": refused}
        statuses = []
        for seconds in (5, 10):
            time.sleep(seconds)  # for queries, readings and publications of the exporter
            statuses.append(json.loads(exporter.page("/api/v1/status")))
        result["status"] = statuses
        scrape = exporter.scrape()
        result["shown"] = {
            f"{each.name} {each.labels.get('reason', '')}".strip(): each.value
            for family in SHOWN
            for each in scrape.select(family)
        }
        result["findings"] = [[each["code"], each["facts"]] for each in statuses[-1]["data"]["findings"]]
    finally:
        clients.end()
        exporter.end()
        daemon.end()
    return result


def main() -> None:
    """Play all arms."""
    out, results = Path(os.environ["OUT"]), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp", ignore_cleanup_errors=True) as name:
        root = Path(name)
        root.chmod(0o755)
        program = build(LOAD_PROGRAM, root / "load")
        every = arms(len(devices()))
        for number, arm in enumerate(sys.argv[1:] or every):
            results[arm] = play(root / f"arm{number}", program, every[arm])
            status = results[arm].pop("status")
            (out / f"status{number}.json").write_text(json.dumps(status))
            print(arm, json.dumps(results[arm]), flush=True)
            (out / "slots.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
