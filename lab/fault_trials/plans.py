"""Plans of trials. The order is random but fixed, so an incomplete run has some of every kind."""

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from lab.contention.rank import environment
from lab.gpu.clients import LOADS
from lab.gpu.device import devices
from lab.gpu.program import SOURCE

from . import kinds
from .kinds import harmful, neighbour
from .trial import Part, Trial, failure_domain

SEED = 4
SECOND_AFTER = 0.7
RANKS_LEAD_SECONDS = 14.0
"""Until ranks have imported PyTorch, and NCCL has connected them."""


def exploratory() -> list[Trial]:
    """Return a few trials of every kind."""
    return _shuffled(
        *kinds.fatal_kernels("oob", "null", "trap"),
        *kinds.kills(20),
        *kinds.ends(4),
        *kinds.exits_before_a_fault(range(4)),
        *kinds.siblings((20, 60, 100, 150, 220, 300)),
        *kinds.bypassers(3),
        *kinds.crash_loops(2),
    )


def indications() -> list[Trial]:
    """Return trials for indications of the kind and the cause of a fault."""
    return _shuffled(
        *kinds.work_cut_short(("churn", "churn", "copy") * 5),
        *kinds.other_accesses(4),
        *kinds.surviving_causes(4),
        *kinds.order(),
        *kinds.exits_beside_a_kill(),
    )


def full() -> list[Trial]:
    """Return the trials for the published figures: each kind many times, and harmless events."""
    return _shuffled(
        *kinds.fatal_kernels("oob", "trap"),
        *list(kinds.fatal_kernels("null"))[::3],
        *kinds.other_accesses(3),
        *kinds.kills(9),
        *kinds.work_cut_short(("churn", "churn", "churn", "churn", "copy")),
        *kinds.ends(2),
        *kinds.exits_before_a_fault((0, 3), (100, 120, 145)),
        *kinds.exits_before_a_fault((0,), (30, 300)),
        *kinds.siblings((100, 125, 150)),
        *kinds.exits_beside_a_kill(),
        *kinds.surviving_causes(2),
        *kinds.bypassers(2),
        *kinds.ordinary_exits(2),
        *kinds.crash_loops(1),
    )


def several_gpus(gpus: int) -> list[Trial]:
    """Return twelve trials with clients on one, two and all GPUs of a daemon. The cause moves from GPU to GPU."""
    return _shuffled(*_shapes(gpus))


def second_faults() -> list[Trial]:
    """Return trials with a second fault on another GPU while the server is in FAULT."""
    return _shuffled(*_second_faults())


def ranks(gpus: int) -> list[Trial]:
    """Return trials with a job of NCCL, a rank on each GPU, beside a client of each GPU."""
    return [*_ranks(gpus)]


def _shapes(gpus: int) -> Iterator[Trial]:
    """Yield the trials; clients of one GPU are on each, and in some a client on two or on all joins their domains."""
    for number, (shape, kind) in enumerate(product(("apart", "two", "all"), ("oob", "trap", "kill", "jump"))):
        load, first = ("idle", "busy")[number // 3 % 2], (number + number // 4) % gpus
        places = [str((first + index) % gpus) for index in range(gpus)]
        joined = {"apart": places[0], "two": ",".join(places[:2]), "all": ",".join(places)}[shape]
        # A client of one GPU is the cause, or the one that joins GPUs.
        joins = (number + number // 4) % 2 == 1
        yield _trial(f"gpus_{number:02}_{shape}_{kind}_{load}", kind, load, places, joined, joins=joins)


def _trial(name: str, kind: str, load: str, places: Sequence[str], joined: str, *, joins: bool) -> Trial:
    cause, others = (joined, places) if joins else (places[0], [joined, *places[1:]])
    parts = (
        harmful(kind, devices=cause, **LOADS[load]),
        *(neighbour(index, load, devices=each) for index, each in enumerate(others)),
    )
    facts = {"load": load, "domain": failure_domain(parts, "cause")}
    return Trial(name=name, kind=kind, parts=parts, cause="cause", facts=facts)


def _ranks(gpus: int) -> Iterator[Trial]:
    causes = ("client", "first", "last")
    for number, (cause, kind) in enumerate(product(causes, ("oob", "kill"))):
        on = str(gpus - 1 if cause == "last" else 0)
        singles = [neighbour(index, "busy", devices=str(index)) for index in range(gpus)]
        job = [_rank(rank, gpus, f"/tmp/ranks-{os.getpid()}-{number}") for rank in range(gpus)]
        if cause == "client":
            singles[0] = harmful(kind, devices=on, **LOADS["busy"])
        else:
            options = {**job[int(on)].options, **({"fault": kind} if kind == "oob" else {})}
            faults, killed = (0.0, None) if kind == "oob" else (None, 0.0)
            job[int(on)] = replace(job[int(on)], name="cause", options=options, faults=faults, killed=killed)
        parts = (*job, *singles)
        yield Trial(
            name=f"ranks_{number:02}_{cause}_{kind}",
            kind=kind,
            parts=parts,
            cause="cause",
            facts={"load": "busy", "domain": failure_domain(parts, "cause")},
            lead=RANKS_LEAD_SECONDS,
        )


def _rank(rank: int, ranks: int, store: str) -> Part:
    return Part(
        name=f"rank{rank}",
        command=(sys.executable, "-m", "lab.contention.rank"),
        options={"devices": rank, "seconds": 600},
        environment={**environment(rank, ranks, store), "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
    )


def _second_faults() -> Iterator[Trial]:
    """Yield trials with a second fault on the other GPU while the server is in FAULT."""
    for number, (first, second) in enumerate((("oob", "oob"), ("trap", "oob"), ("oob", "kill"), ("kill", "trap")) * 2):
        load = ("busy", "idle")[number // 4]
        killed, faults = (SECOND_AFTER, None) if second == "kill" else (None, SECOND_AFTER)
        also = harmful(second, devices="1", **LOADS[load])
        also = replace(also, name="second", killed=killed, faults=faults)
        yield Trial(
            name=f"second_fault_{number:02}_{first}_{second}_{load}",
            kind=f"{first}, then {second}",
            parts=(
                harmful(first, devices="0", **LOADS[load]),
                neighbour(0, load, devices="0", hold=2.5),
                also,
                neighbour(1, load, devices="1"),
            ),
            cause="cause",
            also_culprits=("second",),
            facts={"load": load, "lingers": True},
        )


def core_dumps() -> list[Trial]:
    """Return the trials with GPU core dumps, which take about five minutes."""
    return _shuffled(*kinds.core_dumps(40))


PLANS: Mapping[str, Callable[[], list[Trial]]] = {
    "exploratory": exploratory,
    "signs": indications,
    "full": full,
    "several-gpus": lambda: several_gpus(len(devices())),
    "second-faults": second_faults,
    "ranks": lambda: ranks(len(devices())),
    "core-dumps": core_dumps,
}


def _shuffled(*trials: Trial) -> list[Trial]:
    return random.Random(SEED).sample(trials, len(trials))
