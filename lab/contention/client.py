"""A client of the trial: `python3 -m lab.contention.client [OPTION]... FILE FORM=KIND...`.

It prints `ready` after its warm-up. It works while FILE exists, until SIGTERM. The file names the form of its work,
which is a kind of `lab.attribution.frameworks`. Up to fourteen times a second it prints when its latest step ended
(CLOCK_BOOTTIME in ns), the number of its steps, and the nanoseconds in them. With `--devices N`, a thread for each of
its first N GPUs does steps there, and the device is the last word of each line.
"""

import argparse
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from lab.attribution.frameworks import KINDS, Step

POLL_SECONDS, REPORT_SECONDS = 0.02, 0.07
WARM_UP_STEPS = 30


def main() -> None:
    """Work while the file exists."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", type=int, default=1, help="so many steps of the kind are one step")
    parser.add_argument("--period", type=float, default=0.0, help="seconds from the begin of a step to the next one's")
    parser.add_argument("--devices", type=int, default=1, help="so many GPUs, each with steps of its own")
    parser.add_argument("--late", action="store_true", help="use the GPU only when the file exists")
    parser.add_argument("file", type=Path)
    parser.add_argument("forms", nargs="+", metavar="FORM=KIND")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    kinds = dict(each.split("=") for each in options.forms)
    if options.late:
        for framework in {kind.partition("_")[0] for kind in kinds.values()} & {"torch", "jax", "cupy"}:
            importlib.import_module(framework)
        while not options.file.exists():
            time.sleep(POLL_SECONDS)
    works = []
    for device in range(options.devices):
        with on(device):
            forms = {name: KINDS[kind]() for name, kind in kinds.items()}
            for step in forms.values():
                for _ in range(max(1, WARM_UP_STEPS // options.group) * options.group):
                    step()
        label = str(device) if options.devices > 1 else ""
        works.append(partial(work_on, device, Work(options.file, label), forms, options.group, options.period))
    print("ready", flush=True)
    for work in works[1:]:
        threading.Thread(target=work, daemon=True).start()
    works[0]()


def on(device: int) -> AbstractContextManager[object]:
    """Return a context in which a device is that of PyTorch. The first one is so without it, in any framework."""
    torch = sys.modules.get("torch") if device else None
    return nullcontext() if torch is None else torch.cuda.device(device)


def work_on(device: int, work: "Work", forms: Mapping[str, Step], group: int, period: float) -> None:
    """Work on a device."""
    with on(device):
        work.repeat(forms, group, period)


class Work:
    """The steps of the client, and a thread that reads the file and reports them, with a label."""

    def __init__(self, file: Path, label: str) -> None:
        self._file, self._label = file, label
        self._goes = threading.Event()
        self._form = ""
        self._done = (0, 0, 0)
        threading.Thread(target=self._watch, daemon=True).start()

    def repeat(self, forms: Mapping[str, Step], group: int, period: float) -> None:
        """Work whenever the file exists."""
        _, steps, spent = self._done
        due = time.monotonic()
        while True:
            self._goes.wait()
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due + period, time.monotonic())
            step = forms[self._form]
            began = boot_ns()
            for _ in range(group):
                step()
            ended = boot_ns()
            steps, spent = steps + 1, spent + ended - began
            self._done = ended, steps, spent

    def _watch(self) -> None:
        reported, reported_at = self._done, 0.0
        while True:
            try:
                self._form = self._file.read_text().strip()
                self._goes.set()
            except FileNotFoundError:
                self._goes.clear()
            if self._done != reported and time.monotonic() - reported_at >= REPORT_SECONDS:
                reported, reported_at = self._done, time.monotonic()
                sys.stdout.write(f"{' '.join(map(str, reported))} {self._label}".strip() + "\n")
                sys.stdout.flush()
            time.sleep(POLL_SECONDS)


def boot_ns() -> int:
    """Return nanoseconds of CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    main()
