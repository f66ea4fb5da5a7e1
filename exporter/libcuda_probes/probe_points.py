"""The probe points: functions of libcuda that launch work, record it into events or graphs, or wait for it."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a function does. Each kind has a BPF program of this name in probes.bpf.c."""

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


LAUNCHES = frozenset({Kind.LAUNCH, Kind.LAUNCH_EX, Kind.GRAPH})

WAITS = frozenset({Kind.WAIT_EVERY, Kind.WAIT_STREAM, Kind.WAIT_EVENT, Kind.WAIT_DEFAULT})
"""Synchronisations. Their return is probed too, by the program `RETURN`."""

RETURN = "return"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePoint:
    """A function of libcuda, and the BPF program that runs when it is called."""

    name: str
    kind: Kind
    program: str


def _points(kind: Kind, *names: str) -> tuple[ProbePoint, ...]:
    return tuple(ProbePoint(name=name, kind=kind, program=kind) for name in names)


def _with_variants(kind: Kind, *names: str, suffix: str = "_ptsz") -> tuple[ProbePoint, ...]:
    """Add the variant of each function for which the default stream is the thread's own."""
    variants = (ProbePoint(name=name + suffix, kind=kind, program=f"{kind}_ptsz") for name in names)
    return *_points(kind, *names), *variants


PROBE_POINTS = (
    *_with_variants(Kind.LAUNCH, "cuLaunchKernel", "cuLaunchCooperativeKernel"),
    *_with_variants(Kind.LAUNCH_EX, "cuLaunchKernelEx"),
    *_with_variants(Kind.GRAPH, "cuGraphLaunch"),
    *_points(
        Kind.BEGIN_CAPTURE,
        *("cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph"),
        *("cuStreamBeginCapture_ptsz", "cuStreamBeginCapture_v2_ptsz", "cuStreamBeginCaptureToGraph_ptsz"),
    ),
    *_points(Kind.END_CAPTURE, "cuStreamEndCapture", "cuStreamEndCapture_ptsz"),
    *_with_variants(Kind.RECORD, "cuEventRecord", "cuEventRecordWithFlags"),
    *_points(
        Kind.WAIT_EVERY,
        *("cuCtxSynchronize", "cuCtxSynchronize_v2", "cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2"),
    ),
    *_with_variants(Kind.WAIT_STREAM, "cuStreamSynchronize"),
    *_points(Kind.WAIT_STREAM, "cuStreamDestroy_v2"),
    *_points(Kind.WAIT_EVENT, "cuEventSynchronize"),
    *_with_variants(Kind.WAIT_DEFAULT, "cuMemcpyDtoH_v2", "cuMemcpy", suffix="_ptds"),
)
"""A copy from the device that waits is a synchronisation with the default stream. The destruction of a stream ends its
span, because nothing later reports on its work. Queries have no probe: a client can query a million times a second,
and each call would have its cost."""

PROGRAMS = tuple(dict.fromkeys([*(point.program for point in PROBE_POINTS), RETURN]))
