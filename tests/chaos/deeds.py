"""What chaos itself has done, so that it is blamed on nobody else."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deed:
    """One deed, and to whom. Its time is in seconds since the epoch."""

    at: float
    what: str
    pid: int = 0


class Deeds:
    """All of them, in order. Each is written down before it is done."""

    def __init__(self) -> None:
        self.all: list[Deed] = []

    def add(self, what: str, pid: int = 0) -> Deed:
        """Write one down."""
        self.all.append(Deed(time.time(), what, pid))
        return self.all[-1]

    def done_to(self, pid: int, *whats: str) -> bool:
        """Whether one of these was done to a process."""
        return any(each.pid == pid and each.what in whats for each in self.all)

    def last(self, *whats: str) -> float:
        """When one of these was done last; 0: never."""
        return max((each.at for each in self.all if each.what in whats), default=0.0)
