"""The doors: the functions of libcuda by which work is launched, recorded into graphs, and waited for."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a door is for."""

    LAUNCH = "launch"
    LAUNCH_EX = "launch_ex"
    GRAPH = "graph"
    BEGIN_CAPTURE = "begin_capture"
    END_CAPTURE = "end_capture"
    RECORD = "record"
    WAIT_EVERY = "wait_every"
    WAIT_STREAM = "wait_stream"
    WAIT_EVENT = "wait_event"
    WAIT_DEFAULT = "wait_default"
    RETURN = "return"


WAITS = frozenset({Kind.WAIT_EVERY, Kind.WAIT_STREAM, Kind.WAIT_EVENT, Kind.WAIT_DEFAULT})
"""Doors whose return matters too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A function of libcuda. To one `per_thread`, the default stream is the thread's own."""

    name: str
    kind: Kind
    per_thread: bool = False


def _twins(kind: Kind, *names: str, suffix: str = "_ptsz") -> tuple[Door, ...]:
    return tuple(
        door
        for name in names
        for door in (Door(name=name, kind=kind), Door(name=name + suffix, kind=kind, per_thread=True))
    )


DOORS = (
    *_twins(Kind.LAUNCH, "cuLaunchKernel", "cuLaunchCooperativeKernel"),
    *_twins(Kind.LAUNCH_EX, "cuLaunchKernelEx"),
    *_twins(Kind.GRAPH, "cuGraphLaunch"),
    *_twins(Kind.BEGIN_CAPTURE, "cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph"),
    *_twins(Kind.END_CAPTURE, "cuStreamEndCapture"),
    *_twins(Kind.RECORD, "cuEventRecord", "cuEventRecordWithFlags"),
    Door(name="cuCtxSynchronize", kind=Kind.WAIT_EVERY),
    Door(name="cuCtxSynchronize_v2", kind=Kind.WAIT_EVERY),
    Door(name="cuCtxDestroy_v2", kind=Kind.WAIT_EVERY),
    Door(name="cuDevicePrimaryCtxReset_v2", kind=Kind.WAIT_EVERY),
    *_twins(Kind.WAIT_STREAM, "cuStreamSynchronize"),
    Door(name="cuStreamDestroy_v2", kind=Kind.WAIT_STREAM),
    Door(name="cuEventSynchronize", kind=Kind.WAIT_EVENT),
    *_twins(Kind.WAIT_DEFAULT, "cuMemcpyDtoH_v2", "cuMemcpy", suffix="_ptds"),
)
"""Copies from the device that wait are synchronisations with the default stream; a stream that is destroyed has nothing
in flight any more, as far as anybody will ever know. Queries are not here: a client that asks a million times a second
whether something is done would pay for every answer."""
