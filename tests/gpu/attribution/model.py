"""A PyTorch client: a small model (inference or training). Its kernels are timed alone and in the mix.

It waits for a lock to run alone, runs without and with the profiler, reports `ready`, and runs from the
moment that a file named `go` appears. SIGUSR1 has it profiled for a moment. stdout has one JSON object a line.
"""

import argparse
import fcntl
import gzip
import itertools
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from torch import nn  # type: ignore[import-not-found,unused-ignore]

# Long enough for two readings of the GPU's SM time.
ALONE_SECONDS = 3.5
PROFILED_SECONDS = 0.3
PROFILED_IN_MIX_SECONDS = 1.5
TELL_SECONDS = 0.1
READS_LOSS_EVERY = 10

Step = Callable[[], torch.Tensor]


class Client:
    """A client, its counts, and its steps."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.steps = 0
        self.stopping = False
        self.profiling = False
        self.step = _step(options)

    def take_step(self) -> None:
        """Run one step with its synchronization."""
        out = self.step()
        self.steps += 1
        if not self.options.train:
            out.float().sum().item()
        elif self.steps % READS_LOSS_EVERY == 0:
            out.item()
        if self.options.pause_ms > 0:
            time.sleep(self.options.pause_ms / 1000)

    def work(self, seconds: float) -> dict[str, int]:
        """Run steps for some seconds. Return start, end and number."""
        torch.cuda.synchronize()
        began, first = boot_ns(), self.steps
        while boot_ns() - began < seconds * 1e9 and not self.stopping:
            self.take_step()
        torch.cuda.synchronize()
        return {"from_ns": began, "to_ns": boot_ns(), "steps": self.steps - first}

    def profiled(self, seconds: float, when: str) -> dict[str, Any]:
        """Run steps with the profiler. Return the times of all kernels, too."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            worked = self.work(seconds)
        kernels = _kernels(profile)
        file = Path(f"{self.options.out}.{when}.trace.json.gz")
        with gzip.open(file, "wt", compresslevel=3) as stream:
            json.dump(kernels, stream)
        return {**worked, "kernels": len(kernels), "weighted_us": sum(each[1] * each[5] for each in kernels)}


def boot_ns() -> int:
    """Return nanoseconds of CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def report(event: str, **more: object) -> None:
    """Print an event as a line."""
    sys.stdout.write(json.dumps({"event": event, "boot_ns": boot_ns(), **more}) + "\n")
    sys.stdout.flush()


def _kernels(profile: Any) -> list[list[Any]]:
    """Return start, duration, blocks, threads, stream and used share of SMs of each kernel."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "trace.json")
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    rows = []
    for each in events:
        if each.get("cat") == "kernel":
            details = each.get("args", {})
            grid, block = details.get("grid", [1]), details.get("block", [1])
            blocks = _product(grid)
            share = min(blocks, sms) / sms
            rows.append([each["ts"], each["dur"], blocks, _product(block), details.get("stream"), round(share, 5)])
    return rows


def _product(numbers: list[int]) -> int:
    product = 1
    for each in numbers:
        product *= each
    return product


def _network(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    if kind == "mlp":
        layers = [nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)]
        return nn.Sequential(*layers), (1024,)
    if kind == "transformer":
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (64, 512)
    widths = (3, 32, 64, 128, 128)
    stages: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        stages += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1000)), (3, 128, 128)


def _step(options: argparse.Namespace) -> Step:
    dtype = getattr(torch, options.dtype)
    network, shape = _network(options.kind)
    network = network.to("cuda", dtype)
    data = torch.randn(options.batch, *shape, device="cuda", dtype=dtype)
    step = _learning(network, data) if options.train else _answering(network, data)
    return _captured(step) if options.graph else step


def _answering(network: nn.Module, data: torch.Tensor) -> Step:
    network.eval()

    def step() -> torch.Tensor:
        with torch.no_grad():
            return network(data)  # type: ignore[no-any-return,unused-ignore]

    return step


def _learning(network: nn.Module, data: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = network(data).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _captured(step: Step) -> Step:
    """Return the step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


def _alone(client: Client) -> dict[str, Any]:
    for _ in range(20):
        client.take_step()
    result: dict[str, Any] = {"unobserved": client.work(ALONE_SECONDS)}
    result["profiled"] = _tried(lambda: client.profiled(PROFILED_SECONDS, "alone"))
    return result


def _tried(do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result, or the error if the profiler fails. The client continues."""
    try:
        return do()
    except Exception as problem:  # any error of the profiler
        return {"problem": repr(problem)}


def _count(client: Client) -> None:
    while not client.stopping:
        report("count", steps=client.steps)
        time.sleep(TELL_SECONDS)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("mlp", "transformer", "classifier"), required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pause-ms", type=float, default=0)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--go", type=Path, required=True)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def main() -> None:
    """Run alone, then in the mix until SIGTERM."""
    options = _parsed()
    torch.set_num_threads(1)
    torch.zeros(1, device="cuda")
    with options.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = Client(options)
        report("alone", **_alone(client))
    signal.signal(signal.SIGTERM, lambda *_: setattr(client, "stopping", True))
    signal.signal(signal.SIGUSR1, lambda *_: setattr(client, "profiling", True))
    report("ready")
    while not options.go.exists() and not client.stopping:
        time.sleep(0.02)
    counter = threading.Thread(target=_count, args=(client,))
    counter.start()
    while not client.stopping:
        if client.profiling:
            client.profiling = False
            report("profiled", **_tried(lambda: client.profiled(PROFILED_IN_MIX_SECONDS, "mix")))
        client.take_step()
    torch.cuda.synchronize()
    counter.join()
    report("done", steps=client.steps)


if __name__ == "__main__":
    main()
