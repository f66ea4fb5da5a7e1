"""Lines of control.log and server.log.

Wordings: measured on R580 (CUDA 13.0); those of older drivers (`Volta MPS: ` prefixes, `{pid, n}` clients) as
reported from R450 on. A line that no rule knows is `Unrecognized`, which is counted and never a fault. Every rule
must match the whole message, so that text quoted inside another line cannot pass for a line of its own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from exporter.parse.log_message import (
    ClientActive,
    ClientConnecting,
    ClientDisconnected,
    ClientForwarded,
    ClientLimitReached,
    ClientQueued,
    ClientRejected,
    ClientTurnedAway,
    CommandDenied,
    CommandIssued,
    ContextDestroyed,
    DaemonExiting,
    DaemonStarting,
    DevicesFollow,
    FaultHandled,
    Message,
    Noise,
    Number,
    ServerExited,
    ServerReady,
    ServerStarting,
    ServerStays,
    SessionClosed,
    Unrecognized,
    Version,
    VictimsFollow,
)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line: who wrote it (role and PID), and what it says. The stamp has no time zone and is left alone."""

    role: str
    pid: int
    message: Message

    @property
    def by_daemon(self) -> bool:
        """Whether the control daemon wrote it, not a server."""
        return self.role == "Control"


_LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ([A-Za-z][A-Za-z ]{0,30}?) +(\d{1,10})\] ?(.*)", re.DOTALL)
_OLD_PREFIX = re.compile(r"(?:Volta MPS Server|Volta MPS|MPS Server): ")
_CLIENT = r"\{(?:PID: )?(-?\d{1,10}), (?:Context(?: ID)?: )?(-?\d{1,10})\}"
_N = r"(\d{1,10})"

Rule = tuple[re.Pattern[str], Callable[[tuple[str, ...]], Message]]


def _rule(pattern: str, build: Callable[..., Message]) -> Rule:
    """A rule whose groups are all whole numbers."""
    return re.compile(pattern, re.IGNORECASE), lambda groups: build(*map(int, groups))


def _noise(*patterns: str) -> list[Rule]:
    return [(re.compile(pattern, re.IGNORECASE), lambda _groups: Noise()) for pattern in patterns]


_RULES: tuple[Rule, ...] = (
    _rule(rf"Status of client {_CLIENT} is ACTIVE", lambda pid, _context: ClientActive(pid)),
    _rule(rf"Client {_CLIENT} connected", ClientConnecting),
    _rule(rf"Client process {_N} disconnected", ClientDisconnected),
    _rule(rf"Client {_N} disconnected", ClientDisconnected),
    _rule(rf"New client {_N} connected", ClientActive),
    _rule(rf"NEW CLIENT {_N} from user {_N}: Server already exists", lambda pid, _uid: ClientForwarded(pid)),
    _rule(rf"NEW CLIENT {_N} from user {_N}: Server is not ready, push client to pending list", ClientQueued),
    _rule(rf"Starting new server {_N} for user {_N}", ServerStarting),
    _rule(rf"NEW SERVER {_N}: Ready", ServerReady),
    _rule(r"(?:Server has started|MPS Server is started)", lambda: ServerReady(None)),
    _rule(rf"Server {_N} exited with status \d+", ServerExited),
    _rule(rf"Server {_N} has \d+ active worker threads\. Server will not shutdown\.", ServerStays),
    _rule(
        rf"Failed to accept new client\. Maximum number of clients \({_N}\) reached\.",
        ClientLimitReached,
    ),
    _rule(
        rf"Server teardown in progress\. Refusing to accept new client {_CLIENT}",
        lambda pid, _context: ClientTurnedAway(pid),
    ),
    _rule(
        rf"Failed to accept client {_CLIENT} with status {_N}",
        lambda pid, _context, status: ClientRejected(pid, status),
    ),
    _rule(r"Server is handling a fatal GPU error\.", FaultHandled),
    _rule(r"The following devices(?: will be reset:)?", DevicesFollow),
    _rule(r"The following clients?(?: process)? have a sticky error set:", VictimsFollow),
    _rule(rf"Destroy server context on device {_N}(?: \(.{{0,200}}\))?", ContextDestroyed),
    _rule(_N, Number),
    _rule(r"Not enough privilege to execute .{1,80} command", CommandDenied),
    _rule(r"UI closed", SessionClosed),
    _rule(r"(?:Starting control daemon using socket .{1,4096}|Start)", DaemonStarting),
    (
        re.compile(r"CUDA MPS (?:Control binary version|Server for .{1,80} Binary version): (\d{1,10})"),
        lambda groups: Version(groups[0]),
    ),
    _rule(r"Exit with status \d+", DaemonExiting),
    (re.compile(r"Cmd:(.*)", re.DOTALL), lambda groups: CommandIssued(groups[0])),
    *_noise(
        r"Accepting connection\.\.\.",
        rf"Client {_CLIENT} exit(?:ing\..{{0,200}})?",
        r"NEW UI",
        r"User did not send valid credentials",
        rf"Received new client request(?: for {_CLIENT})?",
        rf"Creating worker thread(?: for client {_CLIENT})?",
        r"Worker created",
        r"Device .{0,200} \(uuid .{0,80}\) is associated",
        rf"Server failed to rece\w+ command with status \d+, assuming client {_CLIENT} exit",
        r"Receive command failed, assuming client exit",
        r"Client (?:process )?disconnected(?:\. Number of active client contexts is \d+)?",
        rf"Status of client {_CLIENT} is INACTIVE",
        rf"Client {_CLIENT} encountered a fatal GPU error\.",
        rf"Client {_CLIENT} on .{{0,200}} to be torn down",
        r"All clients belonging to error trigging process \d+ will be torn down",
        rf"MPS server requesting client {_CLIENT} to exit",
        r"Client termination succeeded\.",
        rf"Priority level of client \{{{_N}\}} is: \d+ ?",
        r"(?:MPS Server )?(?:connecting|Connecting) to control daemon on socket: .{1,4096}",
        r"Startup|Initializing server process|Exiting|Waiting for current clients to finish",
        r"Server has been notified to shutdown",
        r"Server was unable to shutdown due to \d+ active clients",
        r"Creating server context on device \d+(?: \(.{0,200}\))?",
        r"Created (?:anonymous|named) shared memory region .{1,400}",
        r"Display Driver version: .{1,80}",
        r"Active ?Threads ?Percentage set to [\d.]+",
        r"Device pinned memory limit for device \d+ set to 0x[0-9a-f]+ bytes",
        r"Server Priority set to -?\d+",
        r"Using log directory: .{1,4096}",
        r"To connect CUDA applications to this daemon, set (?:env )?CUDA_MPS_PIPE_DIRECTORY=.{0,4096}",
        r"Try shutting down server \d+, backoff is (?:en|dis)abled",
        r"Control will try shutting down server \d+ again in at most \d+ms",
        r"Force shutting down server \d+",
        r"quit command issued with timeout of \d+",
        r"Unable to accept connection",
        r"Insufficient privileges for UID .{1,200}",
        # Replies, which the daemon echoes into its log.
        r"ACTIVE|FAULT|INITIALIZING|\d+\.\d+|\d+[KMG]|",
        r"Server (?:\d+ )?not found!?",
        r'Unknown command ".*"',
        r"PID +ID +SERVER +DEVICE +NAMESPACE +COMMAND *",
        r"\d+ +\d+ +\d+ +GPU-\S+ +\d+ +.*",
        r"\[\d+\] [0-9a-f:.]+, .{1,200}",
        r"No default pinned memory limit set for the device!",
        r"Invalid percentage, expected between .{1,40}",
        r"set_default_device_pinned_mem_limit .{1,80}",
    ),
)


def parse_line(line: str) -> LogEntry | None:
    """Read one line; None where it has not even the form of a log line."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    role, pid, text = found.groups()
    return LogEntry(role, int(pid), parse_message(text))


def parse_message(text: str) -> Message:
    """Read what stands behind a line's stamp."""
    text = _OLD_PREFIX.sub("", text, count=1) if ": " in text[:20] else text
    for pattern, build in _RULES:
        found = pattern.fullmatch(text)
        if found is not None:
            return build(found.groups())
    return Unrecognized()
