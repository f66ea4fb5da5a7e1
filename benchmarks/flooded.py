"""Log lines for a flood: a poller's queries, clients that connect and exit, and others."""

from collections.abc import Iterator

FIRST_PID = 4_200_000
"""No process has such a PID."""
PIDS = 10_000

CONTROL, SERVER = "control.log", "server.log"

_LINES = (
    (CONTROL, "Accepting connection..."),
    (CONTROL, "NEW UI"),
    (CONTROL, "Cmd:get_server_status {server}"),
    (CONTROL, "ACTIVE"),
    (CONTROL, "UI closed"),
    (CONTROL, "User did not send valid credentials"),
    (CONTROL, "Accepting connection..."),
    (CONTROL, "NEW CLIENT {pid} from user 0: Server already exists"),
    (SERVER, "Received new client request for {{PID: {pid}, Context ID: 0}}"),
    (SERVER, "Worker created"),
    (SERVER, "Creating worker thread for client {{PID: {pid}, Context ID: 0}}"),
    (SERVER, "Client {{PID: {pid}, Context ID: 1}} connected"),
    (SERVER, "Device NVIDIA H200 (uuid GPU-00000000-b0ba-115c-7d58-bd5711d3de4b) is associated"),
    (SERVER, "Status of client {{PID: {pid}, Context ID: 1}} is ACTIVE"),
    (SERVER, "Server failed to recevie command with status 806, assuming client {{PID: {pid}, Context ID: 1}} exit"),
    (SERVER, "Client {{PID: {pid}, Context ID: 1}} exit"),
    (SERVER, "Client process {pid} disconnected"),
    (SERVER, "A line of an unknown kind, number {pid}"),
)


def log_lines(server: int) -> Iterator[tuple[str, str]]:
    """Yield the log and the line that this server and its daemon would write (R580), client after client."""
    for pid in range(FIRST_PID, FIRST_PID + PIDS):
        for log, text in _LINES:
            writer = f"Control {1:5}" if log == CONTROL else f"Server {server:5}"
            yield log, f"[2026-11-20 15:08:45.147 {writer}] {text.format(pid=pid, server=server)}\n"
