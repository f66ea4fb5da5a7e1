"""Evidence is saved in time or not at all, within bounds, for its owner alone, whatever lies in the log directory."""

import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.actions import evidence as actions_evidence
from exporter.actions.evidence import MAX_BUNDLES, MAX_CONCURRENT, MAX_LOG_BYTES, Evidence, File
from exporter.model.action import SaveEvidence
from exporter.model.node import Node
from exporter.model.observation import ControlReply
from exporter.reducer import reduce
from tests.actions.action_setup import NAME, action, location_of, node_of
from tests.builders import clients, servers
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually, until
from tests.standin.mps import MpsStandIn

CLIENT = 5_000_000
SAVING = action(SaveEvidence())
LONG = PATIENCE_SECONDS


@pytest.fixture
def clock() -> HandClock:
    return HandClock(1_795_278_817.3162522)


@pytest.fixture
def evidence(tmp_path: Path, clock: HandClock) -> Evidence:
    return saver(tmp_path, clock)


def saver(directory: Path, clock: HandClock, *, seconds: float = LONG) -> Evidence:
    return Evidence(directory / "evidence", proc=Path("/proc"), kmsg=None, clock=clock, seconds=seconds)


def seen(mps: MpsStandIn, *replies: ControlReply) -> Node:
    node = node_of(mps)
    for each in replies:
        node, _ = reduce(node, each)
    return node


def contents(path: str | None) -> dict[str, str]:
    assert path is not None
    return {each.name: each.read_text() for each in Path(path).iterdir()}


def test_saves_what_is_known_of_the_daemon(mps: MpsStandIn, evidence: Evidence) -> None:
    mps.start()
    mps.connect_and_wait(CLIENT)
    server = mps.server_pid
    assert server is not None
    node = seen(mps, servers(server, daemon=NAME), clients(CLIENT, server=server, daemon=NAME))

    saved = evidence.save(SAVING, node, location_of(mps))
    files = contents(saved)

    assert saved is not None
    assert Path(saved).name == "node-20261121T163337.316Z"
    assert files.keys() == {"node.json", "control.log", "server.log", "processes.txt", "kernel.txt"}
    assert files["control.log"] == mps.control_log
    assert f"== {server}/stat ==\n{server} (nvidia-cuda-mps" in files["processes.txt"]
    known = json.loads(files["node.json"])
    assert known["action"]["reason"] == "down"
    assert list(known["daemon"]["servers"]) == [str(server)]
    assert list(known["daemon"]["clients"]) == [str(CLIENT)]


def test_only_the_owner_can_read_the_files(mps: MpsStandIn, evidence: Evidence) -> None:
    mps.start()

    saved = Path(evidence.save(SAVING, node_of(mps), location_of(mps)) or "")

    assert [stat.S_IMODE(each.stat().st_mode) for each in (saved.parent, saved)] == [0o700] * 2
    assert {stat.S_IMODE(each.stat().st_mode) for each in saved.iterdir()} == {0o600}


def test_saves_the_end_of_a_long_log(mps: MpsStandIn, evidence: Evidence) -> None:
    mps.log_directory.mkdir()
    (mps.log_directory / "control.log").write_text("old\n" + "x" * MAX_LOG_BYTES + "end\n")

    tail = contents(evidence.save(SAVING, node_of(mps), location_of(mps)))["control.log"]

    assert (len(tail), tail[-4:], "old" in tail) == (MAX_LOG_BYTES, "end\n", False)


def test_follows_no_link_in_place_of_a_log(mps: MpsStandIn, evidence: Evidence) -> None:
    mps.log_directory.mkdir()
    (mps.log_directory / "control.log").symlink_to("/etc/passwd")
    os.mkfifo(mps.log_directory / "server.log")

    files = contents(evidence.save(SAVING, node_of(mps), location_of(mps)))

    assert files.keys() == {"node.json", "processes.txt", "kernel.txt"}


@pytest.mark.parametrize(
    ("daemon", "name"),
    [("/run/mps/a b", "run-mps-a-b"), ("../../etc", "etc"), ("ä\n", "daemon"), ("x" * 300, "x" * 64)],
)
def test_makes_the_name_of_a_daemon_safe(tmp_path: Path, clock: HandClock, daemon: str, name: str) -> None:
    mps = MpsStandIn(tmp_path)
    saving = action(SaveEvidence(), daemon=daemon)

    saved = saver(tmp_path, clock).save(saving, node_of(mps, daemon), location_of(mps, daemon))

    assert Path(saved or "").name.rpartition("-")[0] == name
    assert Path(saved or "").parent == tmp_path / "evidence"


def test_saves_evidence_for_an_unknown_daemon(mps: MpsStandIn, evidence: Evidence) -> None:
    files = contents(evidence.save(SAVING, Node(), location_of(mps)))

    assert json.loads(files["node.json"])["daemon"] is None
    assert files["kernel.txt"].startswith("The kernel log was not read (it is not collected).")


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_removes_the_oldest_bundles(mps: MpsStandIn, evidence: Evidence, clock: HandClock) -> None:
    def saved_one() -> Path:
        """So many in a row have to wait until there is room again."""
        path = evidence.save(SAVING, node_of(mps), location_of(mps))
        assert path is not None
        return Path(path)

    saved = []
    for _ in range(MAX_BUNDLES + 3):
        clock.time += 1
        saved.append(eventually(saved_one))

    until(lambda: sorted(saved[0].parent.iterdir()) == saved[3:])


def test_removes_bundles_that_are_too_large_together(
    mps: MpsStandIn, evidence: Evidence, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions_evidence, "MAX_TOTAL_BYTES", 1)
    first = Path(evidence.save(SAVING, node_of(mps), location_of(mps)) or "")
    clock.time += 1
    second = Path(evidence.save(SAVING, node_of(mps), location_of(mps)) or "")

    until(lambda: list(first.parent.iterdir()) == [second])


def test_limits_the_node_file_and_the_number_of_processes(mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    mps.start()
    mps.connect_and_wait(CLIENT)
    server = mps.server_pid
    assert server is not None
    node = seen(mps, servers(server, daemon=NAME), clients(os.getpid(), server=server, daemon=NAME))
    monkeypatch.setattr(actions_evidence, "MAX_NODE_BYTES", 100)
    monkeypatch.setattr(actions_evidence, "MAX_PROCESSES", 1)

    files = dict(actions_evidence.snapshot(SAVING, node, location_of(mps), proc=Path("/proc"), kmsg=None))

    assert len(files["node.json"]) == 100
    assert f"== {server}/stat ==".encode() in files["processes.txt"]
    assert f"== {os.getpid()}/stat ==".encode() not in files["processes.txt"]


# -- failures --------------------------------------------------------------------------------------------------------


def test_logs_that_evidence_cannot_be_written(mps: MpsStandIn, tmp_path: Path, clock: HandClock) -> None:
    (tmp_path / "evidence").write_text("")

    with capture_logs() as logs:
        assert saver(tmp_path, clock).save(SAVING, node_of(mps), location_of(mps)) is None

    (log,) = logs
    assert (log["event"], log["log_level"], log["daemon"]) == ("evidence_not_saved", "warning", NAME)
    assert log["problem"] == {
        "code": "evidence_not_written",
        "text": f"{tmp_path / 'evidence'}: File exists",
    }


def test_leaves_no_partial_bundle_on_a_full_disk(
    mps: MpsStandIn, evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> Iterator[File]:
        yield "node.json", b"{}"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(actions_evidence, "snapshot", fails)

    assert evidence.save(SAVING, node_of(mps), location_of(mps)) is None
    assert list((tmp_path / "evidence").iterdir()) == []


def test_limits_the_bundles_that_wait_for_a_hung_disk(
    mps: MpsStandIn, tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()

    def hangs(*_: object, **__: object) -> Iterator[File]:
        let_go.wait(LONG)
        yield "node.json", b"{}"

    monkeypatch.setattr(actions_evidence, "snapshot", hangs)
    evidence = saver(tmp_path, clock, seconds=0.01)

    def save() -> str | None:
        clock.time += 1
        return evidence.save(SAVING, node_of(mps), location_of(mps))

    with capture_logs() as logs:
        assert [save() for _ in range(MAX_CONCURRENT + 1)] == [None] * (MAX_CONCURRENT + 1)
    assert [log["problem"] for log in logs] == [
        *[{"code": "evidence_timed_out", "seconds": 0.01}] * MAX_CONCURRENT,
        {"code": "evidence_busy"},
    ]

    let_go.set()
    eventually(lambda: _is(MAX_CONCURRENT, sum(1 for _ in (tmp_path / "evidence").glob("*/node.json"))))


def _is(wanted: int, found: int) -> None:
    assert found == wanted
