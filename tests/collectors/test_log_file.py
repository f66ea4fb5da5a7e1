"""LogFollower: each line once, through rotation, truncation and removal, and with hostile files at the path."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from exporter.collectors.logs import (
    CHUNK,
    MAX_LINE,
    MAX_LINES,
    MAX_OPEN,
    PATH_CHECK_SECONDS,
    REPLACED_SECONDS,
    SIZE_STEP,
    DaemonLogs,
    LogFollower,
)
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.thread import Reading
from exporter.model.observation import LogFile, LogGap, LogLine, Observation
from exporter.model.reason import Reason, ReasonCode
from tests.builders import absent, denied, not_a_file
from tests.clocks import HandClock

UNPRIVILEGED_UID = 65534


@dataclass(slots=True)
class FollowedLog:
    """A log file and its follower."""

    path: Path
    clock: HandClock = field(default_factory=HandClock)
    problem: Reason | None = None

    def __post_init__(self) -> None:
        self.follower = LogFollower(on_host("node", self.path.parent, self.path.parent), self.path.name, self.clock)

    def write(self, text: str | bytes) -> None:
        with self.path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def collect(self) -> list[str]:
        observations = self.observe()
        for each in observations:
            self.problem = each.problem if isinstance(each, LogFile) else self.problem
        return [each.line for each in observations if isinstance(each, LogLine)]

    def states(self) -> list[Reason | None]:
        return [each.problem for each in self.observe() if isinstance(each, LogFile)]

    def lost(self) -> list[int]:
        return [each.lines for each in self.observe() if isinstance(each, LogGap)]

    def observe(self) -> Sequence[Observation]:
        self.clock.time += PATH_CHECK_SECONDS
        return self.follower.collect().observations

    follower: LogFollower = field(init=False)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FollowedLog]:
    """A control.log that does not exist yet."""
    followed = FollowedLog(tmp_path / "control.log")
    yield followed
    followed.follower.close()


@pytest.fixture
def opened(log: FollowedLog) -> FollowedLog:
    log.write("")
    assert log.collect() == []
    return log


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- first read ----------------------------------------------------------------------------------------------------


def test_reads_an_existing_file_from_its_end(log: FollowedLog) -> None:
    log.write("old\n")

    assert log.collect() == []
    log.write("new\n")
    assert log.collect() == ["new"]
    assert log.collect() == []


def test_reads_a_file_that_appears_later_from_its_beginning(log: FollowedLog) -> None:
    assert log.collect() == []
    log.write("first\nsecond\n")

    assert log.collect() == ["first", "second"]


def test_discards_the_rest_of_a_line_that_began_before_the_first_read(log: FollowedLog) -> None:
    log.write("old, and torn")

    assert log.collect() == []
    log.write(" to here\nnew\n")
    assert log.collect() == ["new"]


def test_a_line_has_its_daemon_file_and_time(opened: FollowedLog) -> None:
    opened.clock.time = 1234.5
    opened.write("line\n")

    assert opened.follower.collect().observations == (
        LogLine(at=1234.5, daemon="node", file="control.log", line="line"),
    )


def test_reads_a_file_from_its_end_if_it_was_unreadable_at_first(log: FollowedLog) -> None:
    log.write("old\n")
    with unreadable(log.path):
        log.collect()
        assert log.problem == denied(log.path)

    assert log.collect() == []
    log.write("new\n")
    assert log.collect() == ["new"]


# -- lines ---------------------------------------------------------------------------------------------------------


def test_waits_for_the_end_of_a_partial_line(opened: FollowedLog) -> None:
    opened.write("to")
    assert opened.collect() == []
    opened.write("rn\nwhole\nagain to")
    assert opened.collect() == ["torn", "whole"]
    opened.write("rn\n")
    assert opened.collect() == ["again torn"]


def test_joins_a_character_that_arrives_in_two_parts(opened: FollowedLog) -> None:
    opened.write("caf\u00e9\n".encode()[:4])
    assert opened.collect() == []
    opened.write("caf\u00e9\n".encode()[4:])
    assert opened.collect() == ["caf\u00e9"]


def test_decodes_a_line_of_any_bytes(opened: FollowedLog) -> None:
    opened.write(b"\xff\xfe \0\x1b[31m\r\n\xc3\n\n")

    assert opened.collect() == ["\ufffd\ufffd \0\x1b[31m\r", "\ufffd", ""]


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_truncates_only_the_overlong_line(opened: FollowedLog, pieces: int) -> None:
    opened.write("before\n")
    lines = opened.collect()
    for _ in range(pieces):
        opened.write("x" * (2 * MAX_LINE))
        lines += opened.collect()
    opened.write("end of it\nafter\n")
    lines += opened.collect()

    assert (lines[0], lines[-1]) == ("before", "after")
    assert len(lines) <= 3
    assert all(len(line) <= MAX_LINE for line in lines)


def test_reads_a_long_line_alike_at_once_and_in_pieces(tmp_path: Path) -> None:
    at_once, in_pieces = FollowedLog(tmp_path / "at_once"), FollowedLog(tmp_path / "in_pieces")
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
    return f"[2026-11-20 15:08:45.147 Server   599] Client process {number} disconnected"


def lines_of(numbers: range) -> str:
    return "".join(f"{known(number)}\n" for number in numbers)


def test_reads_a_burst_within_the_budget_in_parts_and_in_order(opened: FollowedLog) -> None:
    written = range(4 * MAX_LINES)
    opened.write(lines_of(written) + "torn")

    collections = []
    while lines := opened.collect():
        collections.append(lines)

    assert max(map(len, collections)) <= MAX_LINES + CHUNK // len(known(0))
    assert [line for lines in collections for line in lines] == list(map(known, written))
    opened.write(" and complete\n")
    assert opened.collect() == ["torn and complete"]


def test_a_reading_reports_whether_text_remains_unread(opened: FollowedLog) -> None:
    opened.write(lines_of(range(MAX_LINES + CHUNK // len(known(0)) + 1)) + "torn")

    assert [opened.follower.collect().more for _ in range(3)] == [True, False, False]


def test_a_renamed_log_does_not_double_the_lines_of_one_collection(opened: FollowedLog) -> None:
    old, new = range(2 * MAX_LINES), range(10_000, 10_000 + 2 * MAX_LINES)
    opened.write(lines_of(old))
    opened.path.rename(opened.path.with_suffix(".1"))
    opened.write(lines_of(new))

    collections = []
    while lines := opened.collect():
        collections.append(lines)

    assert max(map(len, collections)) <= MAX_LINES + CHUNK // len(known(0))
    assert [line for lines in collections for line in lines] == [known(number) for number in (*old, *new)]


# -- truncation, rename, removal -----------------------------------------------------------------------------------


def test_reads_a_truncated_file_from_its_beginning(opened: FollowedLog) -> None:
    opened.write("one\ntwo, and torn")
    assert opened.collect() == ["one"]
    os.truncate(opened.path, 0)
    assert opened.collect() == []
    opened.write("three\n")

    assert opened.collect() == ["three"]


def test_reads_a_file_that_was_truncated_and_written_between_two_collections(opened: FollowedLog) -> None:
    opened.write("a line of some length\n")
    opened.collect()
    os.truncate(opened.path, 0)
    opened.write("short\n")

    assert opened.collect() == ["short"]


def test_counts_the_known_loss_of_a_truncation(opened: FollowedLog) -> None:
    opened.write("read\n")
    opened.collect()
    os.truncate(opened.path, 0)
    assert opened.lost() == []
    opened.write(lines_of(range(4 * MAX_LINES)))
    opened.collect()
    os.truncate(opened.path, 0)
    assert opened.lost() == [1]
    opened.write("torn")
    opened.collect()
    os.truncate(opened.path, 0)
    assert opened.lost() == [1]

    opened.write("new\n")
    assert opened.collect() == ["new"]


def test_reads_a_truncated_file_from_its_beginning_if_it_has_grown_past_the_read_position(opened: FollowedLog) -> None:
    opened.write(lines_of(range(2 * MAX_LINES)))
    opened.collect()
    os.truncate(opened.path, 0)
    opened.write(lines_of(range(MAX_LINES)))

    assert opened.collect() == [known(number) for number in range(MAX_LINES)]


def test_the_discarded_rest_of_an_old_line_does_not_count_as_lost(log: FollowedLog) -> None:
    log.write("old, and torn")
    log.collect()
    log.write(" still")
    log.collect()
    os.truncate(log.path, 0)

    assert log.lost() == []


def test_reads_the_open_file_at_every_collection_and_checks_the_path_less_often(opened: FollowedLog) -> None:
    with opened.path.open("a") as daemon_stream:
        opened.path.rename(opened.path.with_suffix(".1"))
        opened.write("into the new one\n")
        daemon_stream.write("into the renamed one\n")
        daemon_stream.flush()
        observations = opened.follower.collect().observations

        assert [each.line for each in observations if isinstance(each, LogLine)] == ["into the renamed one"]
        assert opened.collect() == ["into the new one"]


def test_follows_the_renamed_file_and_the_new_one(opened: FollowedLog) -> None:
    opened.write("before\n")
    opened.collect()
    with opened.path.open("a") as daemon_stream:
        opened.path.rename(opened.path.with_suffix(".1"))
        daemon_stream.write("into the renamed one\n")
        daemon_stream.flush()
        assert opened.collect() == ["into the renamed one"]
        assert opened.problem == absent(opened.path)

        opened.write("into the new one\n")
        assert opened.collect() == ["into the new one"]
        assert opened.problem is None

        daemon_stream.write("still into the renamed one\n")
        daemon_stream.flush()
        opened.write("and the new one\n")
        assert opened.collect() == ["still into the renamed one", "and the new one"]


def test_reads_a_removed_file_that_is_created_again(opened: FollowedLog) -> None:
    opened.write("one\n")
    opened.collect()
    opened.path.unlink()
    assert opened.states() == [absent(opened.path)]
    opened.write("two\n")

    assert opened.collect() == ["two"]
    assert opened.problem is None


def test_finds_a_log_in_a_directory_that_appears_later(tmp_path: Path) -> None:
    log = FollowedLog(tmp_path / "log" / "control.log")
    log.collect()
    assert log.problem == absent(log.path)
    log.path.parent.mkdir()
    log.write("one\n")
    assert log.collect() == ["one"]
    log.follower.close()


def test_reports_a_problem_only_when_it_changes(log: FollowedLog) -> None:
    assert log.states() == [absent(log.path)]
    assert log.states() == []
    log.write("")
    assert log.states() == [None]
    assert log.states() == []


def test_many_rotations_leave_few_open_files(opened: FollowedLog) -> None:
    before = descriptors()
    for n in range(50):
        opened.path.rename(opened.path.with_suffix(f".{n}"))
        opened.write(f"{n}\n")
        assert opened.collect() == [f"{n}"]

    assert descriptors() - before <= MAX_OPEN


def test_closes_a_rotated_file_without_new_lines(opened: FollowedLog) -> None:
    before = descriptors()
    opened.path.rename(opened.path.with_suffix(".1"))
    opened.write("new\n")
    opened.collect()
    assert descriptors() == before + 1

    opened.clock.time += REPLACED_SECONDS + 1
    opened.collect()
    assert descriptors() == before


def test_joins_a_line_whose_file_was_closed_and_returns_to_the_path(opened: FollowedLog) -> None:
    aside = opened.path.with_suffix(".1")
    opened.write("whole\nto")
    assert opened.collect() == ["whole"]
    opened.path.rename(aside)
    opened.write("new\n")
    opened.collect()
    opened.clock.time += REPLACED_SECONDS + 1
    opened.collect()

    aside.rename(opened.path)
    opened.write("rn\n")
    assert opened.collect() == ["torn"]


# -- other kinds of files ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Make a file unreadable for this user. Root becomes an unprivileged user meanwhile."""
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(UNPRIVILEGED_UID)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(0o644)


def test_reports_an_unreadable_file_until_it_can_be_read(log: FollowedLog) -> None:
    log.write("")
    with unreadable(log.path):
        assert log.collect() == []
        assert log.problem == denied(log.path)

    assert log.collect() == []
    assert log.problem is None


def test_a_link_to_the_open_log_is_no_log(opened: FollowedLog) -> None:
    opened.path.rename(opened.path.with_suffix(".1"))
    opened.path.symlink_to(opened.path.with_suffix(".1"))
    opened.collect()
    assert opened.problem == not_a_file(opened.path)


def test_does_not_follow_a_symbolic_link(log: FollowedLog, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    log.collect()
    log.path.symlink_to(tmp_path / "secret")

    assert log.collect() == []
    assert log.problem is not None
    assert log.problem.code is ReasonCode.WRONG_FILE_TYPE


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_reports_an_irregular_file_without_hanging(log: FollowedLog, make: object) -> None:
    before = descriptors()
    make(log.path)  # type: ignore[operator]

    assert log.collect() == []
    assert log.collect() == []
    assert log.problem == not_a_file(log.path)
    assert descriptors() == before


def test_follows_the_open_log_if_a_fifo_replaces_its_path(opened: FollowedLog) -> None:
    with opened.path.open("a") as daemon_stream:
        opened.path.rename(opened.path.with_suffix(".1"))
        os.mkfifo(opened.path)
        daemon_stream.write("on and on\n")
        daemon_stream.flush()

        assert opened.collect() == ["on and on"]
    assert opened.problem == not_a_file(opened.path)


# -- both logs of a daemon -----------------------------------------------------------------------------------------


def test_an_unreadable_log_is_a_failure_of_the_collector_and_an_absent_one_is_not(tmp_path: Path) -> None:
    logs = DaemonLogs(on_host("node", tmp_path, tmp_path), HandClock())
    with contextlib.closing(logs):
        assert logs.collect().problem is None
        (tmp_path / "server.log").mkdir()
        (tmp_path / "control.log").write_text("line\n")
        reading = logs.collect()

    assert [each.line for each in reading.observations if isinstance(each, LogLine)] == ["line"]
    assert reading.problem == not_a_file(tmp_path / "server.log")


def test_follows_other_files_if_the_location_changes(tmp_path: Path) -> None:
    location = on_host("node", tmp_path, tmp_path)
    logs = DaemonLogs(location, HandClock())
    with contextlib.closing(logs):
        logs.collect()
        logs.location = replace(location, logs=("stdout.log",))
        states = [each for each in logs.collect().observations if isinstance(each, LogFile)]
        for name in ("control.log", "stdout.log"):
            (tmp_path / name).write_text(f"line of {name}\n")
        lines = [each for each in logs.collect().observations if isinstance(each, LogLine)]

    assert [(each.file, each.line) for each in lines] == [("stdout.log", "line of stdout.log")]
    assert sorted((each.file, each.followed) for each in states) == [
        ("control.log", False),
        ("server.log", False),
        ("stdout.log", True),
    ]


def sizes(log: FollowedLog) -> list[int | None]:
    return [each.size for each in log.observe() if isinstance(each, LogFile)]


class TestSize:
    """The reported size of a log, which is updated rarely."""

    def test_reports_the_size_of_a_new_log_and_after_every_mebibyte(self, log: FollowedLog) -> None:
        """Smaller changes cause no observation."""
        assert sizes(log) == [None]
        log.write("x\n")
        assert sizes(log) == [2]
        log.write("y\n")
        assert sizes(log) == []
        log.write("z" * SIZE_STEP)
        assert sizes(log) == [SIZE_STEP + 4]

    def test_reports_the_small_size_of_a_truncated_log(self, opened: FollowedLog) -> None:
        """The `copytruncate` option of logrotate truncates logs."""
        opened.write("z" * SIZE_STEP)
        assert sizes(opened) == [SIZE_STEP]
        os.truncate(opened.path, 0)
        assert sizes(opened) == [0]

    def test_a_renamed_log_counts_while_the_daemon_may_write_to_it(self, opened: FollowedLog) -> None:
        """The daemon continues to write to the renamed file, so that a rename alone rotates nothing."""
        opened.write("z" * SIZE_STEP)
        assert sizes(opened) == [SIZE_STEP]
        opened.path.rename(opened.path.with_suffix(".1"))
        opened.write("new\n")
        assert sizes(opened) == []
        opened.clock.time += REPLACED_SECONDS
        assert sizes(opened) == [4]


def test_reads_only_sizes_if_nothing_is_new_and_still_finds_the_next_line(
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
