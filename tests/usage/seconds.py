"""Builders of nodes and of one second's observations, and readers of the result."""

from collections.abc import Iterable, Mapping
from functools import partial

from exporter.model.identity import Workload
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.sharing import GpuUse
from exporter.model.usage import Split
from exporter.reducer import reduce
from tests.builders import AT, CLIENT, GPU, at_work, gpu_reading, process, reduced
from tests.works import boot_ns

NEXT, BESIDE = CLIENT + 1, 801
TICKS = 100
BEGAN = TICKS * 10_000_000
MS = 1_000_000


def done(pid: int, milliseconds: float, *, width: int = 33, first_ns: int = BEGAN + 1, **known: int) -> ProcessWork:
    """Return this much work in flight until now: kernels of 100 us, each followed by a synchronization."""
    area, widths = round(milliseconds * MS * width), round(milliseconds * 10 * width)
    sure = {"sure_area": area, "sure_widths": widths, "sure_heights": widths}
    counts = {"kernels": widths // width, "area": area, "widths": widths, **sure, **known}
    return ProcessWork(pid=pid, first_ns=first_ns, **counts)


def second(
    at: float,
    *works: ProcessWork,
    sm: float = 0.26,
    watched: Iterable[int] = (CLIENT, NEXT),
    gpus: Iterable[str] = (GPU,),
    bandwidth: int = 0,
) -> tuple[Observation, ...]:
    """Return the observations at the end of a second: launches, and the use of each GPU."""
    pids = tuple(watched)
    work = WorkReading(
        at=at, boot_ns=boot_ns(at), seconds=1.0, sms=132, bandwidth=bandwidth, processes=works, watched=pids
    )
    return work, *(GpuUse(at=at + 0.1, gpu=gpu, seconds=1.0, sm_utilization=sm) for gpu in gpus)


busy = partial(second, sm=0.5)


def present(*pids: int, **reading: object) -> Node:
    """Return a node with these clients, each of its own user."""
    known = (process(pid, ticks=TICKS, user=f"user-{pid}") for pid in (*pids, BESIDE))
    return reduced(*at_work(*pids), *known, gpu_reading(pids, **reading)).node


def after(node: Node, *seen: Observation) -> Node:
    """Reduce the observations."""
    for each in seen:
        node, _ = reduce(node, each)
    return node


def last(node: Node, gpu: str = GPU) -> Mapping[int, float]:
    """Return the shares of the last window, in percent of all SMs."""
    shares = node.attribution[gpu].windows[-1].shares
    return {pid: round(100 * share.sm) for pid, share in shares.items()}


def split(node: Node, gpu: str = GPU) -> Split:
    """Return the attribution of the last minute."""
    return node.splits[gpu]


def posted(node: Node, gpu: str = GPU) -> Mapping[str, int]:
    """Return the milliseconds of SM time of each account on a GPU."""
    sums: dict[str, int] = {}
    for (account, _), used in node.usage_totals.gpus[gpu].by_account.items():
        name = account.name if isinstance(account, Workload) else account.value
        sums[name] = sums.get(name, 0) + used.sm_us // 1000
    return sums


BOTH = (
    *second(AT + 1, done(CLIENT, 0), done(NEXT, 0)),
    *second(AT + 2, done(CLIENT, 900), done(NEXT, 300)),
)
