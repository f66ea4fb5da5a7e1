"""How much the exporter's queries add to the log of an unchanged daemon in a day."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.node import Node
from exporter.model.settings import PollIntervals
from exporter.parse.control_reply import DEVICE_QUERY, LIST_CLIENTS, LIST_SERVERS, SERVER_STATUS, VERSION_FLAG
from exporter.reducer import reduce
from exporter.state import poll_schedule
from exporter.state.poll_schedule import Query, most_urgent
from tests.builders import AT, CLIENT, DAEMON, SERVER, control_log, gpu_reading, reduced, reply, scenario
from tests.state.log_cost import log_cost

DAY = 86_400
HOURS_WATCHED = 2
TICK, ANSWER_SECONDS = 1.0, 0.002


def stdout_of(command: str, clients: int, gpus: int) -> str:
    """Return the reply of an idle daemon with one server."""
    match command.split()[0]:
        case verb if verb == LIST_SERVERS:
            return f"{SERVER}\n"
        case verb if verb == SERVER_STATUS:
            return "ACTIVE\n"
        case verb if verb == LIST_CLIENTS:
            return "".join(f"{CLIENT + number}\n" for number in range(clients))
        case verb if verb == VERSION_FLAG:
            return "CUDA MPS Control binary version: 13000\n"
        case verb if verb.endswith("percentage"):
            return "100.0\n"
        case _ if command == DEVICE_QUERY:
            rows = "".join(f"{gpu},0000:00.{gpu:02}.00,{gpu_uuid(gpu)},NVIDIA H200,N/A\n" for gpu in range(gpus))
            table = f"Device Ordinal,PCI IDs,UUID,Name,Attributes\n{rows}"
            return f"Default\n{table}\nServer {SERVER}\n{table}"
        case _:
            return "3G\n"


def gpu_uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-000000000000"


def bytes_a_day(clients: int, gpus: int) -> float:
    """Return the bytes of the log in a day, from some hours without the first queries."""
    pids = range(CLIENT, CLIENT + clients)
    start = reduced(
        *control_log("UI closed"),
        *(gpu_reading(pids, gpu=gpu_uuid(number), index=number) for number in range(gpus)),
    ).node
    present = _watched(start, 60, clients, gpus)[0]
    _, written = _watched(present, HOURS_WATCHED * 3600, clients, gpus)
    return written * DAY / (HOURS_WATCHED * 3600)


def _watched(present: Node, seconds: int, clients: int, gpus: int) -> tuple[Node, int]:
    written = 0
    began = max(present.at, AT)
    for tick in range(int(seconds / TICK)):
        at = began + tick * TICK
        for command in poll_schedule.commands(replace(present, at=at), DAEMON, PollIntervals()):
            stdout = stdout_of(command, clients, gpus)
            written += log_cost(command, stdout)
            present, _ = reduce(present, reply(command, stdout, at=at + ANSWER_SECONDS))
    return present, written


@pytest.mark.parametrize(
    ("clients", "gpus", "most"),
    [(0, 1, 1_000_000), (8, 1, 1_000_000), (8, 8, 1_000_000), (48, 1, 1_500_000)],
)
def test_queries_of_a_day_remain_within_their_budget(clients: int, gpus: int, most: int) -> None:
    """Limits are set on every GPU. With 48 clients, their list has the highest cost."""
    assert bytes_a_day(clients, gpus) <= most


def test_the_cost_of_a_command_is_that_on_real_hardware() -> None:
    """The log and the replies are of the same session."""
    recorded = scenario("limits")
    lines = [seen["line"] for seen in recorded.raw if seen.get("file") == "control.log"]
    answers = {seen["command"]: seen["stdout"] for seen in recorded.raw if seen["source"] == "control"}
    checked = ("get_server_list", f"get_server_status {SERVER}", f"get_active_thread_percentage {SERVER}")
    for command in (*checked, "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"):
        asked = next(number for number, line in enumerate(lines) if line.endswith(f"] Cmd:{command}"))
        session = lines[asked - 2 : asked + 3]
        assert session[-1].endswith("] UI closed")
        assert log_cost(command, answers[command]) == sum(len(line) + 1 for line in session)


# The order of control queries: none is late, although only one is sent in each turn.


TURN = 30.0


def queries(*known_at: float | None, period: float = 300.0) -> tuple[Query, ...]:
    return tuple(Query(command=str(number), known_at=at, period=period) for number, at in enumerate(known_at))


def test_a_query_without_an_answer_is_due_at_once() -> None:
    assert [query.deadline for query in queries(None, 0.0)] == [float("-inf"), 300.0]
    assert most_urgent(queries(0.0, None), 0.0, TURN) == "1"


def test_two_queries_with_one_deadline_take_two_turns() -> None:
    """The first one is early, so that the second one is not late."""
    assert most_urgent(queries(0.0, 0.0), 240.0, TURN) is None
    assert most_urgent(queries(0.0, 0.0), 241.0, TURN) == "0"


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
