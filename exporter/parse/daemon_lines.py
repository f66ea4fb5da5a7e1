"""What a control daemon writes of its own accord.

Measured on R580 (CUDA 13.0). Older wordings as in NVIDIA's guide (2013) and in users' reports (2021 to 2026); the line
that tells the protocol has `set env` under protocol 2, and no `env` under 3 (NVIDIA's guide, R615).
"""

from exporter.parse import log_message as said
from exporter.parse.byte_size import byte_size
from exporter.parse.log_message import Message
from exporter.parse.rule import NUMBER, Rule, noise, rule, text_rule


def _default_memory_limit(device: str, limit: str) -> Message:
    size = byte_size(limit)
    return said.Noise() if size is None else said.DefaultMemoryLimitSet(int(device), size)


RULES: tuple[Rule, ...] = (
    rule(
        rf"NEW CLIENT {NUMBER} from user {NUMBER}: Server already exists", lambda pid, _uid: said.ClientForwarded(pid)
    ),
    rule(
        rf"NEW CLIENT {NUMBER} from user {NUMBER}: Server is not ready, push client to pending list",
        said.ClientQueued,
    ),
    rule(rf"Starting new server {NUMBER} for user {NUMBER}", said.ServerStarting),
    rule(rf"NEW SERVER {NUMBER}: Ready", said.ServerReady),
    rule(rf"Server {NUMBER} exited with status \d+", said.ServerExited),
    rule(rf"Server {NUMBER} has \d+ active worker threads\. Server will not shutdown\.", said.ServerStays),
    rule(rf"Try shutting down server {NUMBER}, backoff is (?:en|dis)abled", said.ServerToldToLeave),
    rule(rf"Force shutting down server {NUMBER}", said.ServerToldToLeave),
    text_rule(r"Cmd:((?s:.*))", said.CommandIssued),
    rule(r"UI closed", said.SessionClosed),
    rule(r"Not enough privilege to execute .{1,80} command", said.CommandDenied),
    rule(r"(?:Starting control daemon using socket .{1,4096}|Start)", said.DaemonStarting),
    text_rule(r"CUDA MPS Control binary version: (\d{1,10})", said.Version),
    rule(
        r"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=.{0,4096}",
        lambda: said.ProtocolTold(2),
    ),
    rule(
        r"To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY=.{0,4096}",
        lambda: said.ProtocolTold(3),
    ),
    text_rule(
        r"set_default_device_pinned_mem_limit (\d{1,4}) (\d{1,12}[KMG]?)\.",
        _default_memory_limit,
    ),
    rule(r"Exit with status \d+", said.DaemonExiting),
    noise(
        r"Accepting connection\.\.\.",
        r"User did not send valid credentials",
        r"NEW UI",
        r"Using log directory: .{1,4096}",
        r"Unable to accept connection",
        r"Unable to read new connection type information",
        r"Insufficient privileges for UID .{1,200}",
        r"Control will try shutting down server \d+ again in at most \d+ms",
        r"quit command issued with timeout of \d+",
        # A server could not start; that it has exited is told next (2024).
        r"Server encountered a fatal exception\. Shutting down",
    ),
)
