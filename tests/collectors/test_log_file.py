"""LogFollower reads each line once, through all that happens to log files, and trusts nothing that it finds there."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from exporter.collectors.log_file import (
    CHUNK,
    MAX_LINE,
    MAX_LINES,
    MAX_OPEN,
    PATH_CHECK_SECONDS,
    REPLACED_SECONDS,
    SIZE_STEP,
    LogFollower,
)
from exporter.collectors.logs import DaemonLogs
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.thread import Reading
from exporter.model.observation import LogFile, LogGap, LogLine, Observation
from exporter.model.problem import Problem, ProblemCode
from tests.builders import absent, denied, not_a_file
from tests.clocks import HandClock

NOBODY = 65534


@dataclass(slots=True)
class Followed:
    """A log file in a directory of its own, and who follows it."""

    path: Path
    clock: HandClock = field(default_factory=HandClock)
    problem: Problem | None = None

    def __post_init__(self) -> None:
        self.follower = LogFollower(on_host("node", self.path.parent, self.path.parent), self.path.name, self.clock)

    def write(self, text: str | bytes) -> None:
        """Add to the file."""
        with self.path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def collect(self) -> list[str]:
        """The lines of one look, which comes late enough to see what has become of the file."""
        seen = self.seen()
        for each in seen:
            self.problem = each.problem if isinstance(each, LogFile) else self.problem
        return [each.line for each in seen if isinstance(each, LogLine)]

    def told(self) -> list[Problem | None]:
        """What one look says of the file itself."""
        return [each.problem for each in self.seen() if isinstance(each, LogFile)]

    def lost(self) -> list[int]:
        """The lines that one look says are lost."""
        return [each.lines for each in self.seen() if isinstance(each, LogGap)]

    def seen(self) -> Sequence[Observation]:
        """All that such a look saw."""
        self.clock.time += PATH_CHECK_SECONDS
        return self.follower.collect().observations

    follower: LogFollower = field(init=False)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Followed]:
    """control.log, which is not there yet."""
    followed = Followed(tmp_path / "control.log")
    yield followed
    followed.follower.close()


@pytest.fixture
def begun(log: Followed) -> Followed:
    """control.log, which is there, empty, and has been looked at."""
    log.write("")
    assert log.collect() == []
    return log


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- where to begin ------------------------------------------------------------------------------------------------


def test_a_file_that_was_there_first_is_read_from_its_end(log: Followed) -> None:
    log.write("old\n")

    assert log.collect() == []
    log.write("new\n")
    assert log.collect() == ["new"]
    assert log.collect() == []


def test_a_file_that_comes_later_is_read_from_its_beginning(log: Followed) -> None:
    assert log.collect() == []
    log.write("first\nsecond\n")

    assert log.collect() == ["first", "second"]


def test_the_rest_of_a_line_that_was_there_first_is_no_line(log: Followed) -> None:
    log.write("old, and torn")

    assert log.collect() == []
    log.write(" to here\nnew\n")
    assert log.collect() == ["new"]


def test_each_line_says_where_and_when_it_was_read(begun: Followed) -> None:
    begun.clock.time = 1234.5
    begun.write("line\n")

    assert begun.follower.collect().observations == (
        LogLine(at=1234.5, daemon="node", file="control.log", line="line"),
    )


def test_a_file_that_could_not_be_read_at_first_is_read_from_its_end_too(log: Followed) -> None:
    log.write("old\n")
    with unreadable(log.path):
        log.collect()
        assert log.problem == denied(log.path)

    assert log.collect() == []
    log.write("new\n")
    assert log.collect() == ["new"]


# -- lines ---------------------------------------------------------------------------------------------------------


def test_a_torn_line_waits_for_its_end(begun: Followed) -> None:
    begun.write("to")
    assert begun.collect() == []
    begun.write("rn\nwhole\nagain to")
    assert begun.collect() == ["torn", "whole"]
    begun.write("rn\n")
    assert begun.collect() == ["again torn"]


def test_a_character_torn_in_two_is_whole_again(begun: Followed) -> None:
    begun.write("caf\u00e9\n".encode()[:4])
    assert begun.collect() == []
    begun.write("caf\u00e9\n".encode()[4:])
    assert begun.collect() == ["caf\u00e9"]


def test_any_bytes_are_a_line(begun: Followed) -> None:
    begun.write(b"\xff\xfe \0\x1b[31m\r\n\xc3\n\n")

    assert begun.collect() == ["\ufffd\ufffd \0\x1b[31m\r", "\ufffd", ""]


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_a_line_without_end_costs_itself_alone(begun: Followed, pieces: int) -> None:
    begun.write("before\n")
    lines = begun.collect()
    for _ in range(pieces):
        begun.write("x" * (2 * MAX_LINE))
        lines += begun.collect()
    begun.write("end of it\nafter\n")
    lines += begun.collect()

    assert (lines[0], lines[-1]) == ("before", "after")
    assert len(lines) <= 3
    assert all(len(line) <= MAX_LINE for line in lines)


def test_a_long_line_is_treated_alike_however_it_arrives(tmp_path: Path) -> None:
    at_once, in_pieces = Followed(tmp_path / "at_once"), Followed(tmp_path / "in_pieces")
    for log in (at_once, in_pieces):
        log.collect()
    at_once.write("x" * (MAX_LINE + 10) + "\nafter\n")
    in_pieces.write("x" * (MAX_LINE + 5))
    pieces = in_pieces.collect()
    in_pieces.write("x" * 5 + "\nafter\n")
    pieces += in_pieces.collect()

    assert at_once.collect() == pieces
    for log in (at_once, in_pieces):
        log.follower.close()


def known(number: int) -> str:
    """A line that a rule knows."""
    return f"[2026-11-20 15:08:45.147 Server   599] Client process {number} disconnected"


def lines_of(numbers: range) -> str:
    """So many lines that a rule knows."""
    return "".join(f"{known(number)}\n" for number in numbers)


def test_a_burst_within_the_budget_is_read_whole_and_in_order_a_part_at_a_time(begun: Followed) -> None:
    written = range(4 * MAX_LINES)
    begun.write(lines_of(written) + "torn")

    looks = []
    while lines := begun.collect():
        looks.append(lines)

    assert max(map(len, looks)) <= MAX_LINES + CHUNK // len(known(0))
    assert [line for lines in looks for line in lines] == list(map(known, written))
    begun.write(" no more\n")
    assert begun.collect() == ["torn no more"]


def test_a_look_says_whether_it_left_something_unread(begun: Followed) -> None:
    begun.write(lines_of(range(MAX_LINES + CHUNK // len(known(0)) + 1)) + "torn")

    assert [begun.follower.collect().more for _ in range(3)] == [True, False, False]


def test_a_renamed_log_does_not_double_what_one_look_reads(begun: Followed) -> None:
    old, new = range(2 * MAX_LINES), range(10_000, 10_000 + 2 * MAX_LINES)
    begun.write(lines_of(old))
    begun.path.rename(begun.path.with_suffix(".1"))
    begun.write(lines_of(new))

    looks = []
    while lines := begun.collect():
        looks.append(lines)

    assert max(map(len, looks)) <= MAX_LINES + CHUNK // len(known(0))
    assert [line for lines in looks for line in lines] == [known(number) for number in (*old, *new)]


# -- truncation, rename, removal -----------------------------------------------------------------------------------


def test_a_truncated_file_goes_on_from_its_beginning(begun: Followed) -> None:
    begun.write("one\ntwo, and torn")
    assert begun.collect() == ["one"]
    os.truncate(begun.path, 0)
    assert begun.collect() == []
    begun.write("three\n")

    assert begun.collect() == ["three"]


def test_a_file_truncated_and_written_between_two_looks_goes_on_too(begun: Followed) -> None:
    begun.write("a line of some length\n")
    begun.collect()
    os.truncate(begun.path, 0)
    begun.write("short\n")

    assert begun.collect() == ["short"]


def test_how_much_was_lost_with_a_truncation_is_told_as_far_as_it_is_known(begun: Followed) -> None:
    begun.write("read\n")
    begun.collect()
    os.truncate(begun.path, 0)
    assert begun.lost() == []
    begun.write(lines_of(range(4 * MAX_LINES)))
    begun.collect()
    os.truncate(begun.path, 0)
    assert begun.lost() == [1]
    begun.write("torn")
    begun.collect()
    os.truncate(begun.path, 0)
    assert begun.lost() == [1]

    begun.write("new\n")
    assert begun.collect() == ["new"]


def test_a_truncated_file_that_has_outgrown_what_was_read_of_it_goes_on_from_its_beginning(begun: Followed) -> None:
    begun.write(lines_of(range(2 * MAX_LINES)))
    begun.collect()
    os.truncate(begun.path, 0)
    begun.write(lines_of(range(MAX_LINES)))

    assert begun.collect() == [known(number) for number in range(MAX_LINES)]


def test_the_rest_of_a_line_that_was_never_followed_is_not_lost(log: Followed) -> None:
    log.write("old, and torn")
    log.collect()
    log.write(" still")
    log.collect()
    os.truncate(log.path, 0)

    assert log.lost() == []


def test_what_is_open_is_read_at_every_look_and_the_place_seen_to_less_often(begun: Followed) -> None:
    with begun.path.open("a") as of_the_daemon:
        begun.path.rename(begun.path.with_suffix(".1"))
        begun.write("into the new one\n")
        of_the_daemon.write("into the renamed one\n")
        of_the_daemon.flush()
        seen = begun.follower.collect().observations

        assert [each.line for each in seen if isinstance(each, LogLine)] == ["into the renamed one"]
        assert begun.collect() == ["into the new one"]


def test_a_renamed_file_and_the_new_one_are_both_followed(begun: Followed) -> None:
    begun.write("before\n")
    begun.collect()
    with begun.path.open("a") as of_the_daemon:
        begun.path.rename(begun.path.with_suffix(".1"))
        of_the_daemon.write("into the renamed one\n")
        of_the_daemon.flush()
        assert begun.collect() == ["into the renamed one"]
        assert begun.problem == absent(begun.path)

        begun.write("into the new one\n")
        assert begun.collect() == ["into the new one"]
        assert begun.problem is None

        of_the_daemon.write("still into the renamed one\n")
        of_the_daemon.flush()
        begun.write("and the new one\n")
        assert begun.collect() == ["still into the renamed one", "and the new one"]


def test_a_removed_file_returns(begun: Followed) -> None:
    begun.write("one\n")
    begun.collect()
    begun.path.unlink()
    assert begun.told() == [absent(begun.path)]
    begun.write("two\n")

    assert begun.collect() == ["two"]
    assert begun.problem is None


def test_the_directory_may_come_and_go(tmp_path: Path) -> None:
    log = Followed(tmp_path / "log" / "control.log")
    log.collect()
    assert log.problem == absent(log.path)
    log.path.parent.mkdir()
    log.write("one\n")
    assert log.collect() == ["one"]
    log.follower.close()


def test_what_is_wrong_is_told_when_it_changes(log: Followed) -> None:
    assert log.told() == [absent(log.path)]
    assert log.told() == []
    log.write("")
    assert log.told() == [None]
    assert log.told() == []


def test_however_often_a_log_is_rotated_few_files_stay_open(begun: Followed) -> None:
    before = descriptors()
    for n in range(50):
        begun.path.rename(begun.path.with_suffix(f".{n}"))
        begun.write(f"{n}\n")
        assert begun.collect() == [f"{n}"]

    assert descriptors() - before <= MAX_OPEN


def test_a_rotated_file_is_let_go_of_when_it_has_been_still(begun: Followed) -> None:
    before = descriptors()
    begun.path.rename(begun.path.with_suffix(".1"))
    begun.write("new\n")
    begun.collect()
    assert descriptors() == before + 1

    begun.clock.time += REPLACED_SECONDS + 1
    begun.collect()
    assert descriptors() == before


# -- what is no log ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """A file that this user may not read; root becomes somebody else for the time."""
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(0o644)


def test_an_unreadable_file_is_a_problem_until_it_can_be_read(log: Followed) -> None:
    log.write("")
    with unreadable(log.path):
        assert log.collect() == []
        assert log.problem == denied(log.path)

    assert log.collect() == []
    assert log.problem is None


def test_a_symbolic_link_is_not_followed(log: Followed, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    log.collect()
    log.path.symlink_to(tmp_path / "secret")

    assert log.collect() == []
    assert log.problem is not None
    assert log.problem.code is ProblemCode.NOT_READABLE


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_what_is_no_regular_file_is_a_problem_and_hangs_nobody(log: Followed, make: object) -> None:
    before = descriptors()
    make(log.path)  # type: ignore[operator]

    assert log.collect() == []
    assert log.collect() == []
    assert log.problem == not_a_file(log.path)
    assert descriptors() == before


def test_a_fifo_in_place_of_the_log_leaves_the_log_followed(begun: Followed) -> None:
    with begun.path.open("a") as of_the_daemon:
        begun.path.rename(begun.path.with_suffix(".1"))
        os.mkfifo(begun.path)
        of_the_daemon.write("on and on\n")
        of_the_daemon.flush()

        assert begun.collect() == ["on and on"]
    assert begun.problem == not_a_file(begun.path)


# -- both logs of a daemon -----------------------------------------------------------------------------------------


def test_an_absent_log_is_no_failure_of_the_source_and_an_unreadable_one_is(tmp_path: Path) -> None:
    logs = DaemonLogs(on_host("node", tmp_path, tmp_path), HandClock())
    with contextlib.closing(logs):
        assert logs.collect().problem is None
        (tmp_path / "server.log").mkdir()
        (tmp_path / "control.log").write_text("line\n")
        reading = logs.collect()

    assert [each.line for each in reading.observations if isinstance(each, LogLine)] == ["line"]
    assert reading.problem == not_a_file(tmp_path / "server.log")


def test_one_whose_logs_turn_out_to_be_others_is_followed_in_those(tmp_path: Path) -> None:
    location = on_host("node", tmp_path, tmp_path)
    logs = DaemonLogs(location, HandClock())
    with contextlib.closing(logs):
        logs.collect()
        logs.location = replace(location, logs=("stdout.log",))
        told = [each for each in logs.collect().observations if isinstance(each, LogFile)]
        for name in ("control.log", "stdout.log"):
            (tmp_path / name).write_text(f"line of {name}\n")
        lines = [each for each in logs.collect().observations if isinstance(each, LogLine)]

    assert [(each.file, each.line) for each in lines] == [("stdout.log", "line of stdout.log")]
    assert sorted((each.file, each.followed) for each in told) == [
        ("control.log", False),
        ("server.log", False),
        ("stdout.log", True),
    ]


def test_a_log_that_is_not_there_is_no_failure_of_the_source(log: Followed) -> None:
    """A daemon may not have begun to write; that it is not there is told all the same."""
    reading = log.follower.collect()

    assert reading.problem is None
    assert [each.problem for each in reading.observations if isinstance(each, LogFile)] == [absent(log.path)]


def sizes(log: Followed) -> list[int | None]:
    """The sizes that the next look tells."""
    return [each.size for each in log.seen() if isinstance(each, LogFile)]


class TestSize:
    """How long a log is, told seldom."""

    def test_it_is_told_when_the_log_is_found_and_with_every_mebibyte(self, log: Followed) -> None:
        """What lies between is no news."""
        assert sizes(log) == [None]
        log.write("x\n")
        assert sizes(log) == [2]
        log.write("y\n")
        assert sizes(log) == []
        log.write("z" * SIZE_STEP)
        assert sizes(log) == [SIZE_STEP + 4]

    def test_a_log_that_was_truncated_is_small_again(self, begun: Followed) -> None:
        """As copytruncate leaves it."""
        begun.write("z" * SIZE_STEP)
        assert sizes(begun) == [SIZE_STEP]
        os.truncate(begun.path, 0)
        assert sizes(begun) == [0]

    def test_a_renamed_log_counts_as_long_as_it_may_be_written_to(self, begun: Followed) -> None:
        """The daemon writes on into it, so that a rename alone rotates nothing."""
        begun.write("z" * SIZE_STEP)
        assert sizes(begun) == [SIZE_STEP]
        begun.path.rename(begun.path.with_suffix(".1"))
        begun.write("new\n")
        assert sizes(begun) == []
        begun.clock.time += REPLACED_SECONDS
        assert sizes(begun) == [4]


def test_a_look_without_news_reads_sizes_alone_and_the_next_line_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "control.log"
    log.write_text("old\n")
    (tmp_path / "server.log").write_text("")
    logs = DaemonLogs(on_host("node", tmp_path, tmp_path), HandClock())
    logs.collect()
    with monkeypatch.context() as patch:
        patch.setattr(LogFollower, "collect", lambda *_: pytest.fail("nothing is new"))
        assert logs.collect() == Reading()

    with log.open("a") as stream:
        stream.write("new\n")

    assert [each.line for each in logs.collect().observations if isinstance(each, LogLine)] == ["new"]
    logs.close()
