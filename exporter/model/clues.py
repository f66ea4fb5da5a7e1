"""What a fault's culprit can be told by: gathered while it can be seen, and kept."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vanished:
    """A client whose contexts ended shortly before a fault, `seconds_before` it.

    `wait_status` is as from waitpid(2), None where nobody saw it; `terminated` says that an operator had the server end
    it.
    """

    pid: int
    seconds_before: float
    terminated: bool = False
    wait_status: int | None = None
    out_of_memory: bool = False

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None where none did, or nobody knows."""
        return None if self.wait_status is None else (self.wait_status & 0x7F) or None

    @property
    def exit_code(self) -> int | None:
        """What it exited with; None where it did not, or nobody knows."""
        return None if self.wait_status is None or self.wait_status & 0x7F else self.wait_status >> 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Whether a client had work in flight when a fault struck, as far as could be seen at the doors of its libcuda.

    `launched_before` is how many seconds before the fault was told of it had launched last; None where it never had.
    """

    pid: int
    in_flight: bool
    launched_before: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """All evidence of one fault but its Xids.

    `named` is whom the server's log named with `encountered a fatal GPU error`; `in_reset` are those whose worker was
    in reset when they left. `log_in_doubt` is whether lines of the log are missing, or contradict other sources: a
    tenant may have forged or removed some. `flights` has those of the affected of whom it is known whether they had
    work in flight.
    """

    named: int | None = None
    in_reset: tuple[int, ...] = ()
    vanished: tuple[Vanished, ...] = ()
    flights: tuple[Flight, ...] = ()
    log_in_doubt: bool = False
