"""Journal tells each line of a foreground daemon once, believes no other writer, and counts what journald lost."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from exporter.collectors.child import LONGEST_LINE
from exporter.collectors.journal import DEADLINE_SECONDS, RETRY_SECONDS, Journal
from exporter.collectors.thread import Reading
from exporter.model.observation import LogFile, LogGap, LogLine
from exporter.model.problem import Problem, ProblemCode, command_failed, timed_out
from exporter.parse.systemd import SUPPRESSED_MESSAGE_ID
from exporter.report.problem_text import JOURNAL, problem_text
from tests.clocks import HandClock
from tests.eventually import eventually
from tests.standin.journald import BURST, Journald
from tests.tools import not_here

UNIT = "nvidia-mps.service"

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@dataclass(slots=True)
class Followed:
    """A journal that is followed, and all that was told of it."""

    journal: Journal
    clock: HandClock
    lines: list[str] = field(default_factory=list)
    files: list[Problem | None] = field(default_factory=list)
    lost: int = 0

    def collect(self) -> Reading:
        """Look once, and take note."""
        reading = self.journal.collect()
        for seen in reading.observations:
            assert isinstance(seen, LogLine | LogFile | LogGap)
            assert seen.file == "stdout"
            if isinstance(seen, LogLine):
                self.lines.append(seen.line)
            elif isinstance(seen, LogFile):
                self.files.append(seen.problem)
            else:
                self.lost += seen.lines
        return reading

    def until(self, *lines: str, lost: int = 0) -> None:
        """Look until all of these lines, in this order, have been told, and nothing else."""

        def told() -> None:
            self.collect()
            assert (self.lines, self.lost) == (list(lines), lost)

        eventually(told)
        self.lines.clear()
        self.lost = 0

    def until_told(self, *files: Problem | None) -> None:
        """Look until this has been told of the journal itself."""

        def told() -> None:
            self.collect()
            assert self.files == list(files)

        eventually(told)
        self.files.clear()


# -- a journalctl of our own -----------------------------------------------------------------------------------------

_JOURNALCTL = """#!/bin/sh
cd {directory} && echo "$*" >>asked
case "$*" in
*--follow*) while [ ! -s follow ]; do sleep 0.02; done; cat follow; . ./after ;;
*) cat end; . ./find ;;
esac
"""


@dataclass(slots=True)
class Scripted:
    """A `journalctl` that says what a test wants: `end` when asked for the end, `follow` when it follows."""

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.path.write_text(_JOURNALCTL.format(directory=self.directory))
        self.path.chmod(0o755)
        self.says(end="", find="", follow="", after="exec sleep 600")

    @property
    def path(self) -> Path:
        """The command."""
        return self.directory / "journalctl"

    def says(self, **parts: str | bytes) -> None:
        """Say this from now on; nothing is read half written."""
        for name, said in parts.items():
            draft = self.directory / "draft"
            draft.write_bytes(said.encode() if isinstance(said, str) else said)
            draft.rename(self.directory / name)

    @property
    def asked(self) -> list[str]:
        """The arguments of every call."""
        return (self.directory / "asked").read_text().splitlines()


def entries(*messages: object, start: int = 1, **changed: object) -> str:
    """Lines of the daemon as journalctl writes them, with cursors c1, c2 and so on."""
    said = {
        "_TRANSPORT": "stdout",
        "_SYSTEMD_UNIT": UNIT,
        "_EXE": "/usr/bin/nvidia-cuda-mps-control",
        "_STREAM_ID": "1",
    }
    return "".join(
        json.dumps({"__CURSOR": f"c{n}", **said, "MESSAGE": message, **changed}) + "\n"
        for n, message in enumerate(messages, start)
    )


@pytest.fixture
def journalctl(tmp_path: Path) -> Scripted:
    return Scripted(tmp_path / "scripted")


@pytest.fixture
def log(journalctl: Scripted) -> Iterator[Followed]:
    """The unit's journal, followed by way of that command."""
    clock = HandClock()
    with contextlib.closing(Journal(clock, executable=str(journalctl.path))) as journal:
        journal.follow({"node": UNIT})
        yield Followed(journal, clock)


def test_what_was_there_first_is_not_told(journalctl: Scripted, log: Followed) -> None:
    journalctl.says(end=entries("old"), follow=entries("old", "new"))
    log.until("new")

    assert log.files == [None]
    find, follow = journalctl.asked
    assert "--lines=1" in find
    assert "--cursor=c1" in follow
    assert "--follow" in follow
    assert f"_SYSTEMD_UNIT={UNIT} _TRANSPORT=stdout + _TRANSPORT=driver MESSAGE_ID={SUPPRESSED_MESSAGE_ID}" in follow


def test_of_a_unit_that_never_spoke_everything_is_new(journalctl: Scripted, log: Followed) -> None:
    journalctl.says(follow=entries("first", "second"))
    log.until("first", "second")

    assert "--cursor" not in journalctl.asked[-1]


def test_a_journalctl_that_ends_is_followed_by_another_from_the_last_line_told(
    journalctl: Scripted, log: Followed, tmp_path: Path
) -> None:
    """It ends once it has been followed: one that had ended by the first look never was."""
    heard = tmp_path / "heard"
    after = f"until [ -e {heard} ]; do sleep 0.05; done; exit 1"
    journalctl.says(end=entries("old"), follow=entries("old", "one", "two"), after=after)
    log.until("one", "two")
    heard.touch()
    log.until_told(None, command_failed(f"{journalctl.path} --unit={UNIT}", 1, ""))

    journalctl.says(
        end=entries("four", start=4), follow=entries("two", "three", "four", start=3), after="exec sleep 600"
    )
    log.clock.time += RETRY_SECONDS
    log.until("three", "four")
    assert log.files == [None]
    assert "--cursor=c3" in journalctl.asked[-1]


def test_it_is_not_tried_again_at_every_look(journalctl: Scripted, log: Followed) -> None:
    journalctl.says(find="exit 1")
    log.until_told(command_failed(f"{journalctl.path} --unit={UNIT}", 1, ""))
    for _ in range(20):
        assert log.collect().problem is not None

    assert len(journalctl.asked) == 1


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("No journal files were opened due to insufficient permissions.", "group systemd-journal"),
        ("No journal files were found.", "Storage="),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_a_journal_that_cannot_be_read_says_what_to_do(
    journalctl: Scripted, log: Followed, said: str, advice: str, code: int
) -> None:
    journalctl.says(find=f"echo '{said}' >&2; exit {code}")

    def told() -> None:
        problem = log.collect().problem
        assert problem is not None
        assert problem.detail == said
        assert advice in problem_text(problem, JOURNAL)

    eventually(told)


def test_without_journalctl_there_is_a_problem_and_nothing_else() -> None:
    journal = Journal(HandClock(), executable="/nowhere/journalctl")
    assert journal.collect() == Reading(idle=True)
    journal.follow({"node": UNIT})
    reading = journal.collect()

    problem = Problem(
        code=ProblemCode.COMMAND_NOT_STARTED, subject="/nowhere/journalctl", detail="No such file or directory"
    )
    assert reading == Reading((LogFile(at=1000.0, daemon="node", file="stdout", problem=problem),), problem)
    assert journal.collect() == Reading((), problem)


def test_a_journalctl_that_does_not_answer_is_a_problem(journalctl: Scripted, log: Followed) -> None:
    journalctl.says(find="exec sleep 600")
    assert log.collect() == Reading()
    log.clock.time += DEADLINE_SECONDS + 1

    assert log.collect().problem == timed_out(f"{journalctl.path} --unit={UNIT}", DEADLINE_SECONDS)


def test_another_writer_in_the_unit_is_not_heard(journalctl: Scripted, log: Followed) -> None:
    forged = entries("forged", _EXE="/home/mallory/train") + entries("forged", start=2, _TRANSPORT="journal")
    journalctl.says(follow=forged + entries("true", start=3))

    log.until("true")


@pytest.mark.parametrize("cut", ["line-max", "nul"])
def test_the_rest_of_a_line_that_journald_cut_is_no_line(journalctl: Scripted, log: Followed, cut: str) -> None:
    said = (
        entries("the head of ", _LINE_BREAK=cut),
        entries("a line ", start=2, _LINE_BREAK=cut),
        entries("another's", start=3, _STREAM_ID="2"),
        entries("that might forge one", "whole", start=4),
    )
    journalctl.says(follow="".join(said))

    log.until("another's", "whole", lost=1)


def test_what_was_lost_is_counted(journalctl: Scripted, log: Followed) -> None:
    told = {"_TRANSPORT": "driver", "MESSAGE_ID": SUPPRESSED_MESSAGE_ID, "_SYSTEMD_UNIT": "systemd-journald.service"}
    suppressed = entries(f"Suppressed 71 messages from {UNIT}", start=2, N_DROPPED="71", **told)
    others = entries("Suppressed 5 messages from cron.service", start=3, N_DROPPED="5", **told)
    journalctl.says(follow=entries("one") + suppressed + others + entries(None, "two", start=4) + "no entry\n")

    log.until("one", "two", lost=71 + 1 + 1)


def test_a_line_without_end_costs_itself_alone(journalctl: Scripted, log: Followed) -> None:
    journalctl.says(follow=entries("before") + "x" * (5 * LONGEST_LINE) + "\n" + entries("after", start=2))

    log.until("before", "after", lost=1)


def test_of_a_large_burst_nothing_is_lost(journalctl: Scripted, log: Followed) -> None:
    lines = [f"line {n} {'.' * 200}" for n in range(10_000)]
    journalctl.says(follow=entries(*lines))

    log.until(*lines)


def test_who_is_followed_may_change(journalctl: Scripted, log: Followed) -> None:
    journalctl.says(follow=entries("one"))
    log.until("one")
    log.journal.follow({})
    log.files.clear()
    log.collect()

    assert log.files == [Problem(code=ProblemCode.NOT_FOLLOWED, subject=UNIT)]
    assert log.collect() == Reading(idle=True)
    assert psutil.Process().children() == []


def test_another_unit_is_followed_instead_and_from_its_end(journalctl: Scripted, log: Followed) -> None:
    journalctl.says(end=entries("one"), follow=entries("one"))
    log.until_told(None)
    log.journal.follow({"node": "other.service"})
    journalctl.says(end=entries("old", start=8), follow=entries("old", "new", start=8, _SYSTEMD_UNIT="other.service"))

    log.until("new")
    assert log.files == [Problem(code=ProblemCode.NOT_FOLLOWED, subject=UNIT), None]


def test_the_child_gets_nothing_of_our_environment(
    journalctl: Scripted, log: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    journalctl.says(find=f"env >{journalctl.directory}/environment")
    log.until_told(None)

    names = {line.partition("=")[0] for line in (journalctl.directory / "environment").read_text().splitlines()}
    assert names <= {"PATH", "LC_ALL", "PWD", "OLDPWD", "SHLVL", "_"}


def test_closed_it_looks_no_more(journalctl: Scripted, log: Followed) -> None:
    journalctl.says(follow=entries("one"))
    log.until("one")
    log.journal.close()

    assert log.collect() == Reading()
    assert psutil.Process().children() == []


# -- a real journald -------------------------------------------------------------------------------------------------


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    """A real one, in a namespace of its own."""
    if os.geteuid() != 0:
        not_here("only root can make a mount namespace")
    journald = Journald(tmp_path)
    with contextlib.closing(journald):
        journald.open()
        yield journald


@pytest.fixture
def followed(journald: Journald) -> Iterator[Followed]:
    """The real journal, followed from its end."""
    clock = HandClock()
    with contextlib.closing(Journal(clock, executable=str(journald.journalctl))) as journal:
        journal.follow({"node": journald.unit})
        log = Followed(journal, clock)
        log.until_told(None)
        yield log


def test_a_real_journal_is_followed_through_rotation_and_restarts(journald: Journald, followed: Followed) -> None:
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


def test_in_a_real_journal_only_the_daemon_is_believed(journald: Journald, followed: Followed) -> None:
    journald.writer("train").write("forged")
    journald.writer("nvidia-cuda-mps-server").write("the server")
    followed.until("the server")

    daemon = journald.writer()
    daemon.write("x" * 5000, "y" * 60_000 + "forged", b"head\0forged", "whole")
    followed.until("whole", lost=3)


def test_what_a_real_journald_let_fall_is_counted(journald: Journald, followed: Followed) -> None:
    """It tells when it next takes a line of that unit."""
    said = [f"{n}" for n in range(20 * BURST)]
    daemon = journald.writer()
    daemon.write(*said)

    def told() -> None:
        daemon.write("more")
        followed.collect()
        assert followed.lost

    eventually(told, every=0.3)
    assert followed.lines[0] == "0"
    assert len(followed.lines) < len(said)


def test_a_journal_that_another_user_may_not_read_is_a_problem(journald: Journald) -> None:
    as_nobody = journald.journalctl.with_name("as_nobody")
    inside = journald.journalctl.read_text().replace(
        "journalctl ", "setpriv --reuid=65534 --regid=65534 --clear-groups journalctl "
    )
    as_nobody.write_text(inside)
    as_nobody.chmod(0o755)
    with contextlib.closing(Journal(HandClock(), executable=str(as_nobody))) as journal:
        journal.follow({"node": journald.unit})

        def told() -> None:
            problem = journal.collect().problem
            assert problem is not None
            assert problem.code is ProblemCode.PERMISSION_DENIED

        eventually(told)
