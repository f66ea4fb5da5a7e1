"""Questions to a control daemon, and which of them is next."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A command that asks, since when its answer is known (None: not at all), and for how many seconds that will do."""

    command: str
    known_at: float | None
    period: float

    @property
    def deadline(self) -> float:
        """When it must have been asked again."""
        return float("-inf") if self.known_at is None else self.known_at + self.period


def overdue(questions: Iterable[Question], now: float) -> tuple[str, ...]:
    """What must be asked now."""
    return tuple(question.command for question in questions if question.deadline <= now)


def pressing(questions: Sequence[Question], now: float, turn: float) -> str | None:
    """What must be asked in this turn, so that none comes too late where one is asked every `turn` seconds."""
    in_line = sorted(questions, key=lambda question: question.deadline)
    late = (question.deadline < now + place * turn for place, question in enumerate(in_line, start=1))
    return in_line[0].command if any(late) else None
