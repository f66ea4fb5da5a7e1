"""Plans of trials. The order is random but fixed, so an incomplete run has some of every kind."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from lab.gpu.clients import LOADS

from . import kinds
from .kinds import harmful, neighbour
from .trial import Trial

SEED = 4
SECOND_AFTER = 0.7


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


def two_gpus() -> list[Trial]:
    """Return trials with a client on two GPUs, and with two faults at once."""
    again = (replace(trial, name=f"{trial.name}_again") for trial in _shapes() if trial.kind == "kill")
    return _shuffled(*_shapes(), *again, *_second_faults())


def _shapes() -> Iterator[Trial]:
    shapes = {"bridged": ("0", "0,1", "1"), "apart": ("0", "0", "1", "1"), "both": ("0,1", "0", "1")}
    for (shape, gpus), kind, load in product(shapes.items(), ("oob", "trap", "kill"), ("idle", "busy")):
        yield Trial(
            name=f"two_gpus_{shape}_{kind}_{load}",
            kind=kind,
            parts=tuple(
                harmful(kind, devices=devices, **LOADS[load]) if index == 0 else neighbour(index, load, devices=devices)
                for index, devices in enumerate(gpus)
            ),
            cause="cause",
            facts={"shape": shape, "load": load},
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


PLANS = {
    "exploratory": exploratory,
    "signs": indications,
    "full": full,
    "two-gpus": two_gpus,
    "core-dumps": core_dumps,
}


def _shuffled(*trials: Trial) -> list[Trial]:
    return random.Random(SEED).sample(trials, len(trials))
