"""Which question is next, so that all are in time though one is asked at a time."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.state.transition import Question, overdue, pressing

TURN = 30.0


def questions(*known_at: float | None, period: float = 300.0) -> tuple[Question, ...]:
    return tuple(Question(command=str(number), known_at=at, period=period) for number, at in enumerate(known_at))


def test_what_is_not_known_is_overdue() -> None:
    assert overdue(questions(None, 0.0), 100.0) == ("0",)


def test_so_is_what_was_known_too_long_ago() -> None:
    assert overdue(questions(0.0, 1.0), 300.0) == ("0",)


def test_a_lone_question_waits_for_its_last_turn() -> None:
    assert pressing(questions(0.0), 240.0, TURN) is None
    assert pressing(questions(0.0), 271.0, TURN) == "0"


def test_two_that_are_due_together_take_two_turns() -> None:
    """The first comes early, so that the second is not late."""
    assert pressing(questions(0.0, 0.0), 240.0, TURN) is None
    assert pressing(questions(0.0, 0.0), 241.0, TURN) == "0"


def test_nothing_is_pressing_where_there_is_nothing_to_ask() -> None:
    assert pressing((), 0.0, TURN) is None


def asked_in_turn(periods: Sequence[float], turns: int) -> dict[str, list[float]]:
    """When each was asked, where in each turn at most one is, all known at first."""
    known = dict.fromkeys(map(str, range(len(periods))), 0.0)
    asked: dict[str, list[float]] = {command: [0.0] for command in known}
    for turn in range(1, turns):
        now = turn * TURN
        present = [
            Question(command=command, known_at=at, period=period)
            for (command, at), period in zip(known.items(), periods, strict=True)
        ]
        chosen = pressing(present, now, TURN)
        if chosen is not None:
            known[chosen] = now
            asked[chosen].append(now)
    return asked


@given(st.lists(st.integers(10, 40), min_size=1, max_size=6))
@settings(max_examples=60)
def test_none_is_late_by_more_than_a_turn_and_none_comes_much_too_early(turns_each: list[int]) -> None:
    """As many as there are could be due at once."""
    periods = [turns * TURN for turns in turns_each]
    for period, times in zip(periods, asked_in_turn(periods, 400).values(), strict=True):
        waited = [later - earlier for earlier, later in pairwise(times)]
        assert all(period - len(periods) * TURN <= each <= period + TURN for each in waited)
