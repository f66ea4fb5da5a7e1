"""How sure each sign of a culprit makes: measured, but for one, in trials in which it was known who did it.

NVIDIA H200, driver 580.159.04; the trials and their counts are in docs/faults.md. A sign that was right in all of its
trials is not thereby certain: it makes as sure as the lower end of the 95 % interval of Wilson's says.
"""

from dataclasses import dataclass
from math import sqrt

Z = 1.959964
"""The normal distribution's 97.5 % quantile."""


@dataclass(frozen=True, slots=True)
class Measured:
    """In how many trials with this sign it pointed at the culprit."""

    hits: int
    trials: int

    @property
    def confidence(self) -> float:
        """The lower end of Wilson's 95 % interval of the rate."""
        rate, squared = self.hits / self.trials, Z * Z / self.trials
        spread = Z * sqrt(rate * (1 - rate) / self.trials + squared / (4 * self.trials))
        return (rate + squared / 2 - spread) / (1 + squared)


IN_RESET = Measured(41, 41)
"""Of a fault that is no memory fault: the client whose worker was in reset when it left had trapped."""

CUT_OFF = Measured(85, 85)
"""The only client that left in time before a kernel's instructions could not be fetched: the kernel was its own."""

CUT_OFF_SECONDS = (0.085, 0.165)
"""So long before the fault the contexts end of a client that goes with a kernel in flight: 95 to 154 ms in 85 trials,
whatever ended it, an ordinary exit included. Whoever leaves earlier or later did not do it that way."""

SIGNALLED = 0.65
"""Of several that left in that time, the one that was ended by a signal: right in 2 of 2 trials, which is not much."""

KILLED_THEN, GONE_THEN, EXITED_THEN = 0.7, 0.6, 0.5
"""Of the only client that left in that time, where nobody tells what kind of access failed: ended by a signal, gone
nobody knows how, exited with a code. Each may have left an idle GPU, by chance: planted, that looks the same."""

AMONG_HIT = Measured(135, 135)
"""Of a memory fault, the client that caused it was among those hit. They share this; less than all, since the log may
lack some of them, or the client may have left unseen."""

ALONE = 0.75
"""Of the only client that was hit: it may be the victim of one that was not seen to leave."""

IDLE_KEEPS = 0.1
"""Of a client that was seen to have nothing in flight when a fault struck: so much of the blame that it would have
without that. Inferred, and not yet measured: there may be doors that are not watched."""

SOLE_IN_FLIGHT = 0.75
"""The most of the only client that may have had work in flight. Inferred, and not yet measured: it is no surer than
of the only client that was hit, for the same reason."""

LOG_IN_DOUBT = 0.45
"""The most of any client while the log may be forged: the program names a client as the likely cause from 0.5 on."""
