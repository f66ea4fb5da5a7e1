"""Every recording of real life replays, and tells what truly happened: no less, and nothing else."""

import io
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.cli import main
from exporter.model.event import Event, EventName
from exporter.model.server import Disconnect
from exporter.recording import Recording
from exporter.state.reducer import reduce_all
from tests.builders import DAEMON, MIB, RECORDINGS, Recorded, scenario

LIMIT_ERROR, FAULT_ERROR, TERMINATED_ERROR = 46, 807, 810
"""What CUDA tells a client that is turned away: all places taken; the server is in FAULT; or one that was ended."""

EXITING = r"Client \{PID: (\d+), Context ID: \d+\} exiting\."
FAULT_BEGINS = "Server is handling a fatal GPU error."

LAST_STATES = {"h200_crash_loop": (["initializing"],), "h200_stays_in_fault": (["fault"],)}
"""Of those whose server does not become well."""

every_recording = pytest.mark.parametrize("recorded", RECORDINGS, ids=repr)


def clients(recorded: Recorded) -> dict[int, dict[str, object]]:
    return {int(pid): each for pid, each in recorded.truth["clients"].items()}


def pids(events: Iterable[Event]) -> Counter[int | None]:
    return Counter(event.pid for event in events)


def happened(recorded: Recorded, what: str) -> list[float]:
    """When things that read like this were done."""
    return [each["at"] for each in recorded.truth["happened"] if re.search(what, each.get("what", ""))]


def ends(recorded: Recorded) -> list[float]:
    """When the control daemon was ended by a signal, which nobody had told it of."""
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
    """Nobody, of a daemon whose servers cannot start."""
    if recorded.truth.get("fault_kind") == "crash-loop":
        return set()
    return set(clients(recorded)) - set(recorded.truth["refused"]) - bypassers(recorded)


def noticed(recorded: Recorded) -> set[int]:
    """Bypassers are told by NVML, which is read every ten seconds: who lived shorter than that may be missed."""
    lives = {pid: clients(recorded)[pid] for pid in bypassers(recorded)}
    return {pid for pid, life in lives.items() if float(life.get("exited_at", "inf")) - float(life["started"]) > 12}  # type: ignore[arg-type]


def servers_of_clients(recorded: Recorded) -> dict[int, set[int]]:
    """On which servers each client was, by the words of the log and of the replies."""
    said: dict[int, set[int]] = defaultdict(set)
    for seen in recorded.raw:
        line = re.search(r" (\d+)\] Status of client \{PID: (\d+), .* is ACTIVE", seen.get("line", ""))
        if line is not None:
            said[int(line[2])].add(int(line[1]))
        asked = re.fullmatch(r"get_client_list (\d+)", seen.get("command", ""))
        if asked is not None and re.fullmatch(r"[\d\n]*", seen["stdout"]):
            for pid in seen["stdout"].split():
                said[int(pid)].add(int(asked[1]))
    return said


def servers_seen(recorded: Recorded) -> tuple[set[int], set[int]]:
    """All servers there were, and those left at the end: by the last list, and what the log said after it."""
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


@cache
def leavings(recorded: Recorded) -> set[tuple[int, Disconnect]]:
    """Everybody who was ever seen to leave, as it was told at each moment."""
    start = Recording(io.StringIO(recorded.text)).header.node()
    seen: set[tuple[int, Disconnect]] = set()
    for node, _ in reduce_all(start, recorded.observations):
        seen.update(
            (pid, each) for daemon in node.daemons.values() for pid, each in daemon.connections.disconnects.items()
        )
    return seen


def struck_by_fault(recorded: Recorded) -> bool:
    """Whether a fatal GPU error took clients along, other than by the end of their server or daemon."""
    return "fault_kind" in recorded.truth and bool(recorded.truth["victims"])


@every_recording
class TestClients:
    """Who came, who went, who was turned away."""

    def test_each_that_was_accepted_connects_once_and_nobody_else(self, recorded: Recorded) -> None:
        """`connected` is written for refused clients too, and a list may tell again what the log told."""
        expected = dict.fromkeys(accepted(recorded), 1)
        assert pids(recorded.story.of(EventName.CLIENT_CONNECTED)) == expected

    def test_each_leaves_once_and_after_it_came(self, recorded: Recorded) -> None:
        """All of them had ended when the recording did."""
        came = {event.pid: event.at for event in recorded.story.of(EventName.CLIENT_CONNECTED)}
        left = recorded.story.of(EventName.CLIENT_DISCONNECTED)
        assert pids(left) == dict.fromkeys(accepted(recorded), 1)
        assert all(event.at >= came[event.pid] for event in left)
        assert not recorded.story.daemon.clients

    def test_each_is_on_the_server_that_log_and_replies_say(self, recorded: Recorded) -> None:
        """From its first event to its last."""
        said = servers_of_clients(recorded)
        for name in (EventName.CLIENT_CONNECTED, EventName.CLIENT_DISCONNECTED):
            assert {event.pid: {event.server} for event in recorded.story.of(name)} == {
                pid: said[pid] for pid in accepted(recorded)
            }

    def test_nobody_connects_before_they_start(self, recorded: Recorded) -> None:
        """By the clients' own clocks."""
        started = {pid: float(str(client["started"])) for pid, client in clients(recorded).items()}
        for event in recorded.story.of(EventName.CLIENT_CONNECTED):
            assert event.pid is not None
            assert event.at >= started[event.pid]

    def test_each_that_was_refused_is_told_once_with_the_reason(self, recorded: Recorded) -> None:
        """The reason is the one that CUDA gave the client."""
        reasons = {LIMIT_ERROR: "limit", FAULT_ERROR: "fault"}
        errors = {pid: client.get("cuda_errors") for pid, client in clients(recorded).items()}
        refusals = [(event.pid, event.reason) for event in recorded.story.of(EventName.CLIENT_REFUSED)]
        assert sorted(refusals) == [
            (pid, reasons[errors[pid][0]["cuda_error"]])  # type: ignore[index]
            for pid in sorted(recorded.truth["refused"])
        ]

    def test_exactly_those_beside_mps_are_called_bypassing_once(self, recorded: Recorded) -> None:
        """And nobody who is still starting, is refused, or has just left."""
        bypassing = recorded.story.of(EventName.PROCESS_BYPASSING)
        assert pids(bypassing) == dict.fromkeys(noticed(recorded), 1)


@every_recording
class TestLeaving:
    """Who left, and how, as the log told moment by moment."""

    def test_each_whose_contexts_ended_is_known_to_leave(self, recorded: Recorded) -> None:
        """With the server that it was on; nobody else leaves."""
        ended = {int(pid) for seen in recorded.raw for pid in re.findall(EXITING, seen.get("line", ""))}
        assert {pid for pid, _ in leavings(recorded)} >= ended
        assert {pid for pid, _ in leavings(recorded)} <= accepted(recorded)

    def test_only_whom_an_operator_had_ended_was_terminated(self, recorded: Recorded) -> None:
        """CUDA told that client so."""
        terminated = {
            pid
            for pid, client in clients(recorded).items()
            if any(error["cuda_error"] == TERMINATED_ERROR for error in client.get("cuda_errors") or ())  # type: ignore[attr-defined]
        }
        assert {pid for pid, leaving in leavings(recorded) if leaving.terminated} == terminated

    def test_whoever_asserted_or_trapped_leaves_in_reset(self, recorded: Recorded) -> None:
        """Their victims do not, nor does anybody else (measured)."""
        in_reset = {pid for pid, leaving in leavings(recorded) if leaving.in_reset}
        expected = {recorded.truth["culprit"]} if recorded.truth.get("fault_kind") in ("assert", "trap") else set()
        if recorded.truth.get("fault_kind") == "kill, then trap":
            expected = set(recorded.truth["also_culprits"])
        assert in_reset == expected

    def test_one_that_was_killed_in_mid_kernel_leaves_before_the_fault(self, recorded: Recorded) -> None:
        """Its contexts end first."""
        if recorded.truth.get("fault_kind") != "killed":
            return
        culprit = recorded.truth["culprit"]
        (struck,) = [seen["line"][1:24] for seen in recorded.raw if FAULT_BEGINS in seen.get("line", "")]
        seen = [leaving.stamp for pid, leaving in leavings(recorded) if pid == culprit]
        assert seen
        assert all(stamp < struck for stamp in seen)


@every_recording
class TestServersAndDaemons:
    """What lived, and how it fared."""

    def test_servers_start_and_exit_once_as_they_did(self, recorded: Recorded) -> None:
        """What is left at the end is what the daemon last listed."""
        ever, last = servers_seen(recorded)
        started = Counter(event.server for event in recorded.story.of(EventName.SERVER_STARTED))
        ended = Counter(event.server for event in recorded.story.of(EventName.SERVER_EXITED))
        assert started == dict.fromkeys(ever, 1)
        assert ended == dict.fromkeys(ever - last, 1)
        assert set(recorded.story.daemon.servers) == last

    def test_a_fault_is_told_where_one_struck_and_mended_after_it(self, recorded: Recorded) -> None:
        """The FAULT that a leaving server is once called is none."""
        states = [event.state for event in recorded.story.of(EventName.SERVER_STATE)]
        struck = struck_by_fault(recorded)
        assert states.count("fault") == struck
        assert states[-1:] in LAST_STATES.get(recorded.name, ([], ["active"]))

    def test_a_fault_is_told_as_it_strikes(self, recorded: Recorded) -> None:
        """Within a second of the first victim's error."""
        errors = [clients(recorded)[pid].get("cuda_errors") for pid in recorded.truth["victims"]]
        struck = min((each[0]["at"] for each in errors if each), default=None)  # type: ignore[index]
        for event in recorded.story.of(EventName.SERVER_STATE):
            if event.state == "fault":
                assert struck is not None
                assert abs(event.at - struck) < 1.0

    def test_a_daemon_is_lost_as_often_as_one_was_ended(self, recorded: Recorded) -> None:
        """Told within two seconds of its end."""
        lost = [event.at for event in recorded.story.of(EventName.DAEMON_LOST)]
        assert len(lost) == len(ends(recorded))
        assert all(abs(at - end) < 2.0 for at, end in zip(lost, ends(recorded), strict=True))

    def test_a_daemon_is_unresponsive_while_it_or_its_server_hangs(self, recorded: Recorded) -> None:
        """Then responsive again, once it goes on; neither else."""
        told = recorded.story.names(*set(EventName) - {EventName.DAEMON_UNRESPONSIVE, EventName.DAEMON_RESPONSIVE})
        hung = len(happened(recorded, "stopped with SIGSTOP"))
        assert told == [EventName.DAEMON_UNRESPONSIVE, EventName.DAEMON_RESPONSIVE] * hung

    def test_every_line_of_the_log_is_recognised(self, recorded: Recorded) -> None:
        """On the driver on which it was measured; but for the one line of a reply that has no stamp."""
        totals = recorded.story.daemon.totals
        assert sum(totals.log_lines.values()) == sum(seen["source"] == "log" for seen in recorded.raw)
        without_form = sum(seen["source"] == "log" and not seen["line"].startswith("[") for seen in recorded.raw)
        assert sum(totals.log_lines_unrecognized.values()) == without_form


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


@pytest.mark.parametrize(("name", "scenarios"), RARE)
def test_a_rare_event_is_told_once_where_it_happened_and_nowhere_else(name: EventName, scenarios: set[str]) -> None:
    told = Counter(recorded.name for recorded in set(RECORDINGS) for _ in recorded.story.of(name))
    copies = Counter(recorded.name for recorded in RECORDINGS if recorded.name in scenarios)
    assert told == copies


def test_the_other_users_client_is_the_one_that_waits() -> None:
    (waiting,) = scenario("other_user_waits").story.of(EventName.CLIENT_WAITING)
    assert waiting.pid == 6279


def test_it_is_the_asserting_client_whose_fault_is_contained() -> None:
    recorded = scenario("assert_contained")
    (contained,) = recorded.story.of(EventName.CLIENT_FAULT_CONTAINED)
    assert (contained.pid, contained.server) == (recorded.truth["culprit"], 1245)


class TestLimits:
    """Defaults that operators set do not reach the server that is there."""

    def test_set_while_a_server_lives(self) -> None:
        """The operator set 40 % and 3 GiB, later 100 % and 100 GiB. The server kept 100 % and no limit.

        The recording has no answer after the last command about memory. The log alone does not change the limit: the
        exporter keeps the daemon's last answer and has a question to ask.
        """
        daemon = scenario("limits").story.daemon
        assert daemon.servers[513].active_thread_percentage == 100.0
        assert daemon.servers[513].pinned_memory_limits == {}
        assert daemon.default_limits.active_thread_percentage == 100.0
        assert daemon.default_limits.pinned_memory == {0: 3 << 30}
        assert "get_default_device_pinned_mem_limit 0" in daemon.default_limits.stale

    def test_from_the_daemons_environment(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """The percentage holds from the first server on, a limit on memory does nothing (measured)."""
        path = tmp_path / "cut.jsonl"
        limited = scenario("limits_from_environment")
        path.write_text(limited.cut(ends(limited)[0] - 1))
        text = replayed(capsys, "--metrics", path)
        assert samples(text, "cuda_mps_server_active_thread_ratio") == {"1076": 0.4}
        assert samples(text, "cuda_mps_daemon_default_active_thread_ratio") == {DAEMON: 0.4}
        assert "pinned_memory_limit_bytes{" not in text

    def test_a_server_that_starts_later_has_them(self) -> None:
        """By its own log."""
        (told,) = {
            (server.active_thread_percentage, *sorted(server.pinned_memory_limits.items()))
            for server in scenario("server_killed").story.daemon.servers.values()
        }
        assert told == (100.0, (0, 100 << 30), (9, 3 << 30))


def test_sixteen_of_sixty_four_find_no_place() -> None:
    refusals = scenario("many_clients").story.of(EventName.CLIENT_REFUSED)
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

    def test_cut_short_three_clients_are_alive_with_their_memory(
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

    def test_after_its_end_there_are_none(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """Nobody is left behind in the metrics; the server says 0."""
        path = tmp_path / "whole.jsonl"
        path.write_text(scenario("three_clients").text)
        text = replayed(capsys, "--metrics", path)
        assert not samples(text, "cuda_mps_client_memory_used_bytes")
        assert not samples(text, "cuda_mps_client_info")
        assert samples(text, "cuda_mps_server_clients") == {"513": 0}

    def test_a_held_session_shows_while_it_lasts(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """A daemon whose door somebody holds is up, and its clients are well."""
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

    def test_events_are_json_objects_one_a_line(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """Each with its time, its name and its daemon or GPU, and only what applies besides."""
        trap = scenario("fatal_trap")
        path = tmp_path / "trap.jsonl"
        path.write_text(trap.text)
        told = [json.loads(line) for line in replayed(capsys, "--events", path).splitlines()]
        assert told == [event.as_json() for event in trap.story.events]
        for each in told:
            whose = "gpu" if each["event"] == "gpu_xid" else "daemon"
            assert {"at", "event", whose} <= each.keys()
            assert None not in each.values()

    def test_it_reads_standard_input_as_a_process_of_its_own(self) -> None:
        """`-` is standard input, as everywhere."""
        waits = scenario("other_user_waits")
        command = [sys.executable, "-m", "exporter", "replay", "--events", "-"]
        ended = subprocess.run(command, input=waits.text, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert [json.loads(line) for line in ended.stdout.splitlines()] == [
            event.as_json() for event in waits.story.events
        ]


def test_replay_divides_equally_only_if_told(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent / "baseline" / "recordings" / "simulated_story.jsonl.gz"
    printed = []
    for flags in ((), ("--attribution=off",), ("--attribution=equal",)):
        assert main(["replay", "--metrics", *flags, str(path)]) == 0
        printed.append('method="equal"' in capsys.readouterr().out)
    assert printed == [False, False, True]
