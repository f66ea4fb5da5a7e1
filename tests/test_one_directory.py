"""One pipe directory is one daemon: a second name for it is refused, or reported as a duplicate and left alone."""

from pathlib import Path

import pytest

from exporter.cli import main, parse_arguments
from exporter.clock import SystemClock
from exporter.collectors.daemon_directory import DaemonDirectory
from exporter.collectors.daemon_processes import Identities, PidFile
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.proc import Proc
from exporter.config.load import Reloader, build_config
from exporter.errors import ConfigError
from exporter.metrics.catalogue import NodeCollector
from exporter.model.daemon import Daemon, Declaration
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, DaemonProcess
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode, PollIntervals
from exporter.reducer import reduce
from exporter.state import poll_schedule
from exporter.view import View
from exporter.watchdog.context import Policy
from exporter.watchdog.evaluation import evaluate
from tests.builders import AT, servers
from tests.config.reading import config, written
from tests.standin.mps import MpsStandIn


def check(path: str) -> int:
    """The exit code of --config.check for a file."""
    return main(["serve", "--config.check", f"--config.file={path}"])


SPELLINGS = ["/run/a/../a/pipe", "/run/a/pipe/", "//run/a/pipe", "/run/./a//pipe", "/run/b/../a/./pipe/"]


def two(first: str, second: str) -> str:
    """A configuration of two daemons in these directories."""
    return "".join(
        f'[[daemons]]\nname = "{name}"\npipe_directory = "{path}"\nlog_directory = "/log/{name}"\n'
        for name, path in (("a", first), ("b", second))
    )


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_configuration_refuses_one_directory_in_two_spellings(tmp_path: Path, spelling: str) -> None:
    with pytest.raises(
        ConfigError, match=r"daemons: 2 daemons have the pipe_directory '/run/a/pipe'.*each needs its own"
    ):
        config("serve", "--config.file", written(tmp_path, two("/run/a/pipe", spelling)))


def test_reload_refuses_one_directory_in_two_spellings(tmp_path: Path) -> None:
    parsed = parse_arguments(("serve", "--config.file", written(tmp_path, two("/run/a", "/run/b"))))
    reloader = Reloader(parsed, {}, build_config(parsed, {}))
    written(tmp_path, two("/run/a", "/run/b/../a"))

    after = reloader.reload()

    assert reloader.problem is not None
    assert [str(each.pipe_directory) for each in after.daemons] == ["/run/a", "/run/b"]


def test_a_flag_names_the_daemon_of_the_file_in_another_spelling(tmp_path: Path) -> None:
    path = written(tmp_path, two("/run/a", "/run/b"))
    (daemon,) = config("status", "--config.file", path, "--pipe-directory", "/run/b/../a").daemons
    assert daemon.name == "a"


def test_check_refuses_one_directory_behind_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pipe").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pipe")

    assert check(written(tmp_path, two(f"{tmp_path}/pipe", f"{tmp_path}/link"))) == 2

    error = capsys.readouterr().err
    assert f"'{tmp_path}/pipe' and '{tmp_path}/link' are the same directory" in error
    assert "remove one of the two" in error


def test_check_accepts_directories_that_are_not_there(tmp_path: Path) -> None:
    assert check(written(tmp_path, two(f"{tmp_path}/a", f"{tmp_path}/b"))) == 0


# -- at run time ---------------------------------------------------------------------------------------------------


def test_pid_files_report_a_second_name_as_a_duplicate(mps: MpsStandIn, tmp_path: Path) -> None:
    mps.start()
    link = tmp_path / "link"
    link.symlink_to(mps.pipe_directory)
    first, second = (on_host(name, path, mps.log_directory) for name, path in (("a", mps.pipe_directory), ("b", link)))
    identities, proc = Identities(), Proc(Path("/proc"), SystemClock())
    first_file, second_file = (PidFile(proc, SystemClock(), identities) for _ in range(2))

    (of_first,), (of_second,) = first_file.changed(first), second_file.changed(second)

    assert (of_first.pid, of_first.same_as) == (mps.pid, None)
    assert (of_second.pid, of_second.same_as) == (None, "a")
    assert (first_file.problem, second_file.problem) == (None, SHARED)
    assert (first_file.changed(first), second_file.changed(second)) == ((), ())

    link.unlink()
    link.mkdir()
    (again,) = second_file.changed(second)
    assert (again.daemon, again.pid, again.same_as) == ("b", None, None)
    assert second_file.problem is None


SHARED = Reason(ReasonCode.DIRECTORY_SHARED, subject="b", detail="a")


def test_threads_report_a_duplicate_as_their_problem(mps: MpsStandIn, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(mps.pipe_directory)
    mps.pipe_directory.mkdir(parents=True, exist_ok=True)
    clock, identities = SystemClock(), Identities()
    first, second = (
        DaemonDirectory(on_host(name, path, path), Proc(Path("/proc"), clock), clock, identities)
        for name, path in (("a", mps.pipe_directory), ("b", tmp_path / "link"))
    )
    identities.order = ("a", "b")

    assert second.collect().problem is None
    assert first.collect().problem is None
    assert second.collect().problem == SHARED


def named(name: str, path: str) -> Daemon:
    """A daemon that the configuration expects."""
    return Daemon(name=name, pipe_directory=path, log_directory=f"/log/{name}", declared=Declaration(expected=True))


def node() -> Node:
    """Two expected daemons, of which the second is found to be the first."""
    before = Node(daemons={"a": named("a", "/run/a"), "b": named("b", "/link")})
    after, events = reduce(before, DaemonProcess(at=AT, daemon="b", pid=None, same_as="a"))
    assert events == ()
    return after


def test_the_watchdog_waits_for_no_answer_of_a_duplicate() -> None:
    """As after the exporter was stopped for a while."""
    assert not poll_schedule.is_read_since(node(), AT)
    answered, _ = reduce(node(), servers(at=AT + 1, daemon="a"))
    assert poll_schedule.is_read_since(answered, AT)


def test_a_duplicate_is_neither_down_nor_asked_nor_restarted() -> None:
    doubled = node()
    metrics = {
        sample.labels["daemon"]
        for family in NodeCollector(View(doubled)).collect()
        for sample in family.samples
        if "daemon" in sample.labels
    }
    assert metrics == {"a"}
    assert poll_schedule.commands(doubled, "b", PollIntervals()) == ()
    assert poll_schedule.commands(doubled, "a", PollIntervals()) != ()
    for second in range(0, 600, 10):
        doubled, _, actions = evaluate(doubled, Policy(mode=Mode.ACT), at=AT + second, chance=0.0)
        assert {each.daemon for each in actions} <= {"a"}
    assert "b" not in doubled.watches


def test_a_duplicate_becomes_a_daemon_when_its_directory_is_its_own() -> None:
    after, _ = reduce(node(), DaemonProcess(at=AT + 1, daemon="b", pid=None))
    assert after.daemons["b"].runtime.same_as is None
    assert after.daemons["b"].is_reported(AT + 1)


def test_a_found_daemon_is_the_one_that_has_its_directory_in_another_spelling(subtests: pytest.Subtests) -> None:
    for spelling in SPELLINGS:
        with subtests.test(spelling=spelling):
            before = Node(daemons={"a": named("a", "/run/a/pipe")})
            after, _ = reduce(before, DaemonFound(at=AT, daemon="found", pipe_directory=spelling, log_directory="/log"))
            assert list(after.daemons) == ["a"]
