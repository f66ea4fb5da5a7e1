"""The mixes and their clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field

CAP = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@dataclass(frozen=True, slots=True)
class Part:
    """A client: options of a program, and what happens to it some seconds after all have started."""

    name: str
    options: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    comes: float | None = None
    changes: float | None = None
    leaves: float | None = None


@dataclass(frozen=True, slots=True)
class Mix:
    """Clients that share the GPU. They start one after another."""

    name: str
    parts: tuple[Part, ...]
    apart: float = 2.0


def known(
    name: str,
    *,
    cap: int | None = None,
    comes: float | None = None,
    changes: float | None = None,
    leaves: float | None = None,
    **options: object,
) -> Part:
    """Return a client that counts its SM time. Options have underscores for hyphens; a flag has the value True."""
    environment = {} if cap is None else {CAP: str(cap)}
    words = {f"--{key.replace('_', '-')}": "" if value is True else str(value) for key, value in options.items()}
    return Part(name, words, environment=environment, comes=comes, changes=changes, leaves=leaves)


FULL = (
    known("takes-all", blocks=132, us=800, shared_kib=120),
    known("takes-half", blocks=66, us=600, shared_kib=120),
    known("asks-for-double", blocks=264, us=300, every_us=1500, shared_kib=120),
    known("asks-little", blocks=16, us=200, every_us=1000, shared_kib=120),
)

MIXES = (
    Mix(
        "wide-and-narrow",
        (
            known("wide-steady", blocks=66, us=400, every_us=1000),
            known("narrow-steady", blocks=8, us=1500, every_us=2000),
            known("wide-bursty", blocks=48, us=500, burst_ms=300, rest_ms=700),
            known("narrow-bursty", blocks=4, us=200, batch=4, burst_ms=1200, rest_ms=1300),
            known("quarter", blocks=132, us=400, every_us=4000, cap=25),
            known("half", blocks=132, us=600, batch=2, every_us=6000, cap=50),
        ),
    ),
    Mix(
        "batches",
        (
            known("one-of-20us", blocks=32, us=20, batch=1, pause_us=300),
            known("ten-of-20us", blocks=32, us=20, batch=10, pause_us=500),
            known("fifty-of-20us", blocks=16, us=20, batch=50, pause_us=1000),
            known("ten-of-5us", blocks=24, us=5, batch=10, pause_us=300),
            known("fifty-of-2us", blocks=16, us=2, batch=50, pause_us=500),
        ),
    ),
    Mix("full", FULL),
    Mix("full-at-once", FULL, apart=0.0),
    Mix(
        "streams",
        (
            known("four-streams", blocks=12, us=300, batch=8, streams=4, pause_us=300),
            known("two-threads", blocks=10, us=250, batch=2, threads=2, sync="stream", pause_us=400),
            known("sparse-never", blocks=24, us=50, every_us=1000, sync="never"),
            known("full-never", blocks=8, us=120, sync="never"),
            known("events", blocks=16, us=200, batch=3, sync="event", pause_us=500),
            known("queries", blocks=14, us=300, batch=2, sync="query", pause_us=400),
            known("graphs", blocks=10, us=30, batch=20, graph=True, sync="stream", pause_us=500),
        ),
    ),
    Mix(
        "twelve",
        (
            known("a-wide", blocks=60, us=200, every_us=2500),
            known("b-narrow", blocks=2, us=2000, every_us=2500),
            known("c-bursty", blocks=24, us=300, burst_ms=500, rest_ms=1500),
            known("d-batches", blocks=12, us=40, batch=20, pause_us=2000),
            known("e-tiny", blocks=16, us=5, batch=5, every_us=500),
            known("f-events", blocks=20, us=150, sync="event", every_us=1500),
            known("g-streams", blocks=6, us=400, batch=4, streams=4, pause_us=2000),
            known("h-graphs", blocks=16, us=20, batch=10, graph=True, sync="stream", every_us=2000),
            known("i-capped", blocks=66, us=200, every_us=3000, cap=25),
            known("j-never", blocks=8, us=100, every_us=1000, sync="never"),
            known("k-seldom", blocks=40, us=3000, every_us=100000),
            known("l-idle", blocks=1, us=1, every_us=1000000),
        ),
    ),
    Mix(
        "changing",
        (
            known("steady", blocks=40, us=400, every_us=1500),
            known("changes", blocks=32, us=200, every_us=1000, then_us=1500, then_every_us=6000, changes=30),
            known("leaves", blocks=24, us=300, every_us=1200, leaves=30),
            known("comes", blocks=20, us=600, every_us=2000, comes=30),
        ),
    ),
)
