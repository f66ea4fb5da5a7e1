"""What the kernel keeps of each process, as it lies in memory; and what that says.

Of each of up to 16 streams it keeps which it is, since when it has been in flight, when something was last launched
there, how many kernels that were in this span, and the sum of their widths in SMs. Then, of the last burst in this
span, since when that is, how many kernels, their widths, and the sum of these in units of the gaps before them.
"""

import struct
from dataclasses import dataclass

from exporter.model.work import ProcessWork

FIELDS = (
    "first",
    "kernels",
    "graphs",
    "syncs",
    "records",
    "spans",
    "flight",
    "area",
    "widths",
    "sure_area",
    "sure_widths",
    "sure_gaps",
    "sure_heights",
    "sure_event_heights",
    "launched",
    "failed",
    "capturing",
    "captures",
    "captured",
    "captured_width",
)
AT = {name: 8 * place for place, name in enumerate(FIELDS)}
"""Where each number lies; all have 8 bytes."""

STREAMS = 16
_STREAM = struct.Struct("<9Q")
STREAM, SINCE, LAST, LAUNCHES, WIDTH, BURST_SINCE, BURST_LAUNCHES, BURST_WIDTH, BURST_GAPS = range(0, 72, 8)
"""Where each number of a stream lies, from its beginning."""

_HEAD = struct.Struct(f"<{len(FIELDS)}Q")
BYTES = _HEAD.size + STREAMS * _STREAM.size

FRACTION_BITS = 4
"""Widths are kept in 16ths of an SM where they are divided."""


def stream_at(index: int) -> int:
    """Where a stream begins."""
    return _HEAD.size + index * _STREAM.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A span that lasts still: since when, and the mean width of its kernels in SMs."""

    since: int
    width: float


def work_of(pid: int, value: bytes, now: int, watched_since: int) -> ProcessWork:
    """What is kept of a process, at a time. A span that began before the doors were watched is none."""
    head = dict(zip(FIELDS, _HEAD.unpack_from(value), strict=True))
    until = head["failed"] or now
    spans = [span for span in _open(value) if watched_since <= span.since < until]
    return ProcessWork(
        pid=pid,
        first_ns=head["first"],
        kernels=head["kernels"],
        graphs=head["graphs"],
        syncs=head["syncs"],
        records=head["records"],
        spans=head["spans"],
        flight_ns=head["flight"],
        area=head["area"],
        widths=head["widths"],
        sure_area=head["sure_area"],
        sure_widths=head["sure_widths"],
        sure_gaps=head["sure_gaps"],
        sure_heights=head["sure_heights"] >> FRACTION_BITS,
        sure_event_heights=head["sure_event_heights"] >> FRACTION_BITS,
        open_ns=sum(until - span.since for span in spans),
        open_area=int(sum((until - span.since) * span.width for span in spans)),
        open_since_ns=min((span.since for span in spans), default=0),
        launched_ns=head["launched"],
        failed_ns=head["failed"],
    )


def _open(value: bytes) -> list[Open]:
    streams = _STREAM.iter_unpack(value[_HEAD.size :])
    return [Open(since=since, width=width / max(launches, 1)) for _, since, _, launches, width, *_ in streams if since]
