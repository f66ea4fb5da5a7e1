"""Which books may be shown: a counter that falls once the exporter was killed would be counted anew, and so twice.

So those are shown that the file has; where there never was a file, those in memory, which begin at 0 each time.
"""

from exporter.model.accounting import UsageTotals

Numbered = tuple[int, UsageTotals]


class Books:
    """The books as one thread fills them, another writes them, and the first shows them."""

    def __init__(self) -> None:
        self._latest: Numbered = (0, UsageTotals())
        self._shown: Numbered = (0, UsageTotals())
        self._kept: Numbered | None = None

    def begin(self, ledger: UsageTotals) -> None:
        """The file was read, in time: this is what it has."""
        self._latest = self._kept = (0, ledger)

    def fill(self, ledger: UsageTotals) -> None:
        """These are the latest."""
        number, known = self._latest
        if ledger.gpus is not known.gpus and (ledger.gpus or known.gpus):
            self._latest = (number + 1, ledger)

    @property
    def latest(self) -> Numbered:
        """What is to be written; numbered, so that it is known what was."""
        return self._latest

    @property
    def stand(self) -> bool:
        """Whether what is shown grows no more while nothing can be written."""
        return self._kept is not None

    @property
    def filled(self) -> bool:
        """Whether anything came to what the file had."""
        return self._latest[0] > 0

    @property
    def whole(self) -> bool:
        """Whether all that there is was written."""
        return not self.filled or (self._kept is not None and self._kept[0] == self._latest[0])

    def keep(self, written: Numbered) -> None:
        """These are on the disk, whatever happens."""
        self._kept = written

    def shown(self) -> UsageTotals:
        """Those that may be shown now. Once any were, none are that have less."""
        kept = self._kept
        if kept is None:
            self._shown = self._latest
        elif kept[0] >= self._shown[0]:
            self._shown = kept
        return self._shown[1]
