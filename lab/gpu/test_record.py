"""The replay of a recording agrees with the clients. The recording is saved for tests without a GPU."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually

from . import program
from .child import until_end
from .clients import Client, Clients
from .mps import ControlDaemon
from .program import Recorder
from .scrape import MIB, parse

pytestmark = pytest.mark.gpu

Event = dict[str, Any]

SCENARIO = "h200_three_clients"
GIB_IN_MIB = 1024
# Longer than the minimum age of client series, and than two NVML collections.
LIFETIME = 22
# A log line is read at most about a second after it was written.
LAG = 5
# An observation has the start time of its collection and is written at its end.
DISORDER = 1
NEVER = {"client_refused", "client_waiting", "process_bypassing", "daemon_lost", "daemon_unresponsive"}


@pytest.fixture(scope="class")
def recorder(daemon: ControlDaemon) -> Iterator[Recorder]:
    yield from until_end(Recorder(daemon, daemon.directory / f"{SCENARIO}.jsonl"))


@pytest.fixture(scope="class")
def three(clients: Clients, recorder: Recorder) -> list[Client]:
    """Run three clients while the recorder runs."""
    eventually(lambda: _holds(recorder, '"source"'), within=20)
    sizes = {"alpha": 1, "beta": 2, "gamma": 4}
    started = [
        clients.start(name, mib=gib * GIB_IN_MIB, seconds=LIFETIME, busy_ms=2, every_ms=10)
        for name, gib in sizes.items()
    ]
    for client in started:
        client.ready()
        assert client.child.wait(LIFETIME + 20) == 0
    return started


@pytest.fixture(scope="class")
def recording(recorder: Recorder, three: list[Client]) -> Path:
    for client in three:
        eventually(partial(_holds, recorder, f"Client process {client.pid} disconnected"))
    recorder.interrupt()
    _save(recorder.file, three)
    return recorder.file


@pytest.fixture(scope="class")
def events(recording: Path) -> list[Event]:
    return [json.loads(line) for line in program.run("replay", "--events", str(recording)).splitlines()]


class TestRecording:
    """One recording of three clients from start to exit."""

    def test_has_complete_json_lines_in_order(self, recording: Path, daemon: ControlDaemon) -> None:
        """It can be read without this machine and this program."""
        header, *observations = [json.loads(line) for line in recording.read_text().splitlines()]
        (watched,) = header["daemons"]
        assert watched["pipe_directory"] == str(daemon.pipe_directory)
        assert watched["log_directory"] == str(daemon.log_directory)
        for earlier, later in pairwise(observation["at"] for observation in observations):
            assert later >= earlier - DISORDER
        assert {"control", "log", "nvml"} <= {observation["source"] for observation in observations}

    def test_each_client_connected_and_disconnected_once(self, events: list[Event], three: list[Client]) -> None:
        """Several sources report each client; there is one event for each."""
        once = {client.pid: 1 for client in three}
        assert Counter(event["pid"] for event in _of(events, "client_connected")) == once
        assert Counter(event["pid"] for event in _of(events, "client_disconnected")) == once

    def test_events_have_the_clients_times(self, events: list[Event], three: list[Client]) -> None:
        """Compared with the clients' clocks."""
        came = {event["pid"]: event["at"] for event in _of(events, "client_connected")}
        went = {event["pid"]: event["at"] for event in _of(events, "client_disconnected")}
        for client in three:
            assert client.started <= came[client.pid] <= client.ready_at + LAG
            assert client.done_at - 1 <= went[client.pid] <= client.done_at + LAG

    def test_daemon_and_server_had_no_fault(self, events: list[Event], daemon: ControlDaemon) -> None:
        """There is one daemon and one server."""
        assert len(_of(events, "daemon_up")) == 1
        assert [int(event["server"]) for event in _of(events, "server_started")] == [daemon.server()]
        states = [event["state"] for event in _of(events, "server_state")]
        assert "active" in states
        assert "fault" not in states

    def test_has_no_other_events(self, events: list[Event]) -> None:
        """Without faults there are no events of faults."""
        assert [event for event in events if event["event"] in NEVER] == []

    def test_no_client_remains_at_its_end(self, recording: Path) -> None:
        """Exited clients have no series."""
        scrape = parse(program.run("replay", "--metrics", str(recording)))
        assert scrape.listed_pids() == []
        assert not scrape.select("cuda_mps_client_memory_used_bytes")

    def test_a_truncated_recording_shows_running_clients(self, recording: Path, three: list[Client]) -> None:
        """The metrics are those of the last recorded moment."""
        cut = recording.with_suffix(".cut.jsonl")
        _cut(recording, cut, at=min(client.done_at for client in three) - 1)
        used = parse(program.run("replay", "--metrics", str(cut))).memory_by_pid()
        assert used.keys() == {client.pid for client in three}
        contexts = {(used[client.pid] - client.allocated_bytes) / MIB for client in three}
        assert len(contexts) == 1, f"one program, one size of context: {used}"


def _of(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["event"] == name]


def _holds(recorder: Recorder, text: str) -> None:
    assert text in recorder.text(), recorder.evidence()


def _cut(recording: Path, to: Path, at: float) -> None:
    """Write the recording up to a time."""
    header, *observations = recording.read_text().splitlines(keepends=True)
    to.write_text(header + "".join(line for line in observations if json.loads(line)["at"] < at))


def _save(recording: Path, clients: list[Client]) -> None:
    """Write recording and truth to the directory in GPU_CAPTURES."""
    name = os.environ.get("GPU_CAPTURES")
    if name is None:
        return
    directory = Path(name)
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(recording, directory / recording.name)
    truth = {
        "scenario": SCENARIO,
        "clients": {str(client.pid): client.truth() for client in clients},
        "happened": [],
        "victims": [],
        "refused": [],
    }
    (directory / f"{SCENARIO}.truth.json").write_text(json.dumps(truth, indent=1) + "\n")
