"""Families about Xids, the driver's own errors.

A number that was never seen has a 0 as long as somebody would tell of it; where neither the kernel's log nor NVML's
events can be read, there is no 0. What was counted stays, whoever has gone blind, and whichever GPU has gone.
"""

from exporter.core.xids import KERNEL, NVML_EVENTS, WELL_KNOWN
from exporter.metrics.family import Samples, counter, gauge
from exporter.model.node import Node
from exporter.view import View


def _errors(view: View) -> Samples:
    zeros = ((gpu, str(number)) for gpu in view.node.gpus for number in WELL_KNOWN)
    counts = dict.fromkeys(zeros, 0) if _heard(view.node) else {}
    counts.update({key: count.total for key, count in view.node.xids.counts.items()})
    return counts.items()


def _heard(node: Node) -> bool:
    """Whether somebody tells of Xids. A recording need not have its sources in it: then one that told shows it."""
    sources = [node.sources[name] for name in (KERNEL, NVML_EVENTS) if name in node.sources]
    if not sources:
        return bool(node.xids.counts)
    return any(source.last.problem is None for source in sources)


def _last(view: View) -> Samples:
    return ((key, count.last_at + view.clock_step) for key, count in view.node.xids.counts.items())


FAMILIES = (
    counter(
        "cuda_mps_xid_errors_total",
        ("gpu", "xid"),
        "Xids that the kernel's log or NVML told of, each once; gpu is its PCI address where its UUID is not known.",
        _errors,
    ),
    gauge(
        "cuda_mps_xid_last_timestamp_seconds",
        ("gpu", "xid"),
        "When the Xid was last told of, in seconds since the epoch.",
        _last,
    ),
)
