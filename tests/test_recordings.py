"""The replay of each recording of a real node agrees with its truth file."""

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.cli import main
from exporter.model.event import Event, EventName
from exporter.parse.kernel_log import parse_xid
from tests.builders import DAEMON, MIB, RECORDINGS, Recorded, scenario
from tests.state.invariants import assert_consistent

LIMIT_ERROR, FAULT_ERROR, TERMINATED_ERROR = 46, 807, 810
"""Errors that CUDA returns to a refused client: no slot; the server is in FAULT; the client was terminated."""

EXITING = r"Client \{PID: (\d+), Context ID: \d+\} exiting\."
FAULT_BEGINS = "Server is handling a fatal GPU error."

LAST_STATES = {"h200_crash_loop": (["initializing"],), "h200_stays_in_fault": (["fault"],)}
"""The error if the server does not recover."""


def clients(recorded: Recorded) -> dict[int, dict[str, object]]:
    return {int(pid): each for pid, each in recorded.truth["clients"].items()}


def pids(events: Iterable[Event]) -> Counter[int | None]:
    return Counter(event.pid for event in events)


def happened(recorded: Recorded, what: str) -> list[float]:
    """When things that read like this were done."""
    return [each["at"] for each in recorded.truth["happened"] if re.search(what, each.get("what", ""))]


def ends(recorded: Recorded) -> list[float]:
    """Return when a signal ended the control daemon without a `quit`."""
    return happened(recorded, r"^control daemon (killed|ended)")


def bypassers(recorded: Recorded) -> set[int]:
    """Who ran beside MPS: sent elsewhere by their environment, or started while no daemon lived."""
    starts = [seen["at"] for seen in recorded.raw if "] Starting control daemon " in seen.get("line", "")]
    gaps = [(end, min((at for at in starts if at > end), default=float("inf"))) for end in ends(recorded)]
    return {
        pid
        for pid, client in clients(recorded).items()
        if "CUDA_MPS_PIPE_DIRECTORY" in (client.get("environment") or {})  # type: ignore[operator]
        or any(end < float(str(client["started"])) < start for end, start in gaps)
    }


def accepted(recorded: Recorded) -> set[int]:
    """Empty if the servers of the daemon cannot start."""
    if recorded.truth.get("fault_kind") == "crash-loop":
        return set()
    return set(clients(recorded)) - set(recorded.truth["refused"]) - bypassers(recorded)


def noticed(recorded: Recorded) -> set[int]:
    """NVML is read every ten seconds, so a bypassing process with a shorter life can be missed."""
    long = set()
    for pid in bypassers(recorded):
        client: dict[str, Any] = clients(recorded)[pid]
        if float(client.get("exited_at", "inf")) - float(client["started"]) > 12:
            long.add(pid)
    return long


def servers_of_clients(recorded: Recorded) -> dict[int, set[int]]:
    """On which servers each client was, by the words of the log and of the replies."""
    servers: dict[int, set[int]] = defaultdict(set)
    for seen in recorded.raw:
        line = re.search(r" (\d+)\] Status of client \{PID: (\d+), .* is ACTIVE", seen.get("line", ""))
        if line is not None:
            servers[int(line[2])].add(int(line[1]))
        asked = re.fullmatch(r"get_client_list (\d+)", seen.get("command", ""))
        if asked is not None and re.fullmatch(r"[\d\n]*", seen["stdout"]):
            for pid in seen["stdout"].split():
                servers[int(pid)].add(int(asked[1]))
    return servers


def servers_seen(recorded: Recorded) -> tuple[set[int], set[int]]:
    """Return all servers, and those that run at the end by the last list and the log after it."""
    ever: set[int] = set()
    last: set[int] = set()
    for seen in recorded.raw:
        started = re.search(r"\] Starting new server (\d+) ", seen.get("line", ""))
        exited = re.search(r"\] Server (\d+) exited ", seen.get("line", ""))
        if started is not None:
            last |= {int(started[1])}
        if exited is not None:
            last -= {int(exited[1])}
        if seen.get("command") == "get_server_list" and (seen["exit_code"] == 0 or "Cannot find" in seen["stderr"]):
            last = set(map(int, seen["stdout"].split()))
        ever |= last
    return ever, last


def struck_by_fault(recorded: Recorded) -> bool:
    """Whether a fatal GPU error took clients along, other than by the end of their server or daemon."""
    return "fault_kind" in recorded.truth and bool(recorded.truth["victims"])


class TestClients:
    """Clients that connect, disconnect or are refused."""

    def test_each_accepted_client_connects_once(self, subtests: pytest.Subtests) -> None:
        """The log has `connected` for refused clients too, and a list can repeat what the log reported."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                expected = dict.fromkeys(accepted(recorded), 1)
                assert pids(recorded.replayed.of(EventName.CLIENT_CONNECTED)) == expected

    def test_each_client_disconnects_once_after_it_connects(self, subtests: pytest.Subtests) -> None:
        """All of them had ended when the recording did."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                came = {event.pid: event.at for event in recorded.replayed.of(EventName.CLIENT_CONNECTED)}
                left = recorded.replayed.of(EventName.CLIENT_DISCONNECTED)
                assert pids(left) == dict.fromkeys(accepted(recorded), 1)
                assert all(event.at >= came[event.pid] for event in left)
                assert not recorded.replayed.daemon.clients

    def test_each_client_is_on_the_server_of_log_and_replies(self, subtests: pytest.Subtests) -> None:
        """From its first event to its last."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                servers = servers_of_clients(recorded)
                for name in (EventName.CLIENT_CONNECTED, EventName.CLIENT_DISCONNECTED):
                    assert {event.pid: {event.server} for event in recorded.replayed.of(name)} == {
                        pid: servers[pid] for pid in accepted(recorded)
                    }

    def test_no_client_connects_before_it_starts(self, subtests: pytest.Subtests) -> None:
        """By the clients' own clocks."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                started = {pid: float(str(client["started"])) for pid, client in clients(recorded).items()}
                for event in recorded.replayed.of(EventName.CLIENT_CONNECTED):
                    assert event.pid is not None
                    assert event.at >= started[event.pid]

    def test_each_refused_client_is_reported_once_with_the_reason(self, subtests: pytest.Subtests) -> None:
        """The reason is the one that CUDA gave the client."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                reasons = {LIMIT_ERROR: "limit", FAULT_ERROR: "fault"}
                errors = {pid: client.get("cuda_errors") for pid, client in clients(recorded).items()}
                refusals = [(event.pid, event.reason) for event in recorded.replayed.of(EventName.CLIENT_REFUSED)]
                assert sorted(refusals) == [
                    (pid, reasons[errors[pid][0]["cuda_error"]])  # type: ignore[index]
                    for pid in sorted(recorded.truth["refused"])
                ]

    def test_reports_exactly_the_bypassing_processes_once(self, subtests: pytest.Subtests) -> None:
        """A client that starts, is refused or has just disconnected is not one of them."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                bypassing = recorded.replayed.of(EventName.PROCESS_BYPASSING)
                assert pids(bypassing) == dict.fromkeys(noticed(recorded), 1)


class TestLeaving:
    """The disconnects and their causes, as they were reported over time."""

    def test_each_client_whose_contexts_ended_disconnects(self, subtests: pytest.Subtests) -> None:
        """With its server; no other client disconnects."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                ended = {int(pid) for seen in recorded.raw for pid in re.findall(EXITING, seen.get("line", ""))}
                assert ended <= {pid for pid, _ in recorded.disconnects} <= accepted(recorded)

    def test_only_clients_that_an_operator_ended_are_terminated(self, subtests: pytest.Subtests) -> None:
        """CUDA returned that error to the client."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                terminated = {
                    pid
                    for pid, client in clients(recorded).items()
                    if any(error["cuda_error"] == TERMINATED_ERROR for error in client.get("cuda_errors") or ())  # type: ignore[attr-defined]
                }
                assert {pid for pid, disconnect in recorded.disconnects if disconnect.terminated} == terminated

    def test_clients_that_asserted_or_trapped_end_with_reset(self, subtests: pytest.Subtests) -> None:
        """Affected clients and other clients do not (measured)."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                in_reset = {pid for pid, disconnect in recorded.disconnects if disconnect.in_reset}
                kind, expected = recorded.truth.get("fault_kind"), set()
                if kind in ("assert", "trap"):
                    expected = {recorded.truth["culprit"]}
                if kind == "kill, then trap":
                    expected = set(recorded.truth["also_culprits"])
                assert in_reset == expected

    def test_a_client_killed_during_a_kernel_disconnects_before_the_fault(self, subtests: pytest.Subtests) -> None:
        """Its contexts end first."""
        for recorded in [each for each in RECORDINGS if each.truth.get("fault_kind") == "killed"]:
            with subtests.test(recorded=recorded):
                culprit = recorded.truth["culprit"]
                (fault,) = [seen["line"][1:24] for seen in recorded.raw if FAULT_BEGINS in seen.get("line", "")]
                stamps = [disconnect.stamp for pid, disconnect in recorded.disconnects if pid == culprit]
                assert stamps
                assert all(stamp < fault for stamp in stamps)


class TestServersAndDaemons:
    """Servers and daemons, their states and their ends."""

    def test_each_server_starts_and_exits_once(self, subtests: pytest.Subtests) -> None:
        """What is left at the end is what the daemon last listed."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                ever, last = servers_seen(recorded)
                started = Counter(event.server for event in recorded.replayed.of(EventName.SERVER_STARTED))
                ended = Counter(event.server for event in recorded.replayed.of(EventName.SERVER_EXITED))
                assert started == dict.fromkeys(ever, 1)
                assert ended == dict.fromkeys(ever - last, 1)
                assert set(recorded.replayed.daemon.servers) == last

    def test_reports_each_fault_and_its_recovery(self, subtests: pytest.Subtests) -> None:
        """The FAULT that a leaving server is once called is none."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                states = [event.state for event in recorded.replayed.of(EventName.SERVER_STATE)]
                with_incidents = struck_by_fault(recorded)
                assert states.count("fault") == with_incidents
                assert states[-1:] in LAST_STATES.get(recorded.name, ([], ["active"]))

    def test_reports_a_fault_at_its_time(self, subtests: pytest.Subtests) -> None:
        """Within a second of the first victim's error."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                errors = [clients(recorded)[pid].get("cuda_errors") for pid in recorded.truth["victims"]]
                with_incidents = min((each[0]["at"] for each in errors if each), default=None)  # type: ignore[index]
                for event in recorded.replayed.of(EventName.SERVER_STATE):
                    if event.state == "fault":
                        assert with_incidents is not None
                        assert abs(event.at - with_incidents) < 1.0

    def test_a_daemon_is_lost_as_often_as_it_was_ended(self, subtests: pytest.Subtests) -> None:
        """Reported within two seconds of its end."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                lost = [event.at for event in recorded.replayed.of(EventName.DAEMON_LOST)]
                assert len(lost) == len(ends(recorded))
                assert all(abs(at - end) < 2.0 for at, end in zip(lost, ends(recorded), strict=True))

    def test_a_daemon_is_unresponsive_while_it_or_its_server_is_hung(self, subtests: pytest.Subtests) -> None:
        """Then responsive again, once it goes on; neither else."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                found = recorded.replayed.names(
                    *set(EventName) - {EventName.DAEMON_UNRESPONSIVE, EventName.DAEMON_RESPONSIVE}
                )
                hung = len(happened(recorded, "stopped with SIGSTOP"))
                assert found == [EventName.DAEMON_UNRESPONSIVE, EventName.DAEMON_RESPONSIVE] * hung

    def test_recognizes_every_log_line(self, subtests: pytest.Subtests) -> None:
        """On the driver on which it was measured; but for the one line of a reply that has no stamp."""
        for recorded in RECORDINGS:
            with subtests.test(recorded=recorded):
                totals = recorded.replayed.daemon.totals
                assert sum(totals.log_lines.values()) == sum(seen["source"] == "log" for seen in recorded.raw)
                without_form = sum(
                    seen["source"] == "log" and not seen["line"].startswith("[") for seen in recorded.raw
                )
                assert sum(totals.log_lines_unrecognized.values()) == without_form


def test_the_node_is_consistent(subtests: pytest.Subtests) -> None:
    for recorded in RECORDINGS:
        with subtests.test(recorded=recorded):
            assert_consistent(recorded.replayed.node)


def test_reports_each_crash_loop_once(subtests: pytest.Subtests) -> None:
    for recorded in RECORDINGS:
        with subtests.test(recorded=recorded):
            real = int(recorded.truth.get("fault_kind") == "crash-loop")
            assert len(recorded.replayed.of(EventName.SERVER_CRASH_LOOP)) == real
            assert recorded.replayed.daemon.totals.crash_loops == real


def test_counts_the_xids_of_the_kernel_log(subtests: pytest.Subtests) -> None:
    """The NVML events report the same Xids."""
    for recorded in RECORDINGS:
        with subtests.test(recorded=recorded):
            messages = [seen["record"].partition(";")[2] for seen in recorded.raw if seen["source"] == "kernel"]
            parsed = [(message, parse_xid(message)) for message in messages]
            assert [message for message, xid in parsed if ("Xid" in message) != (xid is not None)] == []
            expected = Counter((gpu_of(recorded, xid.bus_id), str(xid.number)) for _, xid in parsed if xid is not None)
            assert {key: count.total for key, count in recorded.replayed.node.xids.counts.items()} == expected


def gpu_of(recorded: Recorded, address: str) -> str:
    """Return the UUID of the GPU at a bus address, from the header of the recording."""
    gpus = json.loads(recorded.text.partition("\n")[0])["gpus"]
    (found,) = (gpu["uuid"] for gpu in gpus if gpu["pci_bus_id"].rpartition(".")[0].endswith(address))
    return str(found)


RARE = (
    (EventName.DAEMON_LOST, {"control_killed", "control_in_foreground", "limits_from_environment"}),
    (EventName.DAEMON_STOPPED, {"quit_with_clients", "limits_from_environment", "many_clients"}),
    (EventName.DAEMON_UNRESPONSIVE, {"control_hangs", "server_hangs"}),
    (EventName.DAEMON_RESPONSIVE, {"control_hangs", "server_hangs"}),
    (EventName.CLIENT_WAITING, {"other_user_waits"}),
    (EventName.CLIENT_FAULT_CONTAINED, {"assert_contained", "h200_assert"}),
    (EventName.SERVER_CRASH_LOOP, {"h200_crash_loop"}),
    (EventName.PROCESS_BYPASSING, {"client_bypasses", "bypasser_faults", "control_killed"}),
)


def test_reports_a_rare_event_once_and_only_where_it_happened(subtests: pytest.Subtests) -> None:
    for name, scenarios in RARE:
        with subtests.test(name=name, scenarios=scenarios):
            found = Counter(recorded.name for recorded in set(RECORDINGS) for _ in recorded.replayed.of(name))
            copies = Counter(recorded.name for recorded in RECORDINGS if recorded.name in scenarios)
            assert found == copies


def test_the_client_of_another_user_waits() -> None:
    (waiting,) = scenario("other_user_waits").replayed.of(EventName.CLIENT_WAITING)
    assert waiting.pid == 6279


def test_the_fault_of_the_asserting_client_is_contained() -> None:
    recorded = scenario("assert_contained")
    (contained,) = recorded.replayed.of(EventName.CLIENT_FAULT_CONTAINED)
    assert (contained.pid, contained.server) == (recorded.truth["culprit"], 1245)


class TestLimits:
    """Defaults that operators set do not reach the server that is there."""

    def test_reads_limits_that_are_set_while_a_server_runs(self) -> None:
        """The operator set 40 % and 3 GiB, later 100 % and 100 GiB. The server still had 100 % and no limit.

        The recording has no answer after the last command about memory. The log alone does not change the limit: the
        exporter shows the daemon's last reply and has a query to send.
        """
        daemon = scenario("limits").replayed.daemon
        assert daemon.servers[513].limits.active_thread_percentage == 100.0
        assert daemon.servers[513].limits.pinned_memory == {}
        assert daemon.default_limits.active_thread_percentage == 100.0
        assert daemon.default_limits.pinned_memory == {0: 3 << 30}
        assert "get_default_device_pinned_mem_limit 0" in daemon.default_limits.stale

    def test_reads_limits_from_the_environment_of_the_daemon(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """The percentage holds from the first server on, a limit on memory does nothing (measured)."""
        path = tmp_path / "cut.jsonl"
        limited = scenario("limits_from_environment")
        path.write_text(limited.cut(ends(limited)[0] - 1))
        text = replayed(capsys, "--metrics", path)
        assert samples(text, "cuda_mps_server_active_thread_ratio") == {"1076": 0.4}
        assert samples(text, "cuda_mps_daemon_default_active_thread_ratio") == {DAEMON: 0.4}
        assert "pinned_memory_limit_bytes{" not in text

    def test_a_server_that_starts_later_has_the_limits(self) -> None:
        """By its own log."""
        (found,) = {
            (server.limits.active_thread_percentage, *sorted(server.limits.pinned_memory.items()))
            for server in scenario("server_killed").replayed.daemon.servers.values()
        }
        assert found == (100.0, (0, 100 << 30), (9, 3 << 30))


def test_refuses_16_clients_of_64() -> None:
    refusals = scenario("many_clients").replayed.of(EventName.CLIENT_REFUSED)
    assert Counter(event.reason for event in refusals) == {"limit": 16}


def samples(text: str, name: str) -> dict[str, float]:
    """The samples of one family, by their last label."""
    families = [family for family in text_string_to_metric_families(text) if family.name == name]
    return {list(sample.labels.values())[-1]: sample.value for family in families for sample in family.samples}


def replayed(capsys: pytest.CaptureFixture[str], how: str, path: Path) -> str:
    assert main(["replay", how, str(path)]) == 0
    return capsys.readouterr().out


class TestReplay:
    """Through the command line."""

    def test_an_incomplete_recording_has_three_connected_clients(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """To the MiB, as the clients allocated it, with their contexts."""
        three = scenario("three_clients")
        path = tmp_path / "cut.jsonl"
        path.write_text(three.cut(min(float(str(each["started"])) for each in clients(three).values()) + 8))
        text = replayed(capsys, "--metrics", path)
        memory = [
            sample.value / MIB
            for family in text_string_to_metric_families(text)
            if family.name == "cuda_mps_client_memory_used_bytes"
            for sample in family.samples
        ]
        assert sorted(memory) == [1540, 2564, 4612]
        assert samples(text, "cuda_mps_server_clients") == {"513": 3}

    def test_a_complete_recording_has_no_connected_clients(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """No client remains in the metrics; the server has an explicit 0."""
        path = tmp_path / "whole.jsonl"
        path.write_text(scenario("three_clients").text)
        text = replayed(capsys, "--metrics", path)
        assert not samples(text, "cuda_mps_client_memory_used_bytes")
        assert not samples(text, "cuda_mps_client_info")
        assert samples(text, "cuda_mps_server_clients") == {"513": 0}

    def test_a_held_session_is_shown_while_it_lasts(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """A daemon with a session of another program is up, and its clients are well."""
        held = scenario("session_held")
        path = tmp_path / "held.jsonl"
        (closed,) = happened(held, "session is closed")
        path.write_text(held.cut(closed))
        text = replayed(capsys, "--metrics", path)
        assert [state for state, on in samples(text, "cuda_mps_daemon_state").items() if on] == ["held"]
        assert samples(text, "cuda_mps_daemon_up") == {DAEMON: 1}
        path.write_text(held.text)
        text = replayed(capsys, "--metrics", path)
        assert [state for state, on in samples(text, "cuda_mps_daemon_state").items() if on] == ["up"]

    def test_prints_one_json_object_per_event(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """Each with its time, its name and its daemon or GPU, and otherwise only what applies."""
        trap = scenario("fatal_trap")
        path = tmp_path / "trap.jsonl"
        path.write_text(trap.text)
        found = [json.loads(line) for line in replayed(capsys, "--events", path).splitlines()]
        assert found == [event.as_json() for event in trap.replayed.events]
        for each in found:
            label = "gpu" if each["event"] == "gpu_xid" else "daemon"
            assert {"at", "event", label} <= each.keys()
            assert None not in each.values()

    def test_reads_standard_input(self) -> None:
        """`-` is standard input, as everywhere."""
        waits = scenario("other_user_waits")
        command = [sys.executable, "-m", "exporter", "replay", "--events", "-"]
        ended = subprocess.run(command, input=waits.text, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert [json.loads(line) for line in ended.stdout.splitlines()] == [
            event.as_json() for event in waits.replayed.events
        ]
