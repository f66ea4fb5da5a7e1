"""Logs of every wording since 2013: the message of each line, and equal results for all wordings.

Lines as in NVIDIA's guide and in users' reports; one that was reported without its stamp has been given one.
"""

from pathlib import Path

import pytest

from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import GpuEvent, LogLine, Observation
from exporter.parse import log_message
from exporter.parse.log_line import parse_log_line
from exporter.parse.log_message import HandlingFatalError, Message, Noise
from tests.builders import AT, DAEMON, GPU, Reduced, exited, reduced, servers

ERAS = {path.stem: tuple(path.read_text().splitlines()) for path in sorted((Path(__file__).parent / "eras").iterdir())}

PIPE = "To connect CUDA applications to this daemon, set"

MEANING: dict[str, Message] = {
    "MPS server failed to start": log_message.ServerStartFailed("failed to start"),
    "MPS Server failed to create/open SHM segment.": log_message.ServerStartFailed(
        "failed to create/open SHM segment."
    ),
    **{
        text: log_message.ServerStartFailed(text)
        for text in (
            "Failed to start : invalid argument",
            "Failed to start : operation not supported",
            "Invalid CUDA_VISIBLE_DEVICES",
            "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU.",
        )
    },
    # A daemon.
    "Start": log_message.DaemonStarting(),
    "Starting control daemon using socket /tmp/nvidia-mps/control": log_message.DaemonStarting(),
    "CUDA MPS Control binary version: 13000": log_message.VersionReported("13000"),
    "CUDA MPS Control binary version: 13030": log_message.VersionReported("13030"),
    f"{PIPE} env CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps": log_message.ProtocolReported(2),
    f"{PIPE} CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps": log_message.ProtocolReported(3),
    "Cmd:get_server_list": log_message.CommandReceived("get_server_list"),
    "17": log_message.BareNumber(17),
    "UI closed": log_message.SessionClosed(),
    "Exit with status 0": log_message.DaemonExiting(),
    # Its servers.
    "Starting new server 13929 for user 500": log_message.ServerStarting(13929, 500),
    "Starting new server 17 for user 0": log_message.ServerStarting(17, 0),
    "Starting new server 95 for user 1001": log_message.ServerStarting(95, 1001),
    "Starting new server 337 for user 0": log_message.ServerStarting(337, 0),
    "Starting new server 11803 for user 1000": log_message.ServerStarting(11803, 1000),
    "NEW SERVER 13929: Ready": log_message.ServerReady(13929),
    "NEW SERVER 17: Ready": log_message.ServerReady(17),
    "NEW SERVER 11803: Ready": log_message.ServerReady(11803),
    "MPS Server is started": log_message.ServerReady(None),
    "Server has started": log_message.ServerReady(None),
    "Server 13929 exited with status 0": log_message.ServerExited(13929),
    "Server 95 exited with status 1": log_message.ServerExited(95),
    "Server 92 exited with status 1": log_message.ServerExited(92),
    "CUDA MPS Server for Linux/Unix. Binary version: 13000": log_message.VersionReported("13000"),
    # What a server grants each client.
    "activeThreadsPercentage set to 33.000000": log_message.ThreadPercentageSet(33.0),
    "Server Priority set to 0": log_message.PrioritySet(0),
    "Active Threads Percentage set to 100.0": log_message.ThreadPercentageSet(100.0),
    "Active Threads Percentage set to 12.0": log_message.ThreadPercentageSet(12.0),
    "Active Threads Percentage set to 33.0": log_message.ThreadPercentageSet(33.0),
    "Device pinned memory limit for device 0 set to 0x77f00000 bytes": log_message.PinnedMemoryLimitSet(0, 0x77F00000),
    "Device pinned memory limit for device 0 set to 0x140000000 bytes": log_message.PinnedMemoryLimitSet(0, 5 << 30),
    # Clients.
    "NEW CLIENT 19276 from user 500: Server already exists": log_message.ClientForwarded(19276, 500),
    "NEW CLIENT 0 from user 0: Server already exists": log_message.ClientForwarded(0, 0),
    "NEW CLIENT 0 from user 1000: Server is not ready, push client to pending list": log_message.ClientQueued(0, 1000),
    "NEW CLIENT 11801 from user 1000: Server is not ready, push client to pending list": log_message.ClientQueued(
        11801, 1000
    ),
    "Client {PID: 4267, Context ID: 0} connected": log_message.ClientConnecting(4267, 0),
    "New client 14781 connected": log_message.ClientActive(14781),
    "Volta MPS: status of client {11661, 1} is ACTIVE": log_message.ClientActive(11661, 1),
    "Volta MPS: status of client {11663, 1} is ACTIVE": log_message.ClientActive(11663, 1),
    "Volta MPS: status of client {11643, 2} is ACTIVE": log_message.ClientActive(11643, 2),
    "Status of client {4267, 1} is ACTIVE": log_message.ClientActive(4267, 1),
    "Client 14777 disconnected": log_message.ClientDisconnected(14777),
    "Volta MPS: Client disconnected. Number of active client contexts is 2": log_message.UnnamedDisconnect(),
    "Volta MPS: Client process disconnected": log_message.UnnamedDisconnect(),
    "Client {11641, 1} exit": log_message.ContextExited(11641, 1),
    "Client {11643, 1} exit": log_message.ContextExited(11643, 1),
    "Client {11643, 2} exit": log_message.ContextExited(11643, 2),
    "Device NVIDIA A16 (uuid GPU-077f7bb7-c8e8-46db-77e3-e2c1e5665c78) is associated": log_message.DeviceAssociated(
        "GPU-077f7bb7-c8e8-46db-77e3-e2c1e5665c78"
    ),
    # A fault.
    "Volta MPS: Server is handling a fatal GPU error.": log_message.HandlingFatalError(),
    "Volta MPS: The following devices": log_message.ResetDevicesFollow(),
    "0": log_message.BareNumber(0),
    "1": log_message.BareNumber(1),
    "Volta MPS: The following clients have a sticky error set:": log_message.StickyErrorClientsFollow(),
    "11641": log_message.BareNumber(11641),
    "11643": log_message.BareNumber(11643),
    "Volta MPS: Destroy server context on device 0": log_message.ServerContextDestroyed(0),
    "Volta MPS: Destroy server context on device 1": log_message.ServerContextDestroyed(1),
    "Volta MPS: Creating server context on device 0": log_message.ServerContextCreated(0),
    "Volta MPS: Creating server context on device 1": log_message.ServerContextCreated(1),
    "Creating server context on device 0 (NVIDIA A16)": log_message.ServerContextCreated(0),
    "Creating server context on device 0 (Tesla T4)": log_message.ServerContextCreated(0),
}
"""The expected messages. All other lines of these logs are noise."""


def text_of(line: str) -> str:
    return line.partition("] ")[2]


def test_parses_every_line_of_every_era(subtests: pytest.Subtests) -> None:
    for era, lines in ERAS.items():
        for line in lines:
            with subtests.test(era=era, line=line):
                entry = parse_log_line(line)
                assert entry is not None
                assert entry.message == MEANING.get(text_of(line), Noise())


def test_every_expected_message_occurs_in_some_era() -> None:
    assert MEANING.keys() <= {text_of(line) for lines in ERAS.values() for line in lines}


def reduced_era(era: str, start: Node | None = None, until: str = "") -> Reduced:
    """Reduce the lines of an era, each in its file, up to one with the text `until`.

    The daemon lists the server, and an Xid comes with a fault.
    """
    seen: list[Observation] = []
    for second, line in enumerate(ERAS[era]):
        entry = parse_log_line(line)
        assert entry is not None
        file = "control.log" if entry.by_daemon else "server.log"
        seen.append(LogLine(at=AT + second, daemon=DAEMON, file=file, line=line))
        if isinstance(entry.message, HandlingFatalError):
            seen += (servers(entry.pid, at=AT + second), GpuEvent(at=AT + second, type=8, xid=31, gpu=GPU))
        if until and until in line:
            break
    return reduced(*seen, start=start)


class TestEquivalentLogs:
    """Different wordings, equal results."""

    def test_a_client_of_2013_connects_and_disconnects(self) -> None:
        """One that was never seen to come has not left."""
        result = reduced_era("a_2013")
        assert [(event.event, event.pid) for event in result.events if event.pid is not None] == [
            (EventName.CLIENT_CONNECTED, 14781),
            (EventName.CLIENT_DISCONNECTED, 14781),
        ]
        assert not result.daemon.servers

    def test_a_client_of_2022_disconnects_with_its_last_context(self) -> None:
        """It had one on each of two devices. No line reports the process itself."""
        before = reduced_era("b_2022_fault", until="{11643, 2} is ACTIVE").node
        once = reduced(_server_line("Volta MPS: status of client {11643, 1} is ACTIVE"), start=before)
        one_left = reduced(_server_line("Client {11643, 1} exit"), start=once.node)
        assert 11643 in one_left.daemon.clients
        assert 11643 not in reduced(_server_line("Client {11643, 2} exit"), start=one_left.node).daemon.clients

    def test_a_fault_of_2022_ends_when_no_device_has_contexts(self) -> None:
        """Its block is in other words, and the lists in it are bare numbers."""
        result = reduced_era("b_2022_fault")
        states = [(event.state, event.at - AT) for event in result.of(EventName.SERVER_STATE)]
        lines = [text_of(line) for line in ERAS["b_2022_fault"]]
        assert states == [
            ("fault", lines.index("Volta MPS: Server is handling a fatal GPU error.")),
            ("active", lines.index("Volta MPS: Destroy server context on device 1")),
        ]
        assert result.daemon.clients.keys() == {11661, 11663}

    def test_a_new_server_context_ends_a_fault_after_a_missed_line(self) -> None:
        """It makes new ones only after all have been destroyed (2022)."""
        faulted = reduced_era("b_2022_fault", until="Destroy server context on device 0").node
        victims = (11641, 11643)
        gone = (exited(pid, at=faulted.at) for pid in victims)
        result = reduced(_server_line("Volta MPS: Creating server context on device 0"), *gone, start=faulted)
        assert [event.state for event in result.of(EventName.SERVER_STATE)] == ["active"]

    def test_pids_of_affected_clients_are_no_devices(self) -> None:
        """Both lists are bare numbers."""
        faulted = reduced_era("b_2022_fault", until="11643").node
        assert reduced_era("b_2022_fault", until="] 11643").daemon.servers[11570].devices_to_reset == {0, 1}
        assert faulted.daemons[DAEMON].servers.keys() == {11570}

    @pytest.mark.parametrize(("era", "protocol"), [("b_2021", 2), ("d_2026", 3)])
    def test_one_word_distinguishes_the_protocols(self, era: str, protocol: int) -> None:
        """`set env` or `set` alone."""
        assert reduced_era(era).daemon.runtime.protocol == protocol

    @pytest.mark.parametrize(
        ("era", "server", "percentage", "limits"),
        [
            ("b_2021", 49653, 100.0, {}),
            ("c_2024", 82, 12.0, {0: 0x77F00000}),
            ("d_2026", 4428, 33.0, {0: 5 << 30}),
        ],
    )
    def test_the_start_of_a_server_reports_its_limits(
        self, era: str, server: int, percentage: float, limits: dict[int, int]
    ) -> None:
        """In force for each client that connects to it."""
        started = reduced_era(era, until="Server is started" if era == "b_2021" else "Server has started").daemon
        assert started.servers[server].limits.active_thread_percentage == percentage
        assert started.servers[server].limits.pinned_memory == limits

    def test_recognizes_every_line_of_an_era(self, subtests: pytest.Subtests) -> None:
        """None is counted as such."""
        for era in ERAS:
            with subtests.test(era=era):
                assert not sum(reduced_era(era).daemon.totals.log_lines_unrecognized.values())


def _server_line(text: str) -> LogLine:
    return LogLine(at=AT + 100, daemon=DAEMON, file="server.log", line=f"[2022-04-28 15:56:09.000 Other 11570] {text}")
