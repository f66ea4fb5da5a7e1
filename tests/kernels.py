"""Nodes with clients that run kernels."""

from dataclasses import replace
from typing import Any

from exporter.model.kernels import ClientKernels, KernelName, KernelReading, KernelUse
from exporter.model.node import Node
from tests.builders import reduced

BOOT_NS = 10**17
"""The probes saw the first call of each client then, after all processes started."""


def use(short: str | None, ratio: float = 0.5, *, raw: str = "", nodes: tuple[str, ...] = ()) -> KernelUse:
    """Return a kernel that runs; None: its name is unknown. With `nodes`, a graph."""
    name = None if short is None else KernelName(raw=raw or f"raw_{short}", short=short)
    return KernelUse(
        name=name,
        nodes=tuple(KernelName(raw=f"raw_{node}", short=node) for node in nodes),
        is_graph=bool(nodes),
        launches_per_second=1200.0,
        flight_ratio=ratio,
        width=64,
    )


def client(pid: int, *most: KernelUse, **known: Any) -> ClientKernels:
    """Return what a client runs."""
    return ClientKernels(pid=pid, most=most, **{"first_ns": BOOT_NS, "streams": 2, **known})


def with_kernels(start: Node, *clients: ClientKernels, age: float = 0.0) -> Node:
    """Return the node with a reading of the kernels that is `age` seconds old."""
    reading = KernelReading(at=start.at - age, boot_ns=BOOT_NS + 10**9, clients=clients)
    return replace(reduced(reading, start=start).node, at=start.at)
