"""How many SMs each process may use, where a thread percentage keeps it from using all."""

from collections.abc import Mapping

from exporter.sources.proc import Proc

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

SMS_TOGETHER = 2
"""SMs are given out in such groups: 25 % of 132 are 32 (measured, H200)."""


def sms_of(percentage: float, sms: int) -> int | None:
    """How many of so many SMs that is; None where it is all of them, or no percentage."""
    if not 0 < percentage < 100:
        return None
    return max(SMS_TOGETHER, int(sms * percentage / 100) // SMS_TOGETHER * SMS_TOGETHER)


class Narrowed:
    """Remembers the percentage that each process has set for itself, which cannot be more than its server's."""

    def __init__(self, proc: Proc, sms: int) -> None:
        self._proc = proc
        self._sms = sms
        self._own: dict[int, tuple[int, float]] = {}

    def look(self, percentages: Mapping[int, float]) -> Mapping[int, int]:
        """The processes that may not use all SMs, by PID, of those whose servers allow them these percentages."""
        self._own = {pid: own for pid in percentages if (own := self._own_of(pid)) is not None}
        allowed = {pid: min(percentage, self._own.get(pid, (0, 100.0))[1]) for pid, percentage in percentages.items()}
        narrow = {pid: sms_of(percentage, self._sms) for pid, percentage in allowed.items()}
        return {pid: sms for pid, sms in narrow.items() if sms is not None}

    def _own_of(self, pid: int) -> tuple[int, float] | None:
        """When it started, and what it allows itself. It is read once: what it sets later is not seen, nor heeded."""
        start = self._proc.start_ticks(pid)
        if start is None:
            return None
        known = self._own.get(pid)
        if known is not None and known[0] == start:
            return known
        return start, _percentage((self._proc.variables(pid, (PERCENTAGE,)) or {}).get(PERCENTAGE))


def _percentage(text: str | None) -> float:
    try:
        value = float(text or "100")
    except ValueError:
        return 100.0
    return value if 0 < value <= 100 else 100.0
