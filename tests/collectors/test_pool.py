"""Pool."""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import structlog

from exporter.clock import SystemClock
from exporter.collectors.control_client import ControlClient
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.logs import MIN_LINES, DaemonLogs, LogCollector
from exporter.collectors.pipe_dir import DaemonLocation, Directory, on_host
from exporter.collectors.pool import MOST_LINGERING, CollectorPool, ControlPoller
from exporter.collectors.thread import CollectorThread, Inbox, Reading
from exporter.model.daemon import Daemon, Declaration, Lifecycle, LogState, NamedBy
from exporter.model.node import CollectorName, Node
from exporter.model.observation import LogFile, LogLine, Observation, SourceReading
from exporter.model.reason import Reason, ReasonCode
from exporter.reducer import reduce
from tests.builders import HANGS, absent, denied
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually, until


def node(*names: str) -> Node:
    return Node(daemons={name: Daemon(name=name, pipe_directory=f"/{name}", log_directory="/log") for name in names})


def locate(daemons: Mapping[str, Daemon]) -> Mapping[str, DaemonLocation]:
    pipes = {name: Path(daemon.pipe_directory) for name, daemon in daemons.items()}
    return {name: on_host(name, pipe, pipe) for name, pipe in pipes.items() if name != "nowhere"}


class FakeClient(ControlClient):
    """Sends nothing, and records its calls."""

    def __init__(self, daemon: str) -> None:
        self.daemon = daemon
        self.requested: tuple[str, ...] = ()
        self.closed = False
        self.locations: list[DaemonLocation] = []

    @property
    def location(self) -> DaemonLocation:
        return self.locations[-1]

    @location.setter
    def location(self, location: DaemonLocation) -> None:
        self.locations.append(location)

    def request(self, commands: tuple[str, ...], **_known: object) -> None:
        self.requested = commands

    def close(self) -> None:
        self.closed = True


def control_thread(inbox: Inbox, daemon: str | None = None) -> CollectorThread:
    return CollectorThread(
        "control", Reading, period=None, deadline=PATIENCE_SECONDS, inbox=inbox, clock=SystemClock(), daemon=daemon
    )


class Pollers:
    """Creates pollers, and records their clients."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.clients: list[FakeClient] = []

    def __call__(self, location: DaemonLocation) -> ControlPoller:
        self.clients.append(FakeClient(location.name))
        return ControlPoller(self.clients[-1], control_thread(self.inbox, location.name))


@pytest.fixture
def pollers() -> Pollers:
    return Pollers()


@pytest.fixture
def pool(pollers: Pollers) -> Iterator[CollectorPool]:
    pool = CollectorPool((), locate=locate, poller=pollers)
    yield pool
    pool.close(PATIENCE_SECONDS)


def idle_daemons(pool: CollectorPool) -> list[str]:
    return [name for name, _ in pool.idle_pollers()]


def test_queries_a_new_daemon(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("one"))
    pool.update(node("one", "two"))

    assert idle_daemons(pool) == ["one", "two"]
    for _, poller in pool.idle_pollers():
        poller.request(("get_server_list",), node("one").daemons["one"])

    until(lambda: pollers.inbox.qsize() == 2)
    assert {pollers.inbox.get()[0].daemon for _ in range(2)} == {"one", "two"}  # type: ignore[union-attr]


def test_does_not_query_a_daemon_that_is_gone(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("one", "two"))
    pool.update(node("two"))

    assert idle_daemons(pool) == ["two"]
    assert [client.closed for client in pollers.clients] == [True, False]


def test_starts_no_thread_for_a_daemon_without_a_location(pool: CollectorPool) -> None:
    pool.update(node("nowhere", "one"))

    assert idle_daemons(pool) == ["one"]


def test_sets_the_location_at_each_update(pool: CollectorPool, pollers: Pollers) -> None:
    pool.update(node("one"))
    pool.update(node("one"))

    assert [location.name for location in pollers.clients[0].locations] == ["one", "one"]


def test_triggers_all_permanent_threads() -> None:
    inbox = Inbox()
    pool = CollectorPool((control_thread(inbox),))
    pool.start()

    pool.trigger_all()

    assert inbox.get(timeout=PATIENCE_SECONDS)
    pool.close(PATIENCE_SECONDS)


def test_passes_the_node_to_the_permanent_collectors() -> None:
    watched: list[Node] = []
    pool = CollectorPool((), watch=watched.append)

    pool.update(node("one"))

    assert watched == [node("one")]


class UnstartableThread(CollectorThread):
    """A thread that the system does not permit."""

    def start(self) -> None:
        """Raise as the threading module does if there may be no more threads (TasksMax=)."""
        raise RuntimeError("can't start new thread")


def test_tries_again_to_start_a_thread_that_could_not_be_started(pollers: Pollers) -> None:
    unstartable = {"one"}

    def poller(location: DaemonLocation) -> ControlPoller:
        created = pollers(location)
        if location.name in unstartable:
            created.thread.__class__ = UnstartableThread
        return created

    pool = CollectorPool((), locate=locate, poller=poller)
    with structlog.testing.capture_logs() as logged:
        pool.update(node("one", "two"))
        assert idle_daemons(pool) == ["two"]
        pool.update(node("one", "two", "three"))
        pool.update(node("one", "two", "three"))
        assert idle_daemons(pool) == ["two", "three"]
    unstartable.clear()
    pool.update(node("one", "two", "three"))

    assert set(idle_daemons(pool)) == {"one", "two", "three"}
    assert [(each["event"], each["daemon"]) for each in logged] == [("daemon_not_asked", "one")]
    pool.close(PATIENCE_SECONDS)


# -- The logs of each daemon have a thread ---------------------------------------------------------------------------


LINE = "[2026-11-20 15:08:45.147 Server   599] Server is handling a fatal GPU error."


class HangingDirectory(Directory):
    """A directory that hangs when it is opened, until it is released, like one of a dead NFS server."""

    released = threading.Event()
    reached = threading.Semaphore(0)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        self.reached.release()
        self.released.wait(PATIENCE_SECONDS)
        with super().opened() as descriptor:
            yield descriptor


@dataclass
class LogPool:
    """Daemons with their logs, and the pool that follows them."""

    root: Path
    hang: set[str] = field(default_factory=set)
    discovered: bool = False
    deadline: float = 0.05

    def __post_init__(self) -> None:
        self.inbox = Inbox()
        self.changes = FileChanges()
        self.collectors: list[LogCollector] = []
        self.pool = CollectorPool((), locate=self.locate, collector=self.collector)
        self.pool.start()
        self.observations: list[Observation] = []

    def collector(self, location: DaemonLocation) -> LogCollector:
        created = LogCollector(
            CollectorName.LOGS,
            location,
            inbox=self.inbox,
            clock=SystemClock(),
            changes=self.changes,
            deadline=self.deadline,
        )
        self.collectors.append(created)
        return created

    def locate(self, daemons: Mapping[str, Daemon]) -> Mapping[str, DaemonLocation]:
        locations: dict[str, DaemonLocation] = {}
        for name, daemon in daemons.items():
            location = on_host(name, Path(daemon.pipe_directory), Path(daemon.log_directory))
            locations[name] = (
                replace(location, log=HangingDirectory(location.log.path)) if name in self.hang else location
            )
        return locations

    def node(self, *names: str, shared: bool = False) -> Node:
        """Return a node with these daemons, which may share one log directory."""
        daemons: dict[str, Daemon] = {}
        for name in names:
            log = self.root / ("shared" if shared else name)
            log.mkdir(exist_ok=True)
            (log / "server.log").touch()
            daemons[name] = Daemon(
                name=name,
                pipe_directory=f"/{name}",
                log_directory=str(log),
                declared=Declaration(
                    expected=not self.discovered, by=NamedBy.DISCOVERED if self.discovered else NamedBy.CONFIGURATION
                ),
                lifecycle=Lifecycle(ever_ran=True),
            )
        return Node(daemons=daemons)

    def until_read(self, daemon: str) -> None:
        eventually(lambda: self._has(lambda each: isinstance(each, SourceReading) and each.daemon == daemon))

    def until_line(self, daemon: str) -> None:
        eventually(lambda: self._has(lambda each: isinstance(each, LogLine) and each.daemon == daemon))

    def _has(self, wanted: object) -> None:
        while self.inbox.qsize():
            self.observations.extend(self.inbox.get())
        assert any(map(wanted, self.observations))  # type: ignore[call-overload]

    def close(self) -> None:
        HangingDirectory.released.set()
        self.pool.close(PATIENCE_SECONDS)
        self.changes.close()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogPool]:
    HangingDirectory.released.clear()
    HangingDirectory.reached = threading.Semaphore(
        0
    )  # Another test may have released it more often than it acquired it.
    node = LogPool(tmp_path)
    yield node
    node.close()


@pytest.mark.parametrize("shared", [False, True], ids=["a directory each", "one directory"])
def test_reads_the_log_of_another_daemon_while_a_directory_hangs(logs: LogPool, tmp_path: Path, shared: bool) -> None:
    logs.hang = {"a"}
    logs.pool.update(logs.node("a", "b", shared=shared))
    assert HangingDirectory.reached.acquire(timeout=PATIENCE_SECONDS)
    logs.until_read("b")

    with (tmp_path / ("shared" if shared else "b") / "server.log").open("a") as file:
        file.write(LINE + "\n")

    logs.until_line("b")
    assert not any(isinstance(each, LogLine | SourceReading) and each.daemon == "a" for each in logs.observations)


def test_reports_a_hanging_log_directory_for_its_daemon_only(logs: LogPool) -> None:
    logs.hang = {"a"}
    node = logs.node("a", "b")
    logs.pool.update(node)
    logs.until_read("b")

    def reported() -> SourceReading:
        timeout_reports = [each for each in logs.pool.readings() if each.problem is not None]
        assert len(timeout_reports) == 1
        return timeout_reports[0]

    timeout_report = eventually(reported)

    assert (timeout_report.name, timeout_report.daemon) == (CollectorName.LOGS, "a")
    assert timeout_report.problem is not None
    assert timeout_report.problem.code is ReasonCode.STILL_RUNNING


@pytest.mark.parametrize(("expected", "share"), [(True, 0.25), (False, 1.0)])
def test_expected_daemons_share_one_log_budget_and_discovered_daemons_another(
    logs: LogPool, expected: bool, share: float
) -> None:
    """Daemons that users start must not reduce the budget of an expected daemon."""
    alone = logs.node("a")
    logs.pool.update(alone)
    assert logs.collectors[0].logs.part == 1.0

    logs.discovered = not expected
    more = logs.node("other1", "other2", "other3")
    logs.pool.update(Node(daemons={**alone.daemons, **more.daemons}))

    assert logs.collectors[0].logs.part == share


def test_a_new_share_applies_from_the_next_collection(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.touch()
    logs = DaemonLogs(replace(on_host("a", tmp_path, tmp_path), logs=("server.log",)), HandClock())
    logs.collect()
    logs.part = 1 / 1000
    ordinary = "[2026-11-20 15:08:45.147 Server   599] Client process 5 disconnected\n"
    log.write_text(ordinary * 1000)

    readings = [logs.collect().observations for _ in range(3)]

    assert sum(isinstance(each, LogLine) for observations in readings for each in observations) == MIN_LINES
    logs.close()


def test_removes_the_thread_and_closes_the_files_of_a_removed_daemon(logs: LogPool) -> None:
    logs.pool.update(logs.node("a", "b"))
    logs.until_read("a")
    logs.until_read("b")
    assert count_open(logs.root / "a") == 1

    logs.pool.update(logs.node("b"))

    eventually(lambda: _assert(not logs.collectors[0].thread.alive))
    assert (count_open(logs.root / "a"), count_open(logs.root / "b")) == (0, 1)
    eventually(
        lambda: logs._has(lambda each: isinstance(each, LogFile) and (each.daemon, each.followed) == ("a", False))
    )


def count_open(directory: Path) -> int:
    links = (Path("/proc/self/fd") / each for each in os.listdir("/proc/self/fd"))
    return sum(directory in link.resolve().parents for link in links)


def _assert(condition: object) -> None:
    assert condition


def test_a_daemon_with_its_log_in_the_journal_has_no_collector(logs: LogPool) -> None:
    node = logs.node("a")
    logs.pool.update(node)
    logs.pool._locate = lambda daemons: {  # type: ignore[assignment]
        name: replace(location, logs=()) for name, location in logs.locate(daemons).items()
    }

    logs.pool.update(node)

    eventually(lambda: _assert(not logs.collectors[0].thread.alive))
    assert len(logs.collectors) == 1


def test_many_new_daemons_with_hanging_directories_use_few_threads(logs: LogPool, tmp_path: Path) -> None:
    logs.discovered, logs.deadline = True, PATIENCE_SECONDS
    with structlog.testing.capture_logs() as logged:
        for number in range(MOST_LINGERING + 20):
            logs.hang, count = {f"fake{number}"}, len(logs.collectors)
            logs.pool.update(logs.node(f"fake{number}"))
            assert len(logs.collectors) == count or HangingDirectory.reached.acquire(timeout=PATIENCE_SECONDS)

    assert sum(each.thread.alive for each in logs.collectors) == MOST_LINGERING
    assert [each["event"] for each in logged] == ["daemon_log_not_followed"] * 20

    logs.discovered, logs.hang = False, set()
    logs.pool.update(logs.node("expected"))
    logs.until_read("expected")


ENDED_AT = 100.0


def ended_daemons() -> Node:
    daemons = {
        name: Daemon(
            name=name,
            pipe_directory=f"/{name}",
            log_directory=f"/log/{name}",
            declared=Declaration(expected=True),
            lifecycle=Lifecycle(ever_ran=True, unexplained_end_at=ENDED_AT),
            log=LogState(problems={"server.log": None, "control.log": absent(f"/log/{name}/control.log")}),
        )
        for name in ("a", "b")
    }
    return Node(at=ENDED_AT, daemons=daemons)


def test_a_complete_read_of_a_log_resolves_the_exit_of_that_daemon_only() -> None:
    node, events = reduce(
        ended_daemons(), SourceReading(at=ENDED_AT + 0.1, name=CollectorName.LOGS, seconds=0.01, daemon="a")
    )

    assert [event.daemon for event in events] == ["a"]
    assert [name for name, daemon in node.daemons.items() if daemon.lifecycle.unexplained_end_at is not None] == ["b"]


def test_a_log_problem_of_one_daemon_does_not_block_the_exit_of_another() -> None:
    hangs = SourceReading(at=ENDED_AT + 0.1, name=CollectorName.LOGS, seconds=5.0, daemon="a", problem=HANGS)
    node, first = reduce(ended_daemons(), hangs)
    node, second = reduce(node, SourceReading(at=ENDED_AT + 0.2, name=CollectorName.LOGS, seconds=0.01, daemon="b"))

    assert [event.daemon for event in (*first, *second)] == ["b"]


def test_a_reading_without_a_daemon_in_an_old_recording_applies_to_all() -> None:
    _, events = reduce(ended_daemons(), SourceReading(at=ENDED_AT + 0.1, name=CollectorName.LOGS, seconds=0.01))

    assert [event.daemon for event in events] == ["a", "b"]


def test_a_hanging_log_has_a_problem_until_the_read_ends() -> None:
    def read(at: float, problem: Reason | None) -> SourceReading:
        return SourceReading(at=at, name=CollectorName.LOGS, seconds=1.0, daemon="a", problem=problem)

    missing, longer = absent("/log/a/control.log"), Reason(ReasonCode.STILL_RUNNING, seconds=10.0)
    node, _ = reduce(ended_daemons(), read(101.0, HANGS))
    assert node.daemons["a"].log.problems == {"server.log": HANGS, "control.log": missing}
    assert node.daemons["b"].log.problems["server.log"] is None
    node, _ = reduce(node, read(102.0, longer))
    assert node.daemons["a"].log.problems == {"server.log": longer, "control.log": missing}
    node, _ = reduce(node, read(103.0, None))
    assert node.daemons["a"].log.problems == {"server.log": None, "control.log": missing}


def test_an_unreadable_file_does_not_affect_the_other_file() -> None:
    refused = denied("/log/a/control.log")
    node, _ = reduce(ended_daemons(), LogFile(at=101.0, daemon="a", file="control.log", problem=refused))
    node, _ = reduce(node, SourceReading(at=101.0, name=CollectorName.LOGS, seconds=0.1, daemon="a", problem=refused))

    assert node.daemons["a"].log.problems == {"server.log": None, "control.log": refused}
