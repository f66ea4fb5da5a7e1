"""The journal of a foreground daemon: each line once, no line of another writer, and a count of lost lines."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from exporter.collectors.child import LONGEST_LINE
from exporter.collectors.systemd import DEADLINE_SECONDS, RETRY_SECONDS, Journal
from exporter.collectors.thread import Reading
from exporter.model.node import CollectorName
from exporter.model.observation import LogFile, LogGap, LogLine
from exporter.model.reason import Reason, ReasonCode, command_failed, timed_out
from exporter.parse.systemd import SUPPRESSED_MESSAGE_ID
from exporter.report.reasons import reason_text
from tests.clocks import HandClock
from tests.eventually import eventually
from tests.standin.journald import BURST, Journald
from tests.tools import not_here

UNIT = "nvidia-mps.service"

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@dataclass(slots=True)
class FollowedJournal:
    """A followed journal and all observations of it."""

    journal: Journal
    clock: HandClock
    lines: list[str] = field(default_factory=list)
    states: list[Reason | str | None] = field(default_factory=list)
    lost: int = 0

    def collect(self) -> Reading:
        reading = self.journal.collect()
        for each in reading.observations:
            assert isinstance(each, LogLine | LogFile | LogGap)
            assert each.file == "stdout"
            if isinstance(each, LogLine):
                self.lines.append(each.line)
            elif isinstance(each, LogFile):
                self.states.append(each.problem if each.followed else "not a log")
            else:
                self.lost += each.lines
        return reading

    def until(self, *lines: str, lost: int = 0) -> None:
        def check() -> None:
            self.collect()
            assert (self.lines, self.lost) == (list(lines), lost)

        eventually(check)
        self.lines.clear()
        self.lost = 0

    def until_states(self, *states: Reason | None) -> None:
        def check() -> None:
            self.collect()
            assert self.states == list(states)

        eventually(check)
        self.states.clear()


# -- a fake journalctl ------------------------------------------------------------------------------------------------

_JOURNALCTL = """#!/bin/sh
cd {directory} && echo "$*" >>calls
case "$*" in
*--follow*) while [ ! -s follow ]; do sleep 0.02; done; cat follow; . ./after ;;
*) cat end; . ./find ;;
esac
"""


@dataclass(slots=True)
class FakeJournalctl:
    """A `journalctl` that prints the file `end` if called for the last entry, and `follow` with `--follow`."""

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.path.write_text(_JOURNALCTL.format(directory=self.directory))
        self.path.chmod(0o755)
        self.set(end="", find="", follow="", after="exec sleep 600")

    @property
    def path(self) -> Path:
        return self.directory / "journalctl"

    def set(self, **parts: str | bytes) -> None:
        """Replace what the command prints and runs. Each part is replaced atomically."""
        for name, content in parts.items():
            draft = self.directory / "draft"
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
            draft.rename(self.directory / name)

    @property
    def calls(self) -> list[str]:
        return (self.directory / "calls").read_text().splitlines()


def entries(*messages: object, start: int = 1, **changed: object) -> str:
    fields = {
        "_TRANSPORT": "stdout",
        "_SYSTEMD_UNIT": UNIT,
        "_EXE": "/usr/bin/nvidia-cuda-mps-control",
        "_STREAM_ID": "1",
    }
    return "".join(
        json.dumps({"__CURSOR": f"c{n}", **fields, "MESSAGE": message, **changed}) + "\n"
        for n, message in enumerate(messages, start)
    )


@pytest.fixture
def journalctl(tmp_path: Path) -> FakeJournalctl:
    return FakeJournalctl(tmp_path / "fake")


@pytest.fixture
def log(journalctl: FakeJournalctl) -> Iterator[FollowedJournal]:
    clock = HandClock()
    with contextlib.closing(Journal(clock, executable=str(journalctl.path))) as journal:
        journal.follow({"node": UNIT})
        yield FollowedJournal(journal, clock)


def test_skips_entries_older_than_the_start(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(end=entries("old"), follow=entries("old", "new"))
    log.until("new")

    assert log.states == [None]
    find, follow = journalctl.calls
    assert "--lines=1" in find
    assert "--cursor=c1" in follow
    assert "--follow" in follow
    assert f"_SYSTEMD_UNIT={UNIT} _TRANSPORT=stdout + _TRANSPORT=driver MESSAGE_ID={SUPPRESSED_MESSAGE_ID}" in follow


def test_reads_the_last_lines_once(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(end=entries("first", "last") + entries("other", start=3, _EXE="/usr/bin/sh"))
    state, lines = log.journal.journal_of("node", UNIT).tail()

    assert (state.problem, lines) == (None, ["first", "last"])


def test_reports_why_the_last_lines_cannot_be_read(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(find="echo No journal files were opened due to insufficient permissions. >&2")
    state, lines = log.journal.journal_of("node", UNIT).tail()

    assert state.problem is not None
    assert (state.problem.code, lines) == (ReasonCode.PERMISSION_DENIED, [])


def test_reads_all_entries_of_a_unit_without_earlier_entries(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(follow=entries("first", "second"))
    log.until("first", "second")

    assert "--cursor" not in journalctl.calls[-1]


def test_restarts_journalctl_after_the_last_line_that_was_read(
    journalctl: FakeJournalctl, log: FollowedJournal, tmp_path: Path
) -> None:
    """The command ends only after its lines were read. If it ended earlier, it would count as never started."""
    lines_read = tmp_path / "lines_read"
    after = f"until [ -e {lines_read} ]; do sleep 0.05; done; exit 1"
    journalctl.set(end=entries("old"), follow=entries("old", "one", "two"), after=after)
    log.until("one", "two")
    lines_read.touch()
    log.until_states(None, command_failed(f"{journalctl.path} --unit={UNIT}", 1, ""))

    journalctl.set(
        end=entries("four", start=4), follow=entries("two", "three", "four", start=3), after="exec sleep 600"
    )
    log.clock.time += RETRY_SECONDS
    log.until("three", "four")
    assert log.states == [None]
    assert "--cursor=c3" in journalctl.calls[-1]


def test_does_not_restart_journalctl_at_every_collection(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(find="exit 1")
    log.until_states(command_failed(f"{journalctl.path} --unit={UNIT}", 1, ""))
    for _ in range(20):
        assert log.collect().problem is not None

    assert len(journalctl.calls) == 1


@pytest.mark.parametrize(
    ("stderr", "advice"),
    [
        ("No journal files were opened due to insufficient permissions.", "group systemd-journal"),
        ("No journal files were found.", "Storage="),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_reports_what_to_do_about_an_unreadable_journal(
    journalctl: FakeJournalctl, log: FollowedJournal, stderr: str, advice: str, code: int
) -> None:
    journalctl.set(find=f"echo '{stderr}' >&2; exit {code}")

    def check() -> None:
        problem = log.collect().problem
        assert problem is not None
        assert problem.parameters.get("detail") == stderr
        assert advice in reason_text(problem, CollectorName.JOURNAL)

    eventually(check)


def test_reports_a_problem_without_journalctl() -> None:
    journal = Journal(HandClock(), executable="/nowhere/journalctl")
    assert journal.collect() == Reading(idle=True)
    journal.follow({"node": UNIT})
    reading = journal.collect()

    problem = Reason(ReasonCode.COMMAND_NOT_STARTED, subject="/nowhere/journalctl", detail="No such file or directory")
    assert reading == Reading((LogFile(at=1000.0, daemon="node", file="stdout", problem=problem),), problem)
    assert journal.collect() == Reading((), problem)


def test_reports_a_journalctl_that_does_not_answer(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(find="exec sleep 600")
    assert log.collect() == Reading()
    log.clock.time += DEADLINE_SECONDS + 1

    assert log.collect().problem == timed_out(f"{journalctl.path} --unit={UNIT}", DEADLINE_SECONDS)


def test_ignores_entries_of_other_writers_in_the_unit(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    forged = entries("forged", _EXE="/home/mallory/train") + entries("forged", start=2, _TRANSPORT="journal")
    journalctl.set(follow=forged + entries("genuine", start=3))

    log.until("genuine")


@pytest.mark.parametrize("cut", ["line-max", "nul"])
def test_discards_the_rest_of_a_line_that_journald_split(
    journalctl: FakeJournalctl, log: FollowedJournal, cut: str
) -> None:
    parts = (
        entries("the head of ", _LINE_BREAK=cut),
        entries("a line ", start=2, _LINE_BREAK=cut),
        entries("another's", start=3, _STREAM_ID="2"),
        entries("that might forge one", "whole", start=4),
    )
    journalctl.set(follow="".join(parts))

    log.until("another's", "whole", lost=1)


def test_counts_suppressed_and_unreadable_entries(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    notice = {"_TRANSPORT": "driver", "MESSAGE_ID": SUPPRESSED_MESSAGE_ID, "_SYSTEMD_UNIT": "systemd-journald.service"}
    suppressed = entries(f"Suppressed 71 messages from {UNIT}", start=2, N_DROPPED="71", **notice)
    others = entries("Suppressed 5 messages from cron.service", start=3, N_DROPPED="5", **notice)
    journalctl.set(follow=entries("one") + suppressed + others + entries(None, "two", start=4) + "no entry\n")

    log.until("one", "two", lost=71 + 1 + 1)


def test_discards_only_the_overlong_line(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(follow=entries("before") + "x" * (5 * LONGEST_LINE) + "\n" + entries("after", start=2))

    log.until("before", "after", lost=1)


def test_loses_nothing_of_a_large_burst(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    lines = [f"line {n} {'.' * 200}" for n in range(10_000)]
    journalctl.set(follow=entries(*lines))

    log.until(*lines)


def test_stops_following_a_unit(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(follow=entries("one"))
    log.until("one")
    log.journal.follow({})
    log.states.clear()
    log.collect()

    assert log.states == ["not a log"]
    assert log.collect() == Reading(idle=True)
    assert psutil.Process().children() == []


def test_follows_another_unit_from_its_end(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(end=entries("one"), follow=entries("one"))
    log.until_states(None)
    log.journal.follow({"node": "other.service"})
    journalctl.set(end=entries("old", start=8), follow=entries("old", "new", start=8, _SYSTEMD_UNIT="other.service"))

    log.until("new")
    assert log.states == ["not a log", None]


def test_passes_no_environment_to_journalctl(
    journalctl: FakeJournalctl, log: FollowedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    journalctl.set(find=f"env >{journalctl.directory}/environment")
    log.until_states(None)

    names = {line.partition("=")[0] for line in (journalctl.directory / "environment").read_text().splitlines()}
    assert names <= {"PATH", "LC_ALL", "PWD", "OLDPWD", "SHLVL", "_"}


def test_reads_nothing_after_close(journalctl: FakeJournalctl, log: FollowedJournal) -> None:
    journalctl.set(follow=entries("one"))
    log.until("one")
    log.journal.close()

    assert log.collect() == Reading()
    assert psutil.Process().children() == []


# -- a real journald -------------------------------------------------------------------------------------------------


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    if os.geteuid() != 0:
        not_here("only root can make a mount namespace")
    journald = Journald(tmp_path)
    with contextlib.closing(journald):
        journald.open()
        yield journald


@pytest.fixture
def followed(journald: Journald) -> Iterator[FollowedJournal]:
    clock = HandClock()
    with contextlib.closing(Journal(clock, executable=str(journald.journalctl))) as journal:
        journal.follow({"node": journald.unit})
        log = FollowedJournal(journal, clock)
        log.until_states(None)
        yield log


def test_follows_a_real_journal_through_rotation_and_restarts(journald: Journald, followed: FollowedJournal) -> None:
    daemon = journald.writer()
    daemon.write("one", b"\xff two", "")
    followed.until("one", "\ufffd two")

    journald.rotate()
    daemon.write("after the rotation")
    followed.until("after the rotation")

    daemon.close()
    daemon = journald.writer()
    daemon.write("another daemon")
    followed.until("another daemon")

    journald.kill()
    journald.start()
    journald.writer().write("after journald's restart")
    followed.until("after journald's restart")


def test_accepts_only_lines_of_the_daemon_in_a_real_journal(journald: Journald, followed: FollowedJournal) -> None:
    journald.writer("train").write("forged")
    journald.writer("nvidia-cuda-mps-server").write("the server")
    followed.until("the server")

    daemon = journald.writer()
    daemon.write("x" * 5000, "y" * 60_000 + "forged", b"head\0forged", "whole")
    followed.until("whole", lost=3)


def test_counts_the_lines_that_a_real_journald_suppressed(journald: Journald, followed: FollowedJournal) -> None:
    """Journald reports suppressed lines when it next accepts a line of that unit."""
    written = [f"{n}" for n in range(20 * BURST)]
    daemon = journald.writer()
    daemon.write(*written)

    def check() -> None:
        daemon.write("more")
        followed.collect()
        assert followed.lost

    eventually(check, every=0.3)
    assert followed.lines[0] == "0"
    assert len(followed.lines) < len(written)


def test_reports_a_journal_that_the_user_may_not_read(journald: Journald) -> None:
    unprivileged = journald.journalctl.with_name("unprivileged")
    inside = journald.journalctl.read_text().replace(
        "journalctl ", "setpriv --reuid=65534 --regid=65534 --clear-groups journalctl "
    )
    unprivileged.write_text(inside)
    unprivileged.chmod(0o755)
    with contextlib.closing(Journal(HandClock(), executable=str(unprivileged))) as journal:
        journal.follow({"node": journald.unit})

        def check() -> None:
            problem = journal.collect().problem
            assert problem is not None
            assert problem.code is ReasonCode.PERMISSION_DENIED

        eventually(check)
