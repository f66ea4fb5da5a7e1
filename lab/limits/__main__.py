"""Limits of clients on all GPUs, compared with cuMemGetInfo and the number of SMs that CUDA reports.

    OUT=DIR python3 -m lab.limits

As root, on a node with MPS; about two minutes. Each phase is a daemon: without default limits, with them, with its GPUs
in the opposite order, and with the last and the first GPU by UUID. Its clients have orders of CUDA_VISIBLE_DEVICES, by
number and by UUID, with each limit of their own, and some set variables inside the process. DIR gets limits.json after
each phase: a row for each client and GPU, with a verdict. The exit code is 1 if the exporter shows anything false, or
does not know a limit of a client without variables that it sets inside.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT, VISIBLE_DEVICES
from lab.gpu.child import Child
from lab.gpu.device import devices
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Exporter
from tests.eventually import eventually

GIB = 1 << 30
SIZES = (2, 3, 4, 6)
"""All limits in GiB. A limit includes the context, so that less than 1 GiB of it is missing in what is free."""
PERCENTAGES = (None, "1", "5", "10", "33", "50", "99")
INSIDE: tuple[tuple[Mapping[str, str], Mapping[str, str]], ...] = (
    ({}, {ACTIVE_THREAD_PERCENTAGE: "20"}),
    ({}, {PINNED_MEMORY_LIMIT: "0=2G"}),
    ({}, {VISIBLE_DEVICES: "1"}),
    ({}, {VISIBLE_DEVICES: "1,0"}),
    ({PINNED_MEMORY_LIMIT: "0=2G"}, {VISIBLE_DEVICES: "1"}),
    ({PINNED_MEMORY_LIMIT: "0=2G,1=3G"}, {VISIBLE_DEVICES: "1,0"}),
)
"""Variables at the start, and those that are set inside."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Phase:
    """A daemon: its commands, and its GPUs in their order; none: all."""

    name: str
    commands: tuple[str, ...] = ()
    visible: tuple[int, ...] = ()
    by_uuid: bool = False


DEFAULTS = ("set_default_device_pinned_mem_limit 0 6G", "set_default_device_pinned_mem_limit 1 4G")


def phases(gpus: int) -> Iterator[Phase]:
    """Yield the daemons."""
    yield Phase("none")
    yield Phase("defaults", (*DEFAULTS[:gpus], "set_default_active_thread_percentage 66"))
    if gpus > 1:
        yield Phase("reversed", DEFAULTS, tuple(range(gpus))[::-1])
        yield Phase("uuids", DEFAULTS, (gpus - 1, 0), by_uuid=True)


def environments(uuids: Sequence[str]) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Yield the variables with which clients of a daemon with these GPUs start, and those that they set inside."""
    last = len(uuids) - 1
    numbers = [*map(str, range(len(uuids)))]
    orders = [None, "0"]
    if last:
        orders += [str(last), ",".join(numbers), ",".join(numbers[::-1]), f"{uuids[last]},{uuids[0]}"]
    for number, (order, own) in enumerate(product(orders, (None, "0=2G", f"{last or 1}=3G", f"0=2G,{last or 1}=3G"))):
        wanted = {
            VISIBLE_DEVICES: order,
            PINNED_MEMORY_LIMIT: own,
            ACTIVE_THREAD_PERCENTAGE: PERCENTAGES[number % len(PERCENTAGES)],
            "CUDA_DEVICE_ORDER": (None, "PCI_BUS_ID", "FASTEST_FIRST")[number % 3],
        }
        yield {name: value for name, value in wanted.items() if value is not None}, {}
    yield from (each for each in INSIDE if last or VISIBLE_DEVICES not in each[1])


def true_limit(device: Mapping[str, int]) -> int | None:
    """Return the limit that explains what is free on a device; None: there is none."""
    return next((size * GIB for size in SIZES if device["free"] < size * GIB <= device["free"] + GIB), None)


def verdict(shown: Mapping[str, Any], device: Mapping[str, int], own: Mapping[str, str]) -> Row:
    """Compare what the exporter shows of a client on a GPU with what CUDA gives it.

    A limit of its own that is not certain is that of the order of GPUs at its start. Others are upper bounds.
    """
    limit, sms = true_limit(device), shown.get("usable_sms")
    memory = shown.get("memory_limit_bytes")
    if sms is None:
        of_sms = "unknown"
    elif shown.get("active_thread_certain"):
        of_sms = "right" if sms == device["sms"] else "false"
    else:
        of_sms = "right" if sms == device["sms"] else "bound" if sms > device["sms"] else "false"
    if memory is None:
        of_memory = "right" if limit is None else "not shown"
    elif memory == limit:
        of_memory = "right"
    elif PINNED_MEMORY_LIMIT in own and not shown.get("memory_limit_certain"):
        of_memory = "as started"
    else:
        is_bound = not shown.get("memory_limit_certain") and limit is not None and memory > limit
        of_memory = "bound" if is_bound else "false"
    return {"sms": device["sms"], "shown_sms": sms, "limit": limit, "shown_limit": memory} | {
        "verdict_sms": of_sms,
        "verdict_memory": of_memory,
    }


def play(phase: Phase, directory: Path, every: Sequence[str]) -> Iterator[Row]:
    """Start all clients of a daemon, and compare each with the status."""
    daemon = ControlDaemon(directory)
    program = Path(__file__).with_name("client.py")
    clients: list[tuple[Mapping[str, str], Mapping[str, str], Child]] = []
    uuids = [every[number] for number in phase.visible or range(len(every))]
    visible = ",".join(uuids if phase.by_uuid else map(str, phase.visible))
    daemon.start(**({VISIBLE_DEVICES: visible} if visible else {}))
    exporter = None
    try:
        for command in phase.commands:
            daemon.command(command)
        for number, (own, inside) in enumerate(environments(uuids)):
            words = [f"{name}={value}" for name, value in inside.items()]
            child = Child(
                [sys.executable, str(program), *words],
                output=directory / f"client-{number}.json",
                environment={**daemon.environment, **own},
            )
            clients.append((own, inside, child))
        for own, inside, child in [*clients]:
            try:
                eventually(partial(_devices, child), within=90)
            except RuntimeError as problem:
                print(f"{phase.name}: a client with {own}, {inside} inside, does not start: {problem}")
                clients.remove((own, inside, child))
        exporter = Exporter(daemon, "--client-min-age=0s")
        exporter.wait()
        pids = {child.pid for _, _, child in clients}
        shown = eventually(partial(_shown, exporter, pids), within=60)
        for own, inside, child in clients:
            for uuid, device in _devices(child).items():
                row = {"phase": phase.name, "own": own, "inside": inside, "gpu": uuid, "number": device["number"]}
                yield row | verdict(shown[child.pid, uuid], device, own)
    finally:
        for _, _, child in clients:
            child.end(within=3)
        if exporter is not None:
            exporter.end()
        daemon.end()


def _devices(child: Child) -> dict[str, dict[str, int]]:
    text = child.text()
    if child.exit_code is not None:
        raise RuntimeError(text)
    assert text.endswith("}\n"), text
    devices: dict[str, dict[str, int]] = json.loads(text.splitlines()[-1])
    return devices


def _shown(exporter: Exporter, pids: set[int]) -> Mapping[tuple[int, str], Mapping[str, Any]]:
    """Return what the status shows by client and GPU, when it has all clients and the limits of the server."""
    status = json.loads(exporter.status("--json"))
    shown = {(each["pid"], gpu["uuid"]): each for gpu in status["gpus"] for each in gpu["processes"]}
    assert pids <= {pid for pid, _ in shown}
    assert any("active_thread_ratio" in each for each in shown.values())
    return shown


def main() -> None:
    """Play all phases, and write the rows."""
    out = Path(os.environ["OUT"])
    uuids = [device.uuid for device in devices()]
    root = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
    root.chmod(0o755)
    rows: list[Row] = []
    for phase in phases(len(uuids)):
        rows.extend(play(phase, root / phase.name, uuids))
        (out / "limits.json").write_text(json.dumps(rows, indent=1) + "\n")
    counts = Counter((bool(row["inside"]), row["verdict_sms"], row["verdict_memory"]) for row in rows)
    for (inside, sms, memory), count in sorted(counts.items()):
        print(f"{count:4} set inside: {inside!s:5}  SMs: {sms:8}  memory: {memory}")
    wrong = [row for row in rows if "false" in (row["verdict_sms"], row["verdict_memory"])]
    wrong += [row for row in rows if not row["inside"] and row["verdict_memory"] == "not shown" and row not in wrong]
    for row in wrong:
        print(json.dumps(row))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
