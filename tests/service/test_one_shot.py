"""A one-shot collection reports the problems of each daemon."""

import errno
import os
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from structlog.testing import capture_logs

from exporter.app import MOST_SECONDS, OneShot
from exporter.clock import SystemClock
from exporter.collectors.daemon_directory import DaemonDirectory
from exporter.collectors.daemon_processes import Identities
from exporter.collectors.logs import DaemonLogs
from exporter.collectors.pipe_dir import DaemonLocation, Directory, Root
from exporter.collectors.proc import Proc
from exporter.collectors.thread import Reading
from exporter.model.observation import ControlReply
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.report.node_status import document_of
from exporter.state.lifecycle import HELD_AFTER_SECONDS, SECOND_PROBE_SECONDS
from tests.builders import HANGS, node, refusal
from tests.clocks import HandClock
from tests.containers import PROC, Container
from tests.eventually import PATIENCE_SECONDS


def test_begins_no_collection_after_its_time_and_says_so() -> None:
    clock = HandClock()
    glance = OneShot(node("/one"), clock, deadline=PATIENCE_SECONDS, wait=lambda _: None)
    called: list[int] = []

    def reading() -> Reading:
        called.append(1)
        return Reading()

    glance.collect("control", reading, "/one")
    clock.time += MOST_SECONDS
    glance.collect("nvml", reading)

    assert len(called) == 1
    assert glance.node.sources["control"].last.problem is None
    assert glance.node.sources["nvml"].last.problem == Reason(ReasonCode.NOT_TRIED, seconds=MOST_SECONDS)


def test_reports_the_problem_of_one_daemon_after_the_success_of_another() -> None:
    glance = OneShot(node("/one", "/other"), SystemClock(), deadline=PATIENCE_SECONDS, wait=lambda _: None)

    glance.collect("control", lambda: Reading(problem=HANGS), "/one")
    glance.collect("control", Reading, "/other")

    assert glance.node.sources["control"].last.problem == HANGS


class Answering:
    """A client that always has the same replies; without any, a collector of processes."""

    daemon = "/one"

    def __init__(self, *replies: ControlReply) -> None:
        self._replies = replies

    def request_from(self, *_: object) -> None: ...

    def watch(self, *_: object) -> None: ...

    def collect(self) -> Reading:
        return Reading(tuple(replace(each, at=SystemClock().now()) for each in self._replies))


UNUSABLE = ControlReply(at=0, daemon="/one", command="get_server_list", exit_code=127, stderr="no such file")


@pytest.mark.parametrize(
    ("reply", "seconds"),
    [(refusal(daemon="/one"), [HELD_AFTER_SECONDS]), (UNUSABLE, [SECOND_PROBE_SECONDS])],
    ids=["refused", "unusable"],
)
def test_waits_before_the_second_query_only_as_long_as_that_outcome_needs(
    reply: ControlReply, seconds: list[float]
) -> None:
    waited: list[float] = []
    glance = OneShot(node("/one"), SystemClock(), deadline=PATIENCE_SECONDS, wait=waited.append)
    client: Any = Answering(reply)
    processes: Any = Answering()

    glance.query_all((client,), processes)

    assert waited == seconds


class Waiting(Answering):
    """A client that answers when the other one is queried too."""

    def __init__(self, daemon: str, meeting: Barrier) -> None:
        super().__init__()
        self.daemon, self._meeting = daemon, meeting

    def collect(self) -> Reading:
        try:
            self._meeting.wait(PATIENCE_SECONDS / 2)
        except BrokenBarrierError:
            return Reading(problem=HANGS)
        return super().collect()


def test_a_daemon_that_hangs_takes_no_time_of_others() -> None:
    """With one daemon for each of eight GPUs, four that hang would use up the time for all others, and for NVML."""
    glance = OneShot(node("/one", "/other"), SystemClock(), deadline=PATIENCE_SECONDS, wait=lambda _: None)
    meeting = Barrier(2)
    clients: Any = [(Waiting(name, meeting), ("get_server_list",)) for name in ("/one", "/other")]
    glance.query_each(clients)
    assert glance.node.sources["control"].last.problem is None


def ends_meanwhile(tmp_path: Path) -> DaemonLocation:
    """Return where a daemon was in a mount namespace that has ended since."""
    with Container(tmp_path / "container", own_pids=False) as container:
        pid = container.start()
        process = pid, PROC.start_ticks(pid) or 0
        pipe, log = (tmp_path / "container" / name for name in ("pipe", "log"))
        root = Root(PROC, *process)
        return DaemonLocation(name="/one", pipe=Directory(pipe, root), log=Directory(log, root), process=process)


@pytest.mark.parametrize("code", [None, errno.ESRCH, errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP, errno.EIO])
def test_a_mount_namespace_that_ends_meanwhile_is_no_defect(
    code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may report it by any of these errors, or by none."""
    location, clock = ends_meanwhile(tmp_path), SystemClock()
    glance = OneShot(node("/one"), clock, deadline=PATIENCE_SECONDS, wait=lambda _: None)
    directory = DaemonDirectory(location, PROC, clock, Identities())

    def open_root(_proc: Proc, _pid: int, _start_ticks: int) -> int:
        raise OSError(code, os.strerror(code or 0))

    if code is not None:
        monkeypatch.setattr(Proc, "open_root", open_root)
    with capture_logs() as logs:
        glance.collect("logs", DaemonLogs(location, clock).collect, "/one")
        glance.collect("pipe_directory", directory.collect, "/one")
        glance.read_log_tails({"/one": location}, None)

    assert not logs
    reasons = [reason.code for each in document_of(glance.node).collectors for reason in each.reasons]
    assert ReasonCode.UNEXPECTED_ERROR not in reasons
    assert bool(reasons) is (code not in (None, errno.ENOENT))
