"""Readings of NVML that cannot be true. They are discarded and counted before they become metrics or usage.

Drivers return such values now and then, for example 2^64 - 1 for an energy counter.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from exporter.model.gpu import Gpu, MonotonicCounter
from exporter.model.launches import GpuUse
from exporter.model.observation import GpuProcess, GpuReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace

ENERGY = "energy_millijoules"

MOST_WATTS = 10_000
"""More than any GPU takes: 1,400 W in 2026. A limit that is too low would lose the energy of a new GPU."""

LIMITS: Mapping[str, float] = {
    "gpu_percent": 100,
    "memory_percent": 100,
    "power_milliwatts": MOST_WATTS * 1e3,
    ENERGY: MOST_WATTS * 1e3 * 20 * 365 * 86400,  # 20 years of that power
    "memory_total_bytes": 1 << 46,  # 64 TiB
    "sm_utilization": 1.1,  # GPM rounds
    "dram_bandwidth": 1.1,
    "gpm_seconds": 86400,
}
"""The largest value of each field of a reading. The least is 0 for all."""

SLACK_SECONDS = 10.0
"""How much longer than the time between two readings an energy counter may have counted: it is updated late."""


def checked(before: Gpu | None, reading: GpuReading) -> GpuReading:
    """Return a reading without the values that cannot be true. Their problems are in `failed`."""
    wrong = dict(_wrong(before, reading))
    if wrong:
        values: dict[str, Any] = dict.fromkeys(wrong)
        reading = replace(reading, failed={**reading.failed, **wrong}, **values)
    total = reading.memory_total_bytes
    return replace(
        reading,
        compute_processes=_with_possible_memory(reading.compute_processes, total),
        mps_processes=_with_possible_memory(reading.mps_processes, total),
    )


def is_possible(use: GpuUse) -> bool:
    """Return whether a GPU can have been used so much."""
    return all(
        value is None or 0 <= value <= LIMITS[name]
        for name, value in (("sm_utilization", use.sm_utilization), ("dram_bandwidth", use.dram_bandwidth))
    )


def is_jump(known: MonotonicCounter, value: int, at: float) -> bool:
    """Return whether an energy counter cannot have counted so much since it was last read, or since a reset."""
    counted = value - known.last if value >= known.last else value
    return counted > MOST_WATTS * 1e3 * (max(0.0, at - known.at) + SLACK_SECONDS)


def _wrong(before: Gpu | None, reading: GpuReading) -> Iterator[tuple[str, Reason]]:
    for name, most in LIMITS.items():
        value = getattr(reading, name)
        if value is not None and not 0 <= value <= most:
            yield name, _problem(name, value)
    used, total, energy = reading.memory_used_bytes, reading.memory_total_bytes, reading.energy_millijoules
    if used is not None and (used < 0 or (total and used > total)):
        yield "memory_used_bytes", _problem("memory_used_bytes", used)
    known = None if before is None else before.energy
    if before is None or known is None or energy is None or not 0 <= energy <= LIMITS[ENERGY]:
        return
    # Two readings in sequence that agree are right, and the one before them was wrong.
    rejected = before.rejected_energy
    agrees = rejected is not None and energy >= rejected.last and not is_jump(rejected, energy, reading.at)
    if is_jump(known, energy, reading.at) and not agrees:
        yield ENERGY, _problem(ENERGY, energy)


def _problem(name: str, value: Any) -> Reason:
    return Reason(ReasonCode.IMPLAUSIBLE, subject=name, detail=str(value))


def _with_possible_memory(processes: tuple[GpuProcess, ...] | None, total: int | None) -> tuple[GpuProcess, ...] | None:
    """Return the processes. One with more memory than the GPU has an unknown amount."""
    if not processes or not total or all((each.used_bytes or 0) <= total for each in processes):
        return processes
    return tuple(replace(each, used_bytes=None) if (each.used_bytes or 0) > total else each for each in processes)
