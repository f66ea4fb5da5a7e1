"""Messages of log lines. Whole logs of each era are in `test_log_eras`."""

from itertools import product

import pytest

from exporter.parse import log_message
from exporter.parse.log_line import LogEntry, parse_log_line, parse_log_message, seconds_between
from exporter.parse.log_message import Message, Noise, Unrecognized
from tests.builders import stamped

NOISE, UNRECOGNIZED = Noise(), Unrecognized()

MESSAGES: tuple[tuple[str, Message], ...] = (
    # A daemon's life: 2021, 2024, R580.
    ("Start", log_message.DaemonStarting()),
    ("Starting control daemon using socket /tmp/nvidia-mps/control", log_message.DaemonStarting()),
    ("CUDA MPS Control binary version: 13000", log_message.VersionReported("13000")),
    ("CUDA MPS Server for Linux/Unix. Binary version: 13000", log_message.VersionReported("13000")),
    ("Exit with status 0", log_message.DaemonExiting()),
    # Servers: the same words from 2013 to R580.
    ("Starting new server 13929 for user 500", log_message.ServerStarting(13929, 500)),
    ("NEW SERVER 13929: Ready", log_message.ServerReady(13929)),
    ("Server has started", log_message.ServerReady(None)),
    ("MPS Server is started", log_message.ServerReady(None)),
    ("Server 7068 exited with status 0", log_message.ServerExited(7068)),
    ("Server 95 exited with status 1", log_message.ServerExited(95)),
    ("Server 513 has 2 active worker threads. Server will not shutdown.", log_message.ServerWillNotShutDown(513)),
    # Clients: 2013, R450 to R515, R580.
    ("New client 14781 connected", log_message.ClientActive(14781)),
    ("Client {11641, 1} exit", log_message.ContextExited(11641, 1)),
    (
        "Client {PID: 2046, Context ID: 1} exiting. Number of active client contexts is 2.",
        log_message.ContextExiting(2046, 1, in_reset=False),
    ),
    (
        "Client {PID: 1649, Context ID: 2} exiting. Worker is in reset. Number of active client contexts is 2.",
        log_message.ContextExiting(1649, 2, in_reset=True),
    ),
    (
        "Device NVIDIA A16 (uuid GPU-077f7bb7-c8e8-46db-77e3-e2c1e5665c78) is associated",
        log_message.DeviceAssociated("GPU-077f7bb7-c8e8-46db-77e3-e2c1e5665c78"),
    ),
    ("Client 14777 disconnected", log_message.ClientDisconnected(14777)),
    ("Volta MPS: status of client {11661, 1} is ACTIVE", log_message.ClientActive(11661)),
    ("Status of client {2046, 1} is ACTIVE", log_message.ClientActive(2046)),
    ("Status of client {PID: 508, Context ID: 1} is ACTIVE", log_message.ClientActive(508)),
    ("Client {PID: 4267, Context ID: 0} connected", log_message.ClientConnecting(4267, 0)),
    ("Client {PID: 4267, Context ID: 2} connected", log_message.ClientConnecting(4267, 2)),
    ("Client process 1260 disconnected", log_message.ClientDisconnected(1260)),
    ("Volta MPS: Client disconnected. Number of active client contexts is 2", log_message.UnnamedDisconnect()),
    ("Volta MPS: Client process disconnected", log_message.UnnamedDisconnect()),
    ("NEW CLIENT 509 from user 0: Server already exists", log_message.ClientForwarded(509, 0)),
    (
        "NEW CLIENT 11801 from user 1000: Server is not ready, push client to pending list",
        log_message.ClientQueued(11801, 1000),
    ),
    # Those who are turned away.
    ("Failed to accept new client. Maximum number of clients (48) reached.", log_message.ClientLimitReached(48)),
    ("Failed to accept new client. Maximum number of clients (60) reached.", log_message.ClientLimitReached(60)),
    (
        "Server teardown in progress. Refusing to accept new client {PID: 2458, Context ID: 0}",
        log_message.ClientRefusedInTeardown(2458),
    ),
    ("Failed to accept client {PID: 2458, Context ID: 0} with status 807", log_message.ClientNotAccepted(2458, 807)),
    # Commands of an operator.
    ("MPS server requesting client {PID: 668, Context ID: 1} to exit", log_message.ClientExitRequested(668)),
    ("Try shutting down server 513, backoff is enabled", log_message.ServerShutdownRequested(513)),
    ("Try shutting down server 513, backoff is disabled", log_message.ServerShutdownRequested(513)),
    ("Force shutting down server 451", log_message.ServerShutdownRequested(451)),
    # A fault: R450 to R515, then R580.
    ("Volta MPS: Server is handling a fatal GPU error.", log_message.HandlingFatalError()),
    ("Volta MPS: The following devices", log_message.ResetDevicesFollow()),
    ("Volta MPS: The following clients have a sticky error set:", log_message.StickyErrorClientsFollow()),
    ("Volta MPS: Destroy server context on device 0", log_message.ServerContextDestroyed(0)),
    ("Client {PID: 2045, Context: 1} encountered a fatal GPU error.", log_message.ClientFatalError(2045)),
    ("Server is handling a fatal GPU error.", log_message.HandlingFatalError()),
    ("Client {PID: 2046, Context ID: 1} on device 0 to be torn down", log_message.ClientToBeTornDown(2046)),
    (
        "Client {PID: 2046, Context ID: 2} on the error-trigging process 2046 to be torn down",
        log_message.ClientToBeTornDown(2046),
    ),
    ("The following devices will be reset:", log_message.ResetDevicesFollow()),
    ("The following client process have a sticky error set:", log_message.StickyErrorClientsFollow()),
    ("Destroy server context on device 1 (NVIDIA H200)", log_message.ServerContextDestroyed(1)),
    ("11641", log_message.BareNumber(11641)),
    ("Creating server context on device 0 (NVIDIA A16)", log_message.ServerContextCreated(0)),
    # Limits of a server, and the protocol of its daemon.
    ("activeThreadsPercentage set to 33.000000", log_message.ThreadPercentageSet(33.0)),
    ("Active Threads Percentage set to 12.0", log_message.ThreadPercentageSet(12.0)),
    ("Server Priority set to 0", log_message.PrioritySet(0)),
    ("Client Priority set to 1", log_message.PrioritySet(1)),
    (
        "Device pinned memory limit for device 0 set to 0x77f00000 bytes",
        log_message.PinnedMemoryLimitSet(0, 0x77F00000),
    ),
    (
        "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
        log_message.ProtocolReported(2),
    ),
    (
        "To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps",
        log_message.ProtocolReported(3),
    ),
    # An operator's session with the daemon.
    ("Cmd:get_server_status 513", log_message.CommandReceived("get_server_status 513")),
    ("UI closed", log_message.SessionClosed()),
)

NOISE_LINES = (
    # A normal start, of each era.
    "MPS Server connecting to control daemon on socket: /tmp/nvidia-mps/control",
    "Connecting to control daemon on socket: /run/nvidia/mps/nvidia.com/gpu.shared/pipe/control",
    "Startup",
    "Initializing server process",
    "Created named shared memory region /cuda.shm.0.52.1",
    "Created anonymous shared memory region mps.shm.1000.4428",
    "Display Driver version: 580",
    "Server Priority set to -1",
    # A normal client connects and disconnects.
    "Accepting connection...",
    "Volta MPS Server: Received new client request",
    "MPS Server: worker created",
    "Volta MPS: Creating worker thread",
    "Volta MPS: Device Tesla T4 (uuid 0xafc3ccca-0xc3365689-0x2ed8f0e1-0x4233036f) is associated",
    "Creating worker thread for client {PID: 4267, Context ID: 0}",
    "Priority level of client {4267} is: 0 ",
    # Commands of an operator.
    "Server has been notified to shutdown",
    "Exiting",
    "Client termination succeeded.",
    # A server failed to start or to serve. Another line reports its exit.
    "Server encountered a fatal exception. Shutting down",
    "Unable to read new connection type information",
)

REASONS = (
    "failed to start",
    "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU.",
    "Failed to start : operation not supported",
    "Driver initialization failed with: unknown error",
    "failed to create/open SHM segment.",
    "Invalid CUDA_VISIBLE_DEVICES",
)

HARMLESS = (
    "User did not send valid credentials",
    "Server failed to recevie command with status 806, assuming client {PID: 509, Context ID: 1} exit",
    "Receive command failed, assuming client exit",
    "Received new client request for {PID: -1333654781, Context ID: 0}",
    "Received new client request for {PID: 4, Context ID: 669254896}",
    "Received new client request for {PID: 1073741824, Context ID: 1}",
    "All clients belonging to error trigging process 2046 will be torn down",
    "Volta MPS: status of client {11641, 1} is INACTIVE",
    "Control will try shutting down server 513 again in at most 2000ms",
    "FAULT",
    "Server 1 not found",
    "0,00:00.0,GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b,NVIDIA H200",
    "Device Ordinal,PCI IDs,UUID,Name",
    "Default",
    "0,0000:00.06.00,GPU-d35d017b-5422-1fb0-4407-ceb46bb07fbd,NVIDIA H200,N/A",
    "Server 428",
    'Unknown command "bogus"',
    "No default pinned memory limit set for the device!",
    "set_default_device_pinned_mem_limit 0 2G.",
    "GPU           Partition  free  used  free  used  clients",
    "chunk chunk SM SM",
    "                         chunks  chunks  SM  SM",
    "GPU-1efa3f60  -  0  16  0  132  -",
    "GPU-1efa3f60  Kp8AAAAA/w==  -  4  -  34  No",
)


def test_returns_the_message_of_a_line(subtests: pytest.Subtests) -> None:
    for text, message in MESSAGES:
        with subtests.test(text=text, message=message):
            assert parse_log_message(text) == message


def test_reports_why_a_server_cannot_start(subtests: pytest.Subtests) -> None:
    for text, prefix in product(REASONS, ["", "MPS server "]):
        with subtests.test(text=text, prefix=prefix):
            prefix = prefix if text.startswith("failed") else ""
            assert parse_log_message(prefix + text) == log_message.ServerStartFailed(text)


def test_a_known_line_without_a_value_is_noise(subtests: pytest.Subtests) -> None:
    for text in NOISE_LINES:
        with subtests.test(text=text):
            assert parse_log_message(text) == NOISE


def test_a_line_that_only_resembles_a_fault_is_noise(subtests: pytest.Subtests) -> None:
    """These occur with normal connects and exits, with replies, or next to the lines of a fault (measured, R580).

    Replies to `lspart` are those of NVIDIA's guide, release 615.
    """
    for text in HARMLESS:
        with subtests.test(text=text):
            assert parse_log_message(text) == NOISE


@pytest.mark.parametrize(
    "text",
    [
        "Active Threads Percentage set to -1",
        "Device pinned memory limit for device 0 set to 2G bytes",
        "A message of a future driver about server 513",
        "server.log was rotated",
    ],
)
def test_a_line_that_matches_no_rule_is_unrecognized(text: str) -> None:
    assert parse_log_message(text) == UNRECOGNIZED


def test_a_line_that_quotes_a_message_is_another_message(subtests: pytest.Subtests) -> None:
    """Every rule matches the whole message. Only a command contains arbitrary text."""
    for text, around in product([text for text, _ in MESSAGES], ["he wrote {}", " {}", '"{}"', "{}\n{}"]):
        with subtests.test(text=text, around=around):
            quoting = parse_log_message(around.replace("{}", text))
            assert quoting in (UNRECOGNIZED, NOISE) or isinstance(quoting, log_message.CommandReceived)


def test_an_unknown_command_that_resembles_a_message_is_noise() -> None:
    """Any user of the daemon can send such a command. The daemon echoes unknown commands."""
    assert parse_log_message('Unknown command "Server 513 exited with status 0"') == NOISE


def test_a_row_of_ps_is_noise_for_any_client_name(subtests: pytest.Subtests) -> None:
    for command in [
        "/opt/load/client",
        "python train.py --note 'Server 513 exited with status 0'",
        "Server 513 exited with status 0",
        "Exit with status 0",
        "[2026-11-20 15:08:45.147 Control   441] Exit with status 0",
        "x" * 4000,
        "\udc80\udcff",
        'a"b\\c\td',
    ]:
        with subtests.test(command=command):
            row = f"9620      22        9523           GPU-1efa3f60-b0ba-115c    4026531836     {command}"
            assert parse_log_message(row) == NOISE


class TestForm:
    """Timestamp, role, PID and message."""

    def test_returns_role_and_pid_of_the_writer(self, subtests: pytest.Subtests) -> None:
        """The PID is padded to five places; the role has changed its name over the years."""
        for line, role, pid in [
            ("[2013-08-05 12:50:23.347 Control 13894] UI closed", "Control", 13894),
            ("[2021-06-27 07:30:24.637 Control     6] UI closed", "Control", 6),
            ("[2024-06-10 15:16:40.777 Control 111377] UI closed", "Control", 111377),
            ("[2022-04-28 15:56:08.906 Other 11570] UI closed", "Other", 11570),
            ("[2026-04-28 18:20:41.986 Server 4428] UI closed", "Server", 4428),
            ("[2024-04-29 11:22:10.446 Legacy Server   425] UI closed", "Legacy Server", 425),
        ]:
            with subtests.test(line=line, role=role, pid=pid):
                assert parse_log_line(line) == LogEntry(role, pid, log_message.SessionClosed(), line[1:24])

    def test_returns_the_time_between_two_stamps(self, subtests: pytest.Subtests) -> None:
        """To the millisecond, and over midnight."""
        for later, seconds in [
            ("2026-11-20 15:08:45.147", 0.0),
            ("2026-11-20 15:08:45.150", 0.003),
            ("2026-11-20 16:09:44.147", 3659.0),
            ("2026-11-20 15:08:44.147", -1.0),
            ("2026-11-21 00:00:00.147", 31875.0),
        ]:
            with subtests.test(later=later, seconds=seconds):
                assert seconds_between("2026-11-20 15:08:45.147", later) == seconds

    @pytest.mark.parametrize(("role", "by_daemon"), [("Control", True), ("Server", False), ("Other", False)])
    def test_distinguishes_the_control_daemon_from_servers(self, role: str, by_daemon: bool) -> None:
        """In the foreground both write to one stream."""
        entry = parse_log_line(stamped("UI closed", role))
        assert entry is not None
        assert entry.by_daemon is by_daemon

    def test_an_empty_message_is_noise(self) -> None:
        """The daemon echoes those too."""
        assert parse_log_line("[2026-11-20 15:08:45.147 Control   441] ") == LogEntry(
            "Control", 441, NOISE, "2026-11-20 15:08:45.147"
        )

    def test_a_text_of_another_form_is_no_line(self, subtests: pytest.Subtests) -> None:
        """Torn lines, and text of other programs in the same journal."""
        for line in [
            "",
            "Server 513 exited with status 0",
            "[2026-11-20 15:08:45.147] Server 513 exited with status 0",
            "[2026-11-20 15:08:45.147 Control] Server 513 exited with status 0",
            "[2026-11-20 15:08 Control   441] Server 513 exited with status 0",
            " [2026-11-20 15:08:45.147 Control   441] Exit with status 0",
            "x [2026-11-20 15:08:45.147 Control   441] Exit with status 0",
            "[2026-11-20 15:08:45.147 Control 99999999999] Exit with status 0",
        ]:
            with subtests.test(line=line):
                assert parse_log_line(line) is None
