"""A rank of an NCCL job that repeats an all-reduce: `python3 -m lab.contention.rank [OPTION]... [FILE FORM=KIND]`.

RANK, WORLD_SIZE and RANKS_STORE (a file that does not exist yet) are in its environment. It uses the GPU of its own
number. The ranks agree before each step whether all work. They do while each rank's FILE exists, and end at SIGTERM of
any. With a FILE, it prints `ready`, and the steps as `lab.contention.client` does. Without one, it reports as `load.cu`
does, works for `--seconds`, and causes the `--fault` at the time `--fault-at`.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.fault_address.client import access, use_context

from .client import POLL_SECONDS, REPORT_SECONDS, boot_ns

NUMBERS = 64 << 20
"""Of an all-reduce: 256 MiB."""

WORK, PAUSE, END = range(3)
ALL_PAUSE_SECONDS = 0.1
"""Until the files of all ranks are gone."""

END_SECONDS = 2.0
NOT_READY = 600
NOWHERE = 0x7E0000000000
"""No process has memory there, as in harm.cuh."""


def environment(rank: int, ranks: int, store: str) -> Mapping[str, str]:
    """Return the variables of a rank. NVLink multicast is off: on shared hosts it can harm other guests."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "RANKS_STORE": store,
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "WARN",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }


def say(event: str, **values: object) -> None:
    """Report an event, in one write, because two threads report."""
    sys.stdout.write(json.dumps({"event": event, "at": round(time.time(), 6), **values}) + "\n")
    sys.stdout.flush()


class Job:
    """The part of this rank in the job."""

    def __init__(self, rank: int, ranks: int) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]
        import torch.distributed as distributed  # type: ignore[import-not-found,unused-ignore]

        torch.set_num_threads(1)
        torch.cuda.set_device(rank)
        store = f"file://{os.environ['RANKS_STORE']}"
        distributed.init_process_group("nccl", init_method=store, rank=rank, world_size=ranks)
        self._distributed = distributed
        self._data: Any = torch.zeros(NUMBERS, device="cuda")
        self._wish: Any = torch.zeros(1, pin_memory=True)

    def step(self, wish: int) -> int:
        """Do an all-reduce, and return the largest wish of all ranks."""
        self._wish[0] = wish
        self._data[:1].copy_(self._wish, non_blocking=True)
        self._distributed.all_reduce(self._data, op=self._distributed.ReduceOp.MAX)
        return int(self._data[0].item())


class StandIn:
    """A rank without a GPU and without others."""

    def step(self, wish: int) -> int:
        """Wait for a while."""
        time.sleep(0.01)
        return wish


def watch_end(ended: threading.Event) -> None:
    """Wait for SIGTERM, and exit soon after it. The main thread can wait for a rank that has ended."""
    signal.sigwait({signal.SIGTERM})
    ended.set()
    time.sleep(END_SECONDS)
    os._exit(0)


def watch_errors(rank: int) -> None:
    """Exit at the first CUDA error."""
    cuda = use_context(rank)
    while (code := cuda.cuStreamQuery(None)) in (0, NOT_READY):
        time.sleep(POLL_SECONDS)
    say("error", call="cuStreamQuery", code=code, name=f"CUDA error {code}")
    os._exit(10)


def main() -> None:
    """Be a rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", type=int, help="not used, as the next: other clients of the trial have it")
    parser.add_argument("--period", type=float)
    parser.add_argument("--devices", help="not used: load.cu has it")
    parser.add_argument("--small", action="store_true", help="without a GPU, to try this program")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--fault", choices=["oob"])
    parser.add_argument("--fault-at", type=float, help="seconds since the epoch")
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("form", metavar="FORM=KIND", nargs="?")
    options = parser.parse_args()
    rank, ended = int(os.environ["RANK"]), threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=watch_end, args=(ended,), daemon=True).start()
    job = StandIn() if options.small else Job(rank, int(os.environ["WORLD_SIZE"]))
    job.step(WORK)
    if not options.small and not options.file:
        threading.Thread(target=watch_errors, args=(rank,), daemon=True).start()
    say("ready", pid=os.getpid(), allocated_bytes=4 * NUMBERS)
    print("ready", flush=True)
    try:
        work(job, options, rank, ended)
    except RuntimeError as problem:
        time.sleep(1)  # watch_errors knows the code of the error, and exits
        say("error", call="step", code=-1, name=str(problem)[:80])
        os._exit(10)
    os._exit(0)


def work(job: Job | StandIn, options: argparse.Namespace, rank: int, ended: threading.Event) -> None:
    """Work until the ranks agree to end."""
    steps, spent, reported_at, agreed, ends = 0, 0, 0.0, WORK, time.monotonic() + options.seconds
    while agreed != END:
        if options.fault_at and time.time() >= options.fault_at:
            options.fault_at = None
            say("fault", kind=options.fault)
            access(NOWHERE, "write", rank)
        if agreed == PAUSE:
            time.sleep(ALL_PAUSE_SECONDS)
        while agreed == PAUSE and not ended.is_set() and not options.file.exists():
            time.sleep(POLL_SECONDS)
        goes = options.file is None or options.file.exists()
        began = boot_ns()
        agreed = job.step(END if ended.is_set() or time.monotonic() > ends else WORK if goes else PAUSE)
        ended_at = boot_ns()
        steps, spent = steps + 1, spent + ended_at - began
        if options.file and time.monotonic() - reported_at >= REPORT_SECONDS:
            reported_at = time.monotonic()
            print(ended_at, steps, spent, flush=True)
    say("done", exit_code=0, launches=steps, busy_seconds=spent / 1e9, wall_seconds=spent / 1e9)


if __name__ == "__main__":
    main()
