"""A flood of one log is read within a budget: the newest lines and the grave lines are read, all others are counted."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.collectors.log_file import (
    BURST_SECONDS,
    LINES_PER_SECOND,
    MAX_UNREAD,
    MIN_LINES,
    MIN_SKIM_BYTES,
    PATH_CHECK_SECONDS,
    SKIM_BYTES_PER_SECOND,
    UNKNOWN_PER_SECOND,
    Budget,
    LogFollower,
)
from exporter.collectors.pipe_dir import on_host
from exporter.model.observation import LogFile, LogGap, LogLine, LogUnrecognized
from tests.clocks import HandClock

STAMP = "[2026-11-20 15:08:45.147 Server   599]"
FAULT = f"{STAMP} Server is handling a fatal GPU error."


def known(number: int) -> str:
    return f"{STAMP} Client process {number} disconnected"


def unknown(number: int) -> str:
    return f"{STAMP} Nobody knows what {number} is"


class Log:
    """server.log, which a follower reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = HandClock()
        self.follower = LogFollower(on_host("node", path.parent, path.parent), path.name, self.clock)
        self.lines: list[str] = []
        self.lost = self.unrecognized = 0
        self.unread: list[int | None] = []

    def write(self, line: Callable[[int], str], count: int) -> None:
        """Add so many lines."""
        self.add("".join(f"{line(number)}\n" for number in range(count)))

    def add(self, text: str) -> None:
        """Add a text."""
        with self.path.open("a") as file:
            file.write(text)

    def collect(self) -> bool:
        """Look once; whether something was left unread."""
        reading = self.follower.collect()
        for seen in reading.observations:
            match seen:
                case LogLine():
                    self.lines.append(seen.line)
                case LogGap():
                    self.lost += seen.lines
                case LogUnrecognized():
                    self.unrecognized += seen.lines
                case LogFile():
                    self.unread.append(seen.unread)
        return reading.more

    def read(self) -> int:
        """Look until all is read; how often."""
        looks = 1
        while self.collect():
            looks += 1
        return looks

    def exhaust(self) -> None:
        """Use up the budget for lines that a rule knows."""
        self.write(known, int(LINES_PER_SECOND * BURST_SECONDS))
        self.read()
        self.lines.clear()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "server.log")
    log.path.touch()
    log.collect()
    yield log
    log.follower.close()


def test_unknown_lines_are_observed_while_they_are_few_and_counted_when_they_are_many(log: Log) -> None:
    """A recording has the first of them, which a better parser may know."""
    log.write(unknown, 3)
    log.collect()
    assert log.lines == [unknown(number) for number in range(3)]
    assert log.unrecognized == 0

    log.write(unknown, 10_000)
    log.read()

    assert len(log.lines) == UNKNOWN_PER_SECOND * BURST_SECONDS
    assert len(log.lines) + log.unrecognized == 10_003
    assert log.lost == 0


def test_a_flood_of_unknown_lines_makes_one_observation_a_look(log: Log) -> None:
    log.write(unknown, 1000)
    log.collect()
    log.write(unknown, 1000)

    kinds = [type(seen) for seen in log.follower.collect().observations]

    assert kinds.count(LogUnrecognized) == 1
    assert LogLine not in kinds


def test_lines_over_the_budget_are_lost_and_the_newest_are_kept(log: Log) -> None:
    log.exhaust()
    log.clock.time += 0.1
    log.write(known, 1000)

    log.read()

    assert log.lines == [known(number) for number in range(1000)][-int(0.1 * LINES_PER_SECOND) :]
    assert len(log.lines) + log.lost == 1000


def test_no_line_is_read_twice_or_disappears_without_being_counted(log: Log) -> None:
    log.exhaust()
    for _ in range(20):
        log.clock.time += 0.05
        log.write(known, 100)
        log.write(unknown, 100)
        log.collect()
    log.read()

    assert len(log.lines) + log.lost + log.unrecognized == 20 * 200


def test_a_fault_in_a_flood_of_ordinary_lines_is_read(log: Log) -> None:
    log.exhaust()
    log.write(known, 500)
    log.add(f"{FAULT}\n")
    log.write(known, 500)

    log.read()

    assert log.lines == [FAULT]


def test_after_a_burst_a_fault_is_read_at_once_wherever_it_is_and_in_order(log: Log) -> None:
    log.exhaust()
    log.write(known, MAX_UNREAD // len(known(0)))
    log.add(f"{FAULT}\n")
    log.write(known, MAX_UNREAD // len(known(0)))
    log.write(unknown, 1000)
    log.add(f"{FAULT.replace('599', '600')}\n")

    assert not log.collect()

    assert log.lines == [FAULT, FAULT.replace("599", "600")]
    assert log.lost > 0


def test_what_is_more_than_the_budget_of_bytes_is_passed_over(log: Log) -> None:
    """A log can be a sparse file of any size."""
    log.follower.share(0.0001)
    with log.path.open("a") as file:
        file.truncate(1 << 40)
    log.add(f"\n{FAULT}\n")

    log.read()

    assert log.lines == [FAULT]
    assert log.lost >= 1


def test_the_first_line_after_a_jump_is_whole(log: Log) -> None:
    log.follower.share(0.0001)
    log.add(f"{STAMP} {'x' * 2 * MIN_SKIM_BYTES} {FAULT}\n{FAULT}\n")
    log.write(unknown, MAX_UNREAD // len(unknown(0)))

    log.read()

    assert [line for line in log.lines if "Nobody" not in line] == [FAULT]


def test_how_much_is_unread_is_told_and_that_nothing_is(log: Log) -> None:
    log.write(known, 1000)

    log.read()

    assert log.unread[0] == 0
    assert max(filter(None, log.unread)) > 0
    assert log.unread[-1] == 0


def test_each_of_many_logs_has_its_share_and_can_read_a_few_lines_at_once(log: Log) -> None:
    log.follower.share(1 / 100)
    log.write(known, 1000)
    log.read()
    assert len(log.lines) == MIN_LINES

    log.clock.time += 10.0
    log.write(known, 1000)
    log.read()
    assert len(log.lines) == MIN_LINES + LINES_PER_SECOND // 100 * 10


def test_a_budget_is_saved_up_for_a_while_and_no_longer() -> None:
    clock = HandClock()
    budget = Budget(clock, 10, 5)
    assert budget.available == 10 * BURST_SECONDS
    budget.spend(1000)
    assert budget.available == 0
    clock.time += 0.55
    assert budget.available == 5
    clock.time += 3600
    assert budget.available == 10 * BURST_SECONDS


def test_a_smaller_share_takes_effect_at_once_and_a_larger_one_with_time() -> None:
    clock = HandClock()
    budget = Budget(clock, 10, 5)
    budget.share(0.1)
    assert budget.available == BURST_SECONDS
    budget.share(0.01)
    assert budget.available == 5
    budget.share(1.0)
    assert budget.available == 5
    clock.time += 1
    assert budget.available == 15


def test_forty_megabytes_are_within_what_may_be_searched_at_once() -> None:
    assert SKIM_BYTES_PER_SECOND * BURST_SECONDS > 40e6
    assert PATH_CHECK_SECONDS < 2
