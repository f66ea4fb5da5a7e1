"""The order of control queries: none is late, although only one is sent in each turn."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.state.poll_schedule import Query, most_urgent

TURN = 30.0


def queries(*known_at: float | None, period: float = 300.0) -> tuple[Query, ...]:
    return tuple(Query(command=str(number), known_at=at, period=period) for number, at in enumerate(known_at))


def test_a_query_without_an_answer_is_due_at_once() -> None:
    assert [query.deadline for query in queries(None, 0.0)] == [float("-inf"), 300.0]
    assert most_urgent(queries(0.0, None), 0.0, TURN) == "1"


def test_a_single_query_waits_until_its_last_turn() -> None:
    assert most_urgent(queries(0.0), 240.0, TURN) is None
    assert most_urgent(queries(0.0), 271.0, TURN) == "0"


def test_two_queries_with_one_deadline_take_two_turns() -> None:
    """The first one is early, so that the second one is not late."""
    assert most_urgent(queries(0.0, 0.0), 240.0, TURN) is None
    assert most_urgent(queries(0.0, 0.0), 241.0, TURN) == "0"


def test_without_queries_none_is_urgent() -> None:
    assert most_urgent((), 0.0, TURN) is None


def send_one_each_turn(periods: Sequence[float], turns: int) -> dict[str, list[float]]:
    """Return when each query is sent, if at most one is sent in each turn and all were answered at the start."""
    known = dict.fromkeys(map(str, range(len(periods))), 0.0)
    sent: dict[str, list[float]] = {command: [0.0] for command in known}
    for turn in range(1, turns):
        now = turn * TURN
        present = [
            Query(command=command, known_at=at, period=period)
            for (command, at), period in zip(known.items(), periods, strict=True)
        ]
        chosen = most_urgent(present, now, TURN)
        if chosen is not None:
            known[chosen] = now
            sent[chosen].append(now)
    return sent


@given(st.lists(st.integers(10, 40), min_size=1, max_size=6))
@settings(max_examples=60)
def test_no_query_is_late_by_more_than_a_turn_or_much_too_early(turns_each: list[int]) -> None:
    """All queries may be due at the same time."""
    periods = [turns * TURN for turns in turns_each]
    for period, times in zip(periods, send_one_each_turn(periods, 400).values(), strict=True):
        waited = [later - earlier for earlier, later in pairwise(times)]
        assert all(period - len(periods) * TURN <= each <= period + TURN for each in waited)
