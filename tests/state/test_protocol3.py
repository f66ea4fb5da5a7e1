"""Replies of a daemon with protocol 3, reduced: states, clients, limits, commands."""

from collections.abc import Sequence

import pytest

from exporter.metrics.catalogue import NodeCollector
from exporter.model.daemon import Daemon, DaemonState, Declaration
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import (
    ControlReply,
    DaemonProcess,
    GpuProcess,
    GpuReading,
    LogLine,
    Observation,
    ProcessExit,
    ProcessReading,
)
from exporter.model.server import ServerState
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, Limits, Mode, PollIntervals
from exporter.model.values import replace
from exporter.model.watchdog import WatchdogState
from exporter.parse import protocol3
from exporter.parse.protocol3 import LIST_CLIENTS, LIST_NAMESPACES, LIST_SERVERS
from exporter.reducer import reduce
from exporter.report.node_findings import findings
from exporter.report.remedy import address_of, command_to_end_server, commands_to_stop
from exporter.state.poll_schedule import commands
from exporter.usage.capacity import thread_ratio
from exporter.view import View
from exporter.watchdog.limit_enforcement import LimitStatus, check_limits, enforce
from tests.builders import GPU
from tests.status import commands_of, status_table

NAME = "/run/nvidia-mps"
DAEMON, SERVER, CLIENT, OTHER = 77, 90, 100, 101
SERVERS = "NAME,UID,PID,STATUS,PIPE-DIRECTORY,ALLOWED-DEVICES,CONTEXT-IDS\n"
CLIENTS = "PID,SERVER,DEVICE,MAWS NS,CMD\n"
NAMESPACES = "name,server,server-status,pinned-memory-limit,active-thread-percentage,client-priority,pipe-directory\n"


def reply(at: float, command: str, stdout: str) -> ControlReply:
    return ControlReply(at=at, daemon=NAME, command=command, exit_code=0, stdout=stdout, seconds=0.001)


def servers(at: float, status: str = "Ready", name: str = "training") -> ControlReply:
    return reply(at, LIST_SERVERS, f"{SERVERS}{name},1000,{SERVER},{status},{NAME}/{name},-,-\nidle,0,-,-,-,-,-\n")


def clients(at: float, *pids: int, namespace: str = "default", name: str = "training") -> ControlReply:
    rows = "".join(f"{pid},{name},{GPU},{name}/{namespace} (0),python\n" for pid in pids)
    return reply(at, LIST_CLIENTS, CLIENTS + rows)


def nvml(at: float, *pids: int) -> GpuReading:
    processes = tuple(GpuProcess(pid=pid) for pid in pids)
    return GpuReading(at=at, gpu=GPU, index=0, compute_processes=processes, mps_processes=processes)


START: Sequence[Observation] = (
    DaemonProcess(at=1.0, daemon=NAME, pid=DAEMON, start_ticks=5, protocol=3, servers=(SERVER,), uid=0),
    servers(2.0),
)


def after(*seen: Observation) -> tuple[Node, list[EventName]]:
    daemon = Daemon(name=NAME, pipe_directory=NAME, log_directory="/log", declared=Declaration(expected=True))
    node, names = Node(daemons={NAME: daemon}), list[EventName]()
    for each in (*START, *seen):
        node, events = reduce(node, each)
        names.extend(event.event for event in events)
    return node, names


def test_reports_the_states_of_servers() -> None:
    node, _ = after()
    server = node.daemons[NAME].servers[SERVER]
    assert (server.name, server.uid, server.state) == ("training", 1000, ServerState.ACTIVE)

    node, _ = after(servers(3.0, "A new word"))
    assert node.daemons[NAME].servers[SERVER].state is ServerState.ACTIVE

    # As with protocol 2, one report of a fault proves nothing.
    node, _ = after(servers(10.0, "FAULT"))
    assert node.daemons[NAME].servers[SERVER].state is ServerState.ACTIVE
    node, _ = after(servers(10.0, "FAULT"), servers(12.0, "FAULT"))
    assert node.daemons[NAME].servers[SERVER].state is ServerState.FAULT


def test_an_empty_reply_ends_no_server_and_no_client() -> None:
    node, names = after(nvml(3.0, CLIENT), clients(4.0, CLIENT), *(reply(at, LIST_SERVERS, "") for at in (6.0, 9.0)))
    assert SERVER in node.daemons[NAME].servers
    node, _ = after(nvml(3.0, CLIENT), clients(4.0, CLIENT), *(reply(at, LIST_CLIENTS, "") for at in (6.0, 9.0)))
    assert CLIENT in node.daemons[NAME].clients
    assert EventName.DAEMON_UP in names


def test_a_listed_process_that_nvml_does_not_show_is_no_client() -> None:
    node, _ = after(nvml(3.0, CLIENT), clients(4.0, CLIENT, OTHER), clients(8.0, CLIENT, OTHER))
    assert set(node.daemons[NAME].clients) == {CLIENT}


def test_a_client_that_is_no_longer_listed_has_disconnected() -> None:
    node, _ = after(nvml(3.0, CLIENT, OTHER), clients(4.0, CLIENT, OTHER), nvml(8.0, CLIENT), clients(9.0, CLIENT))
    assert set(node.daemons[NAME].clients) == {CLIENT}


def test_without_nvml_no_client_is_known_and_none_disconnects() -> None:
    node, _ = after(clients(4.0, CLIENT))
    assert not node.daemons[NAME].clients
    assert node.daemons[NAME].servers[SERVER].has_hidden_pids


def test_a_client_has_the_limits_of_its_namespace() -> None:
    rows = "default,training,Ready,-,100,0,/x\nsmall,training,Ready,2G,25,1,/x\nsmall,other,Ready,-,1,0,/x\n"
    process = ProcessReading(at=5.0, pid=CLIENT, start_ticks=1, started=1.0, environment={})
    node, _ = after(
        nvml(3.0, CLIENT),
        clients(4.0, CLIENT, namespace="small"),
        reply(5.0, LIST_NAMESPACES, NAMESPACES + rows),
        process,
    )
    daemon = node.daemons[NAME]
    assert daemon.servers[SERVER].namespaces["small"] == Limits(
        active_thread_percentage=25.0, pinned_memory={0: 2 << 30}, client_priority=1
    )
    assert daemon.servers[SERVER].limits.active_thread_percentage == 100.0
    assert thread_ratio(node, daemon, daemon.clients[CLIENT]) == 0.25


def test_the_percentage_of_a_namespace_replaces_that_of_the_client(subtests: pytest.Subtests) -> None:
    """100 can mean that the namespace has none (NVIDIA's MPS guide, release 615)."""
    for of_namespace, own, expected in [
        ("25", "10", 0.25),
        ("25", "50", 0.25),
        ("25", None, 0.25),
        ("100", None, 1.0),
        ("100", "50", None),
    ]:
        with subtests.test(of_namespace=of_namespace, own=own, expected=expected):
            environment = {} if own is None else {ACTIVE_THREAD_PERCENTAGE: own}
            node, _ = after(
                nvml(3.0, CLIENT),
                clients(4.0, CLIENT),
                reply(5.0, LIST_NAMESPACES, f"{NAMESPACES}default,training,Ready,-,{of_namespace},0,/x\n"),
                ProcessReading(at=5.0, pid=CLIENT, start_ticks=1, started=1.0, environment=environment),
            )
            daemon = node.daemons[NAME]
            assert thread_ratio(node, daemon, daemon.clients[CLIENT]) == expected


def test_a_limit_in_unknown_words_is_unknown() -> None:
    row = "default,training,Ready,plenty,most,high,/x\n"
    node, _ = after(reply(5.0, LIST_NAMESPACES, NAMESPACES + row))
    assert node.daemons[NAME].servers[SERVER].namespaces == {"default": Limits()}


def test_a_daemon_that_does_not_know_the_command_has_protocol_2() -> None:
    node, _ = after(reply(3.0, LIST_SERVERS, f'Unknown command "{LIST_SERVERS}"\n'))
    assert node.daemons[NAME].runtime.protocol == 2
    assert "get_server_list" in commands(node, NAME, PollIntervals())


def test_counts_what_it_does_not_know() -> None:
    node, _ = after(reply(3.0, LIST_CLIENTS, "PID,SERVER,DEVICE,MAWS NS,CMD,MOOD\nnot a row\n"))
    assert node.daemons[NAME].totals.replies_unrecognized == {"column": 1, "row": 1}


def enforced(node: Node, wanted: Limits) -> list[str]:
    _, _, action = enforce(node, node.daemons[NAME], WatchdogState(), wanted, Mode.ACT, node.at)
    return [] if action is None else [step.command for step in action.steps if hasattr(step, "command")]


def test_sets_limits_only_while_the_namespace_has_no_client() -> None:
    wanted = Limits(active_thread_percentage=50.0, pinned_memory={0: 1 << 30, 1: 1 << 30}, client_priority=1)
    listed = reply(3.0, LIST_NAMESPACES, NAMESPACES + "default,training,Ready,-,100,0,/x\n")
    node, _ = after(listed)
    assert enforced(node, wanted) == [
        "server set training --pinned-memory-limit=1G",
        "server set training --active-thread-percentage=50",
        "server set training --client-priority=1",
        LIST_NAMESPACES,
    ]
    node, _ = after(listed, nvml(4.0, CLIENT), clients(5.0, CLIENT))
    assert enforced(node, wanted) == []
    node, _ = after()
    assert enforced(node, wanted) == []


def test_reports_different_memory_limits_of_devices_and_sets_none() -> None:
    wanted = Limits(pinned_memory={0: 2 << 30, 1: 1 << 30})
    node, _ = after(reply(3.0, LIST_NAMESPACES, NAMESPACES + "default,training,Ready,2G,100,0,/x\n"))
    checks = check_limits(node.daemons[NAME], wanted, node.at)
    assert [(check.status, check.reason.parameters.get("device")) for check in checks] == [
        (LimitStatus.IN_FORCE, 0),
        (LimitStatus.DRIFTED, 1),
    ]
    assert enforced(node, wanted) == []
    watch = replace(WatchdogState(), wanted_limits=wanted)
    (finding,) = (each for each in findings(replace(node, watches={NAME: watch}), node.at) if each.daemon == NAME)
    assert "memory limit of device 1 is 2 GiB, not 1 GiB" in finding.values["limits"]
    assert commands_of(finding) == ()


def test_shows_commands_of_protocol_3() -> None:
    node, _ = after()
    address = address_of(node, NAME)
    assert commands_to_stop(node, node.daemons[NAME], None) == (
        f"CUDA_MPS_PIPE_DIRECTORY={NAME} nvidia-cuda-mps-control -q",
    )
    # A deleted server with a name of its own would lose its settings.
    assert command_to_end_server(SERVER, address) is None
    node, _ = after(servers(3.0, name="uid_1000"))
    command = command_to_end_server(SERVER, address_of(node, NAME))
    assert command == f"CUDA_MPS_PIPE_DIRECTORY={NAME} nvidia-cuda-mps-control server delete uid_1000 --force"


# A daemon with an unsupported protocol is reported as such and not queried.


STARTED = "Starting control daemon using socket /run/nvidia-mps/control"
PROTOCOL_3_LINE = "To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"
PROTOCOL_2_LINE = "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"


def after_unsupported(*seen: Observation) -> tuple[Node, list[EventName]]:
    node = Node(
        daemons={
            NAME: Daemon(name=NAME, pipe_directory=NAME, log_directory="/log", declared=Declaration(expected=True))
        }
    )
    names: list[EventName] = []
    for each in seen:
        node, events = reduce(node, each)
        names.extend(event.event for event in events)
    return node, names


def process(at: float = 1.0, protocol: int | None = 4, pid: int = 77) -> DaemonProcess:
    return DaemonProcess(at=at, daemon=NAME, pid=pid, start_ticks=5, protocol=protocol)


def log(text: str, at: float = 2.0) -> LogLine:
    line = f"[2026-11-20 15:08:45.147 Control    77] {text}"
    return LogLine(at=at, daemon=NAME, file="control.log", line=line)


def samples(node: Node, name: str) -> list[float]:
    found = (metric for metric in NodeCollector(View(node)).collect())
    return [sample.value for metric in found for sample in metric.samples if sample.name == name]


def test_sends_no_query_and_has_no_state() -> None:
    node, _ = after_unsupported(process())

    assert commands(node, NAME, PollIntervals()) == ()
    assert node.daemons[NAME].state is None
    assert samples(node, "cuda_mps_daemon_up") == []
    assert samples(node, "cuda_mps_daemon_supported") == [0]


def test_the_log_shows_protocol_3() -> None:
    for observations in (
        (process(protocol=None), log(PROTOCOL_3_LINE)),
        (log(STARTED), log(PROTOCOL_3_LINE), process(at=3, protocol=2)),
    ):
        node, _ = after_unsupported(*observations)

        assert protocol3.LIST_SERVERS in commands(node, NAME, PollIntervals())


def test_servers_and_clients_of_an_unsupported_daemon_are_known_from_proc_and_nvml() -> None:
    node, events = after_unsupported(
        replace(process(), servers=(90,)),
        GpuReading(at=2.0, gpu=GPU, compute_processes=(GpuProcess(pid=90),), mps_processes=(GpuProcess(pid=91),)),
    )

    assert events == [EventName.SERVER_STARTED, EventName.CLIENT_CONNECTED]
    assert samples(node, "cuda_mps_server_clients") == [1]
    assert samples(node, "cuda_mps_bypassing_processes") == [0]

    node, events = after_unsupported(replace(process(), servers=(90,)), replace(process(at=3.0), servers=()))
    assert events == [EventName.SERVER_STARTED, EventName.SERVER_EXITED]


def test_status_reports_the_reason() -> None:
    node, _ = after_unsupported(process())

    assert "unsupported" in status_table(node)
    assert "MPS protocol 4 is unknown" in status_table(node)


def test_reports_the_end_of_an_unsupported_daemon() -> None:
    node, events = after_unsupported(process(), ProcessExit(at=5.0, pid=77, start_ticks=5), log("", at=20.0))

    assert node.daemons[NAME].state is DaemonState.DOWN
    assert events == [EventName.DAEMON_LOST]


def test_queries_a_new_daemon_with_the_supported_protocol() -> None:
    node, _ = after_unsupported(
        process(), ProcessExit(at=5.0, pid=77, start_ticks=5), process(at=20.0, protocol=2, pid=78)
    )

    assert node.daemons[NAME].supported
    assert commands(node, NAME, PollIntervals())


def test_a_log_line_with_the_supported_protocol_changes_nothing() -> None:
    node, _ = after_unsupported(process(protocol=None), log(PROTOCOL_2_LINE))

    assert samples(node, "cuda_mps_daemon_supported") == [1]
    assert commands(node, NAME, PollIntervals())
