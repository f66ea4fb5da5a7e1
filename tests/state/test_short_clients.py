"""Many clients that live for a moment: what the exporter counts, whatever it notices of each, and when."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from random import Random

import pytest

from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import LogFile, LogGap, Observation
from tests.builders import (
    AT,
    DAEMON,
    SENSORS,
    SERVER,
    Reduced,
    active,
    at_work,
    clients,
    connecting,
    daemon_process,
    exited,
    gpu_reading,
    look,
    process,
    reduced,
    server_log,
    servers,
)

RESIDENT = 600
FIRST = 10_000
STEP_SECONDS = 0.1
SECONDS = 6
RATE = 100

UP = reduced(
    *at_work(RESIDENT),
    daemon_process(),
    process(SERVER, uid=0, user="root"),
    process(RESIDENT),
    gpu_reading((RESIDENT,), at=AT + 0.5, **SENSORS),
).node

Line = tuple[float, str]


class Churn:
    """Clients with the times at which they begin and end, by PID, and what an exporter may observe of them."""

    def __init__(self, seed: int, seconds: float, lost: float = 0.0, late: float = 0.0) -> None:
        """Each lives for up to twice `seconds`. `lost` and `late` are the fractions of the collections of the log."""
        self.random, self.lost, self.late = Random(seed), lost, late
        begins = [AT + 1 + number / RATE for number in range(SECONDS * RATE)]
        self.lives = {
            FIRST + number: (begin, begin + self.random.uniform(0.001, 2 * seconds))
            for number, begin in enumerate(begins)
        }

    def lines(self) -> list[Line]:
        """The lines of the log by time. A client disconnects 15 ms after its context has ended."""
        lines = []
        for pid, (begin, end) in self.lives.items():
            lines += [(begin, connecting(pid)), (begin, active(pid))]
            lines += [(end, f"Client {{PID: {pid}, Context ID: 1}} exiting. Number of active client contexts is 1.")]
            lines += [(end + 0.015, f"Client process {pid} disconnected")]
        return sorted(lines, key=lambda line: line[0])

    def observed(self) -> Iterator[Observation]:
        """Yield what an exporter observes: the log in steps, and processes, lists and GPUs as they are then."""
        unread: list[Line] = []
        watched: set[int] = set()
        steps = groupby(self.lines(), key=lambda line: int((line[0] - AT) / STEP_SECONDS))
        for number, of_step in steps:
            at = AT + (number + 1) * STEP_SECONDS
            unread += of_step
            if self.random.random() < self.late:
                yield LogFile(at=at, daemon=DAEMON, file="server.log", size=1 << 20, unread=100 * len(unread))
            elif self.random.random() < self.lost:
                yield LogGap(at=at, daemon=DAEMON, file="server.log", lines=len(unread))
                unread = []
            else:
                yield LogFile(at=at, daemon=DAEMON, file="server.log", size=1 << 20, unread=0)
                for _, text in unread:
                    yield from server_log(text, at=at)
                unread = []
            yield replace(look("log", at=at), daemon=DAEMON)
            alive = [pid for pid, (begin, end) in self.lives.items() if begin < at < end]
            for pid in sorted(watched.difference(alive)):
                yield exited(pid, at=at)
            watched = {pid for pid in alive if pid in watched or self.random.random() < 0.5}
            yield from (process(pid, at=at) for pid in sorted(watched))
            if number % 9 == 0:
                yield gpu_reading((RESIDENT, *alive), at=at, **SENSORS)
            if number % 23 == 0:
                yield from (servers(SERVER, at=at), clients(RESIDENT, *alive, at=at))
        end = at + 40
        yield from server_log(*(text for _, text in unread), at=at + 1)
        yield from (gpu_reading((RESIDENT,), at=end, **SENSORS), clients(RESIDENT, at=end), look("log", at=end))


def _result(churn: Churn) -> Reduced:
    """Check that no claim is contradicted, and that no client remains or bypasses MPS."""
    result = reduced(*churn.observed(), start=UP)
    assert sum(result.daemon.totals.log_contradictions.values()) == 0
    assert set(result.daemon.clients) == {RESIDENT}
    assert result.daemon.log.claims == {}
    assert set(result.names()) <= {EventName.CLIENT_CONNECTED, EventName.CLIENT_DISCONNECTED}
    assert _counts(result.node) == len(result.of(EventName.CLIENT_DISCONNECTED))
    return result


def _counts(node: Node) -> int:
    return node.daemons[DAEMON].totals.connected - 1


@pytest.mark.parametrize("seconds", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("late", [0.0, 0.7, 0.95])
def test_counts_each_of_many_short_clients(seconds: float, late: float) -> None:
    """The exporter has read few of their processes, NVML and the daemon show few of them, and the log is read late."""
    churn = Churn(1, seconds, late=late)
    assert _counts(_result(churn).node) == len(churn.lives)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("seconds", [0.001, 0.05, 0.5])
def test_misses_some_without_a_false_statement_if_lines_are_lost(seed: int, seconds: float) -> None:
    churn = Churn(seed, seconds, lost=0.3, late=0.3)
    assert 0 < _counts(_result(churn).node) < len(churn.lives)
