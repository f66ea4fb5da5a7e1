"""Kinds of trials, each in several variants."""

import resource
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from lab.gpu.clients import LOADS

from .trial import Part, Trial

# Approximate time from an illegal access to the fault block in the server's log.
BLOCK_AFTER = 0.14
WELL = {"seconds": 60, "every_ms": 10}
LINGER_SECONDS = 1.5
CORE_DUMPS = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
    "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1",
    "CUDA_COREDUMP_FILE": "/tmp/fault_trials_core_%p",
}
DELAYS = (0, 5, 10, 15, 20, 30, 50, 80, 120, 150, 200, 300)


def fatal_kernels(*kinds: str) -> Iterator[Trial]:
    """Yield trials with a faulting kernel, by number of clients, their load, and order of arrival."""
    places = list(product((2, 3, 4, 8), ("first", "middle", "last")))
    for kind in kinds:
        for number, (count, place) in enumerate(places):
            load = ("idle", "busy", "full", "busy", "idle")[number % 5]
            lingers = number in (2, 4, 9)
            at = {"first": 0, "middle": count // 2, "last": count - 1}[place]
            parts = [neighbour(index, load, **({"hold": LINGER_SECONDS} if lingers else {})) for index in range(count)]
            parts[at] = harmful(kind, **LOADS[load])
            yield Trial(
                name=f"{kind}_{number:02}_{place}_of_{count}_{load}",
                kind=kind,
                parts=tuple(parts),
                cause="cause",
                latecomers=2 if lingers else 1 if number == 7 else 0,
                facts={"load": load, "place": place, "count": count, "lingers": lingers},
            )


def core_dumps(count: int) -> Iterator[Trial]:
    """Yield trials with GPU core dumps in the cause, its neighbours or both; every second cause exits at once."""
    for number in range(count):
        clients, enabled_in = 2 + number % 3, ("cause", "neighbours", "both")[number // 3 % 3]
        load = ("busy", "idle", "full")[number // 9 % 3]
        parts = [neighbour(index, load) for index in range(clients - 1)]
        cause = Part(
            name="cause",
            options={**WELL, **LOADS["idle"], "fault": "oob"},
            faults=0,
            leaves=0.02 if number % 2 else None,
            environment={} if enabled_in == "neighbours" else CORE_DUMPS,
        )
        parts = [each if enabled_in == "cause" else replace(each, environment=CORE_DUMPS) for each in parts]
        place = number % clients
        yield Trial(
            name=f"core-dump_{number:02}_{enabled_in}_of_{clients}_{load}",
            kind="core-dump",
            parts=(*parts[:place], cause, *parts[place:]),
            cause="cause",
            facts={"load": load, "place": place, "count": clients, "core_dumps": enabled_in},
        )


def kills(count: int) -> Iterator[Trial]:
    """Yield trials with SIGKILL during kernels of different lengths."""
    for number in range(count):
        load = ("busy", "idle", "full")[number % 3]
        kernel_ms = (5, 20, 100, 300, 2000)[number % 5]
        neighbours = [neighbour(index, load) for index in range(1 + number % 3)]
        cause = Part(name="cause", options={**WELL, "busy_ms": kernel_ms, "every_ms": 0}, killed=0)
        parts = [*neighbours[: number % 2], cause, *neighbours[number % 2 :]]
        yield Trial(
            name=f"kill_{number:02}_{kernel_ms}ms_{load}",
            kind="kill",
            parts=tuple(parts),
            cause="cause",
            facts={"load": load, "kernel_ms": kernel_ms, "count": len(parts)},
        )


def ends(count: int) -> Iterator[Trial]:
    """Yield trials with other ways to exit, to find out which of them affect others."""
    long = {**WELL, "busy_ms": 300, "every_ms": 0}
    for number in range(count):
        load = ("busy", "idle")[number % 2]
        causes = {
            "term-busy": Part(name="cause", options={**long, "on_term": "die"}, killed=0, by=signal.SIGTERM),
            "kill-idle": Part(name="cause", options={**WELL, **LOADS["idle"]}, killed=0),
            **{kind: harmful(kind) for kind in ("abort-busy", "segv-busy", "exit-busy", "_exit-busy", "assert")},
        }
        if number < 2:
            causes.update({kind: harmful(kind) for kind in ("abort", "misaligned")})
        for kind, cause in causes.items():
            neighbours = [neighbour(index, load) for index in range(2)]
            yield Trial(
                name=f"{kind}_{number:02}_{load}",
                kind=kind,
                parts=(neighbours[0], cause, neighbours[1]),
                cause="cause",
                facts={"load": load, "count": 3},
            )


def exits_before_a_fault(numbers: Iterable[int], delays: Iterable[int] = DELAYS) -> Iterator[Trial]:
    """Yield trials in which one client or three exit some milliseconds before the fault of another."""
    for number, milliseconds in product(numbers, delays):
        leavers, mib = ((1, 64), (1, 64), (1, 20480), (3, 64))[number % 4]
        leaves = BLOCK_AFTER - milliseconds / 1000
        options = {**WELL, **LOADS["idle" if number % 2 else "busy"], "mib": mib}
        yield Trial(
            name=f"exit_{milliseconds:03}ms_{number}",
            kind="exit-then-oob",
            parts=(
                neighbour(0, "busy"),
                *(Part(name=f"leaver{index}", options=options, leaves=leaves) for index in range(leavers)),
                harmful("oob"),
            ),
            cause="cause",
            facts={"planted_ms": milliseconds, "leavers": leavers, "mib": mib, "load": "busy"},
        )


def siblings(delays: Iterable[int]) -> Iterator[Trial]:
    """Yield trials in which an idle client is killed some milliseconds before the fault of another."""
    for milliseconds in delays:
        sibling = Part(name="sibling", options={**WELL, **LOADS["idle"]}, killed=BLOCK_AFTER - milliseconds / 1000)
        yield Trial(
            name=f"sibling_{milliseconds:03}ms",
            kind="killed-idle-then-oob",
            parts=(neighbour(0, "busy"), sibling, harmful("oob")),
            cause="cause",
            facts={"planted_ms": milliseconds, "load": "busy"},
        )


def bypassers(count: int) -> Iterator[Trial]:
    """Yield trials with a fault of a bypassing process."""
    for number in range(count):
        bypasser = Part(name="cause", options={**WELL, "fault": "oob"}, faults=0, bypasses=True)
        yield Trial(
            name=f"bypasser_{number}",
            kind="bypasser-oob",
            parts=(neighbour(0, "busy"), bypasser, neighbour(1, "busy")),
            cause="cause",
            facts={"load": "busy"},
        )


def crash_loops(count: int) -> Iterator[Trial]:
    """Yield trials with servers that cannot start, because they have too little address space."""
    for number in range(count):
        yield Trial(
            name=f"crash_loop_{number}",
            kind="crash-loop",
            parts=tuple(Part(name=f"asks{index}", options={"seconds": 1, "on_term": "die"}) for index in range(2)),
            limit=(resource.RLIMIT_AS, 1 << 28),
        )


def work_cut_short(works: Iterable[str]) -> Iterator[Trial]:
    """Yield trials with SIGKILL while a kernel uses memory, or during a copy."""
    for number, work in enumerate(works):
        load = ("busy", "idle")[number % 2]
        options = {**WELL, "mib": 512, "busy_ms": 300, "every_ms": 0, "work": work}
        cause = Part(name="cause", options=options, killed=0)
        yield Trial(
            name=f"kill_{work}_{number:02}_{load}",
            kind=f"kill-{work}",
            parts=(neighbour(0, load), cause, neighbour(1, load)),
            cause="cause",
            facts={"load": load, "count": 3},
        )


def other_accesses(count: int) -> Iterator[Trial]:
    """Yield trials with an illegal read, a wild jump, a misaligned write."""
    for kind, number in product(("oob-read", "jump", "misaligned"), range(count)):
        load = ("busy", "idle")[number % 2]
        parts = [neighbour(index, load) for index in range(3)]
        parts[number % 3] = harmful(kind, **LOADS[load])
        yield Trial(
            name=f"{kind}_at_{number % 3}_{number:02}_{load}",
            kind=kind,
            parts=tuple(parts),
            cause="cause",
            facts={"load": load, "place": number % 3, "count": 3},
        )


def surviving_causes(count: int) -> Iterator[Trial]:
    """Yield trials in which the cause does not exit first."""
    for kind, number in product(("trap", "oob"), range(count)):
        load = ("busy", "idle")[number % 2]
        cause = harmful(kind, **LOADS[load], hold=LINGER_SECONDS)
        yield Trial(
            name=f"{kind}_lingers_{number:02}_{load}",
            kind=kind,
            parts=(neighbour(0, load), cause, neighbour(1, load)),
            cause="cause",
            facts={"load": load, "place": 1, "count": 3, "lingers": True},
        )


def order() -> Iterator[Trial]:
    """Yield trials that show which client the log and the Xid name."""
    for number, (load, place) in enumerate(product(("idle", "full", "busy"), range(4))):
        parts = [neighbour(index, load) for index in range(4)]
        parts[place] = harmful("oob", **LOADS[load])
        yield Trial(
            name=f"oob_order_{number:02}_{place}_of_4_{load}",
            kind="oob",
            parts=tuple(parts),
            cause="cause",
            facts={"load": load, "place": place, "count": 4},
        )


def exits_beside_a_kill() -> Iterator[Trial]:
    """Yield trials in which one client exits normally while another is killed during a kernel."""
    for number in range(6):
        leaves = (-0.02, 0, 0.02, 0.05, -0.05, 0.01)[number]
        cause = Part(name="cause", options={**WELL, "busy_ms": 300, "every_ms": 0}, killed=0)
        leaver = Part(name="leaver", options={**WELL, **LOADS["busy"]}, leaves=leaves)
        yield Trial(
            name=f"kill_beside_exit_{number:02}",
            kind="kill-beside-exit",
            parts=(neighbour(0, "busy"), *((cause, leaver) if number % 2 else (leaver, cause))),
            cause="cause",
            facts={"load": "busy", "leaves": leaves, "count": 3},
        )


def neighbour(index: int, load: str, **options: object) -> Part:
    """Return a client that causes no fault."""
    return Part(name=f"neighbour{index}", options={**WELL, **LOADS[load], **options})


def ordinary_exits(count: int) -> Iterator[Trial]:
    """Yield trials in which one of three busy clients exits normally."""
    for number in range(count):
        leaver = Part(name="leaver", options={**WELL, **LOADS["busy"], "mib": 64}, leaves=0)
        yield Trial(
            name=f"ordinary_exit_{number}",
            kind="exit",
            parts=(neighbour(0, "busy"), leaver, neighbour(1, "busy")),
            facts={"load": "busy"},
        )


def harmful(kind: str, **options: object) -> Part:
    """Return the client that causes the fault."""
    if kind == "kill":
        return Part(name="cause", options={**WELL, **options, "busy_ms": 300, "every_ms": 0}, killed=0)
    return Part(name="cause", options={**WELL, **options, "fault": kind}, faults=0)
