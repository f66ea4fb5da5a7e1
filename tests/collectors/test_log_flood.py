"""The exporter reads a log flood within a budget: the newest and the critical lines; it counts all others."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.collectors.logs import Budget, LogFollower
from exporter.collectors.pipe_dir import on_host
from exporter.model.observation import LogFile, LogGap, LogLine, LogUnrecognized
from tests.clocks import HandClock

# The tests state these values, so that they notice a change of the program's constants.
BURST_SECONDS = 10.0
LINES_PER_SECOND = 500
MAX_UNREAD = 1 << 20
MIN_LINES = 250
MIN_SKIM_BYTES = 4 << 20
PATH_CHECK_SECONDS = 0.5
SKIM_BYTES_PER_SECOND = 6 << 20
UNKNOWN_PER_SECOND = 20

STAMP = "[2026-11-20 15:08:45.147 Server   599]"
FAULT = f"{STAMP} Server is handling a fatal GPU error."


def known(number: int) -> str:
    return f"{STAMP} Client process {number} disconnected"


def unknown(number: int) -> str:
    return f"{STAMP} An unknown message {number}"


class Log:
    """A server.log with its follower and all observations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = HandClock()
        self.follower = LogFollower(on_host("node", path.parent, path.parent), path.name, self.clock)
        self.lines: list[str] = []
        self.lost = self.unrecognized = 0
        self.unread: list[int | None] = []

    def write(self, line: Callable[[int], str], count: int) -> None:
        self.add("".join(f"{line(number)}\n" for number in range(count)))

    def add(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def collect(self) -> bool:
        reading = self.follower.collect()
        for each in reading.observations:
            match each:
                case LogLine():
                    self.lines.append(each.line)
                case LogGap():
                    self.lost += each.lines
                case LogUnrecognized():
                    self.unrecognized += each.lines
                case LogFile():
                    self.unread.append(each.unread)
        return reading.more

    def read(self) -> int:
        collections = 1
        while self.collect():
            collections += 1
        return collections

    def exhaust(self) -> None:
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


def test_observes_a_few_unknown_lines_and_counts_the_others(log: Log) -> None:
    """A recording has the first ones, which a later parser may know."""
    log.write(unknown, 3)
    log.collect()
    assert log.lines == [unknown(number) for number in range(3)]
    assert log.unrecognized == 0

    log.write(unknown, 10_000)
    log.read()

    assert len(log.lines) == UNKNOWN_PER_SECOND * BURST_SECONDS
    assert len(log.lines) + log.unrecognized == 10_003
    assert log.lost == 0


def test_a_flood_of_unknown_lines_is_one_observation_for_each_collection(log: Log) -> None:
    log.write(unknown, 1000)
    log.collect()
    log.write(unknown, 1000)

    kinds = [type(each) for each in log.follower.collect().observations]

    assert kinds.count(LogUnrecognized) == 1
    assert LogLine not in kinds


def test_reads_the_newest_lines_and_drops_those_over_the_budget(log: Log) -> None:
    log.exhaust()
    log.clock.time += 0.1
    log.write(known, 1000)

    log.read()

    assert log.lines == [known(number) for number in range(1000)][-int(0.1 * LINES_PER_SECOND) :]
    assert len(log.lines) + log.lost == 1000


def test_reads_every_connection_of_many_short_clients(log: Log) -> None:
    """100 clients a second: their lines without news are dropped first."""
    for pid in range(4000, 7000):
        lines = (
            f"Client {{PID: {pid}, Context ID: 0}} connected",
            f"Creating worker thread for client {{PID: {pid}, Context ID: 0}}",
            f"Received new client request for {{PID: {pid}, Context ID: 0}}",
            f"Client {{PID: {pid}, Context ID: 1}} connected",
            f"Creating worker thread for client {{PID: {pid}, Context ID: 1}}",
            "Device NVIDIA H200 (uuid GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b) is associated",
            f"Status of client {{PID: {pid}, Context ID: 1}} is ACTIVE",
            f"Server failed to recevie command with status 806, assuming client {{PID: {pid}, Context ID: 1}} exit",
            f"Client {{PID: {pid}, Context ID: 1}} exiting. Number of active client contexts is 3.",
            f"Server failed to recevie command with status 806, assuming client {{PID: {pid}, Context ID: 0}} exit",
            f"Client process {pid} disconnected",
        )
        log.add("".join(f"{STAMP} {line}\n" for line in lines))
        log.clock.time += 0.01
        if pid % 10 == 9:
            log.collect()

    assert sum(line.endswith("is ACTIVE") for line in log.lines) == 3000
    assert sum(line.endswith("disconnected") for line in log.lines) == 3000
    assert len(log.lines) + log.lost == 3000 * 11


def test_reads_the_last_line_even_without_news(log: Log) -> None:
    """If the log ended with the command before, the daemon would seem to hang in it."""
    log.exhaust()
    log.clock.time += 0.1
    for _ in range(100):
        log.add(f"{STAMP} Cmd:get_client_list 42\n{STAMP} Accepting connection...\n")
    log.read()

    assert log.lines[-2:] == [f"{STAMP} Cmd:get_client_list 42", f"{STAMP} Accepting connection..."]


def test_every_line_is_read_or_counted_exactly_once(log: Log) -> None:
    log.exhaust()
    for _ in range(20):
        log.clock.time += 0.05
        log.write(known, 100)
        log.write(unknown, 100)
        log.collect()
    log.read()

    assert len(log.lines) + log.lost + log.unrecognized == 20 * 200


def test_reads_a_fault_in_a_flood_of_known_lines(log: Log) -> None:
    log.exhaust()
    log.write(known, 500)
    log.add(f"{FAULT}\n")
    log.write(known, 500)

    log.read()

    assert log.lines == [FAULT]


def test_reads_all_faults_at_once_and_in_order_after_a_burst(log: Log) -> None:
    log.exhaust()
    log.write(known, MAX_UNREAD // len(known(0)))
    log.add(f"{FAULT}\n")
    log.write(known, MAX_UNREAD // len(known(0)))
    log.write(unknown, 1000)
    log.add(f"{FAULT.replace('599', '600')}\n")

    assert not log.collect()

    assert log.lines == [FAULT, FAULT.replace("599", "600")]
    assert log.lost > 0


def test_skips_text_over_the_byte_budget(log: Log) -> None:
    """A log can be a sparse file of any size."""
    log.follower.share(0.0001)
    with log.path.open("a") as file:
        file.truncate(1 << 40)
    log.add(f"\n{FAULT}\n")

    log.read()

    assert log.lines == [FAULT]
    assert log.lost >= 1


def test_reads_a_complete_line_first_after_skipped_text(log: Log) -> None:
    log.follower.share(0.0001)
    log.add(f"{STAMP} {'x' * 2 * MIN_SKIM_BYTES} {FAULT}\n{FAULT}\n")
    log.write(unknown, MAX_UNREAD // len(unknown(0)))

    log.read()

    assert [line for line in log.lines if "An unknown" not in line] == [FAULT]


def test_reports_the_number_of_unread_bytes(log: Log) -> None:
    log.write(known, 1000)

    log.read()

    assert log.unread[0] == 0
    assert max(filter(None, log.unread)) > 0
    assert log.unread[-1] == 0


def test_a_log_with_a_small_share_can_read_a_few_lines_at_once(log: Log) -> None:
    log.follower.share(1 / 100)
    log.write(known, 1000)
    log.read()
    assert len(log.lines) == MIN_LINES

    log.clock.time += 10.0
    log.write(known, 1000)
    log.read()
    assert len(log.lines) == MIN_LINES + LINES_PER_SECOND // 100 * 10


def test_a_budget_accumulates_up_to_a_limit() -> None:
    clock = HandClock()
    budget = Budget(clock, 10, 5)
    assert budget.available == 10 * BURST_SECONDS
    budget.spend(1000)
    assert budget.available == 0
    clock.time += 0.55
    assert budget.available == 5
    clock.time += 3600
    assert budget.available == 10 * BURST_SECONDS


def test_a_smaller_share_applies_at_once_and_a_larger_one_gradually() -> None:
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


def test_the_byte_budget_allows_forty_megabytes_at_once() -> None:
    assert SKIM_BYTES_PER_SECOND * BURST_SECONDS > 40e6
    assert PATH_CHECK_SECONDS < 2
