"""A client whose process has exited, while a process that it forked holds its connection."""

from dataclasses import replace
from pathlib import Path

from exporter.model.event import EventName
from exporter.model.identity import ConnectionHolders, ProcessIdentity
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.page.page import Page
from exporter.report.remedy import address_of, command_to_end
from exporter.state.poll_schedule import processes_wanted, readings_wanted
from exporter.state.processes import workload_of
from tests.builders import (
    AT,
    CLIENT,
    CONTEXT_BYTES,
    DAEMON,
    MIB,
    SERVER,
    USER_ALICE,
    Recorded,
    active,
    at_work,
    clients,
    daemon_process,
    exited,
    fault,
    gpu_reading,
    process,
    reduced,
    server_log,
)
from tests.metrics.test_families import samples
from tests.page.inputs import status_input
from tests.status import incident_json, status_json, status_table

OTHER, HOLDER = CLIENT + 1, 900
RECORDED = Path(__file__).parents[1] / "recordings" / "exited" / "exited_with_child.jsonl.gz"
KILL = f"kill -KILL {HOLDER}"


def held(*holders: int, at: float = AT + 4, pid: int = CLIENT) -> ConnectionHolders:
    found = tuple(ProcessIdentity(pid=each, start_ticks=each * 100) for each in holders)
    return ConnectionHolders(at=at, daemon=DAEMON, pid=pid, holders=found or None)


def server_process() -> Observation:
    return process(SERVER, uid=0, user="root", command="nvidia-cuda-mps-server")


RUNNING = (
    *at_work(CLIENT, OTHER),
    daemon_process(),
    server_process(),
    *server_log(active(), active(OTHER)),
    process(),
    process(OTHER, uid=1002, user="bob"),
    gpu_reading((CLIENT, OTHER)),
)
GONE = (*RUNNING, exited(at=AT + 1))
LISTED = (*GONE, gpu_reading((CLIENT, OTHER), at=AT + 3))
HELD = (*LISTED, held(HOLDER), process(HOLDER, at=AT + 4, command="worker.py"))


def present(*observations: Observation) -> Node:
    return reduced(*observations).node


def kills(found: Node) -> list[str]:
    return [
        command for each in status_json(found)["findings"] for step in each["steps"] for command in step["commands"]
    ]


class TestConnected:
    """It is a client as long as NVML or the daemon lists it."""

    def test_a_client_that_nvml_lists_after_its_exit_is_connected(self) -> None:
        assert CLIENT not in present(*GONE).daemons[DAEMON].clients
        found = present(*LISTED)
        assert set(found.daemons[DAEMON].clients) == {CLIENT, OTHER}
        assert workload_of(found.processes[CLIENT]) == USER_ALICE
        assert found.daemons[DAEMON].clients[CLIENT].contexts == {1}

    def test_nvml_may_list_a_client_for_a_moment_after_its_exit(self) -> None:
        assert set(present(*GONE, gpu_reading((CLIENT, OTHER), at=AT + 1.5)).daemons[DAEMON].clients) == {OTHER}

    def test_a_client_whose_end_the_log_reports_is_not_connected(self) -> None:
        ended = f"Client {{PID: {CLIENT}, Context ID: 1}} exiting. Number of active client contexts is 1."
        found = present(*GONE, *server_log(ended, at=AT + 2.5), gpu_reading((CLIENT, OTHER), at=AT + 3))
        assert set(found.daemons[DAEMON].clients) == {OTHER}

    def test_a_client_that_the_daemon_lists_after_its_exit_has_its_owner(self) -> None:
        found = present(*GONE, clients(CLIENT, OTHER, at=AT + 2))
        assert CLIENT not in found.processes  # NVML may not list it any more.
        found = reduced(gpu_reading((CLIENT, OTHER), at=AT + 3), start=found).node
        assert workload_of(found.processes[CLIENT]) == USER_ALICE
        assert found.processes[CLIENT].ended

    def test_is_in_the_metrics_with_its_owner_and_memory(self) -> None:
        found = present(*HELD)
        assert [each.value for each in samples(found, "cuda_mps_server_clients")] == [2]
        assert samples(found, "cuda_mps_client_info", pid=str(CLIENT), user="alice", command="train.py")
        memory = [each.value for each in samples(found, "cuda_mps_client_memory_used_bytes")]
        assert memory == [1024 * MIB + CONTEXT_BYTES] * 2

    def test_another_process_with_its_pid_is_not_the_client(self) -> None:
        later = replace(process(ticks=7, at=AT + 9, user="mallory", uid=1003), started=AT + 8)
        found = present(*HELD, later)
        assert found.processes[CLIENT].user == "alice"
        assert CLIENT in found.daemons[DAEMON].clients
        earlier = replace(later, started=AT + 2)
        found = present(*HELD, earlier)
        assert CLIENT not in found.daemons[DAEMON].clients
        assert found.processes[CLIENT].user == "mallory"

    def test_another_process_with_the_pid_of_a_client_that_was_never_read_is_not_the_client(self) -> None:
        lists = (gpu_reading((CLIENT,), at=at) for at in (AT, AT + 3, AT + 20))
        later = replace(process(ticks=7, at=AT + 21, user="mallory", uid=1003), started=AT + 10)
        found = present(*at_work(CLIENT), daemon_process(), server_process(), exited(at=AT + 1), *lists, later)
        assert CLIENT in found.daemons[DAEMON].clients
        assert CLIENT not in found.processes


class TestHolder:
    """The process that holds the connection."""

    def test_is_searched_for_exited_clients_only(self) -> None:
        unread = present(*at_work(CLIENT), daemon_process(), server_process())
        found = [readings_wanted(each).exited for each in (present(*RUNNING), present(*LISTED), unread)]
        assert found == [{DAEMON: {}}, {DAEMON: {CLIENT: replace(process(), ended=True)}}, {DAEMON: {CLIENT: None}}]

    def test_is_watched_and_shown(self) -> None:
        found = present(*HELD)
        assert HOLDER in processes_wanted(found)
        (server,) = status_json(found)["daemons"][0]["servers"]
        assert {each["pid"]: each.get("held_by") for each in server["clients"]} == {CLIENT: [HOLDER], OTHER: None}
        assert f"train.py (exited, held by PID {HOLDER})" in status_table(found)

    def test_is_unknown_until_it_is_read_and_if_another_process_has_its_pid(self) -> None:
        for observations in (LISTED, (*LISTED, held()), (*LISTED, held(HOLDER)), (*HELD, process(HOLDER, ticks=1))):
            assert "train.py (exited, holder unknown)" in status_table(present(*observations))

    def test_a_report_about_another_process_is_ignored(self) -> None:
        for report in (held(HOLDER, pid=OTHER), held(HOLDER, pid=OTHER + 1)):
            found = present(*LISTED, report)
            assert [each.holders for each in found.daemons[DAEMON].clients.values()] == [None, None]

    def test_a_report_about_a_client_of_another_daemon_is_ignored(self) -> None:
        """Any user can have a daemon that lists the same PID."""
        other = replace(held(), daemon="/tmp/other")
        found = present(*HELD, other)
        assert found.daemons.keys() == {DAEMON}
        assert f"train.py (exited, held by PID {HOLDER})" in status_table(found)

    def test_of_a_client_that_was_never_read(self) -> None:
        found = present(*at_work(CLIENT), held(HOLDER), process(HOLDER))
        assert f"(exited, held by PID {HOLDER})" in status_table(found)
        later = replace(process(at=AT + 9), started=AT + 8)
        assert CLIENT not in reduced(later, start=found).node.processes

    def test_is_no_dead_process_if_the_daemon_lists_the_client_again(self) -> None:
        gone = (*HELD, exited(HOLDER, at=AT + 5), clients(OTHER, at=AT + 6), clients(OTHER, at=AT + 8))
        found = present(*gone, gpu_reading((OTHER,), at=AT + 9), clients(CLIENT, OTHER, at=AT + 10))
        assert CLIENT in found.daemons[DAEMON].clients
        assert CLIENT not in found.processes
        assert command_to_end(found, CLIENT) is None

    def test_its_exit_and_the_log_disconnect_the_client(self) -> None:
        ended = f"Client {{PID: {CLIENT}, Context ID: 1}} exiting. Number of active client contexts is 1."
        found = present(*HELD, exited(HOLDER, at=AT + 5))
        assert CLIENT in found.daemons[DAEMON].clients
        log = server_log(ended, f"Client process {CLIENT} disconnected", at=AT + 5.1)
        found = reduced(*log, gpu_reading((OTHER,), at=AT + 5.2), start=found).node
        assert set(found.daemons[DAEMON].clients) == {OTHER}


class TestFault:
    """It delays recovery."""

    FAULTED = (*HELD, *fault(AT + 10), clients(CLIENT, OTHER, at=AT + 10.1), gpu_reading((CLIENT,), at=AT + 30))

    def test_it_blocks_recovery_and_the_command_ends_the_holder(self) -> None:
        found = present(*self.FAULTED)
        (incident,) = found.incidents.values()
        assert (list(incident.blockers), incident.stuck) == ([CLIENT], False)
        assert kills(found)[0] == KILL
        (step, *_) = next(each for each in status_json(found)["findings"] if each["code"] == "server_fault")["steps"]
        assert step["ends"] == 1
        (blocking,) = incident_json(incident, AT + 31, address_of(found, DAEMON))["blocking"]
        assert (blocking["kill_command"], blocking["held_by"]) == ([KILL], [HOLDER])
        text = f"PID {CLIENT} (train.py of alice, exited, held by PID {HOLDER})"
        assert f"{text}, which blocks recovery" in status_table(found)
        assert f"Blocked by {text}, for 20 s so far" in status_table(found)
        page = Page({}).node(status_input(found)).decode().replace("\N{NO-BREAK SPACE}", " ")
        assert f">{text}</a></bdi>, for " in page

    def test_a_blocking_client_whose_process_was_never_read_has_not_exited(self) -> None:
        log, listed = server_log(active(), active(OTHER)), gpu_reading((CLIENT, OTHER), at=AT + 12)
        began = (*at_work(CLIENT, OTHER), daemon_process(), server_process(), *log, gpu_reading((CLIENT, OTHER)))
        found = present(*began, *fault(AT + 10), clients(CLIENT, OTHER, at=AT + 12), listed)
        (incident,) = found.incidents.values()
        blocking = incident_json(incident, AT + 13, address_of(found, DAEMON))["blocking"]
        assert {each["pid"] for each in blocking if "held_by" not in each} == {CLIENT}

    def test_without_a_known_holder_there_is_no_command(self) -> None:
        found = present(*self.FAULTED, exited(HOLDER, at=AT + 30))
        assert not any(command.startswith("kill") for command in kills(found))
        assert not any(str(CLIENT) in command for command in kills(found))

    def test_it_blocks_recovery_also_if_it_exits_after_the_fault(self) -> None:
        observations = (*RUNNING, *fault(AT + 10), exited(at=AT + 10.5), gpu_reading((CLIENT, OTHER), at=AT + 12))
        found = present(*observations, held(HOLDER, at=AT + 13), process(HOLDER, at=AT + 13), gpu_reading(at=AT + 30))
        (incident,) = found.incidents.values()
        assert (list(incident.blockers), incident.stuck) == ([CLIENT], False)

    def test_it_blocks_recovery_also_if_nvml_cannot_be_read(self) -> None:
        alone = (*at_work(CLIENT), daemon_process(), server_process(), *server_log(active()), process())
        gone = (*fault(AT + 10), exited(at=AT + 10.5), clients(CLIENT, at=AT + 12))
        read = (held(HOLDER, at=AT + 13), process(HOLDER, at=AT + 13), clients(CLIENT, at=AT + 30))
        found = present(*alone, *gone, *read)
        (incident,) = found.incidents.values()
        assert (list(incident.blockers), incident.stuck) == ([CLIENT], False)
        assert kills(found) == [KILL]

    def test_a_server_whose_clients_only_its_own_list_has_is_stuck(self) -> None:
        """After a fault of clients on two GPUs, that list still had a client that had ended (R580)."""
        alone = (*at_work(CLIENT), daemon_process(), server_process(), *server_log(active()), process())
        gone = (gpu_reading((CLIENT,)), *fault(AT + 10), exited(at=AT + 10.5), gpu_reading(at=AT + 11))
        found = present(*alone, *gone, clients(CLIENT, at=AT + 12), gpu_reading(at=AT + 30))
        (incident,) = found.incidents.values()
        assert incident.stuck
        assert not found.daemons[DAEMON].clients[CLIENT].exited_at


def test_a_recorded_client_is_connected_until_its_child_ends() -> None:
    """Process 2218 forked, and exited (H200, 580.159.04). Its child ended 10 s after a fault."""
    recorded = Recorded(RECORDED)
    events = recorded.replayed.events
    own = [each for each in events if each.pid == 2218]
    assert [each.event for each in own] == [
        EventName.CLIENT_CONNECTED,
        EventName.CLIENT_DISCONNECTED,
        EventName.CLIENT_CONNECTED,
        EventName.CLIENT_DISCONNECTED,
    ]
    assert own[2].at - own[1].at < 1.1
    assert own[3].at == 1795887064.6241605
    (over,) = [each.incident for each in events if each.event is EventName.FAULT_RECOVERED]
    assert over is not None
    assert list(over.blocking) == [2218]
    assert over.client_details[2218].user == "root"
    assert not any(each.reason == "stuck" for each in events)
