"""What a server writes.

Measured on R580 (CUDA 13.0). Older wordings as in NVIDIA's guide (2013, 2022) and in users' reports (2021 to 2026).
"""

from exporter.parse import log_message as said
from exporter.parse.log_message import Message
from exporter.parse.rule import CLIENT, NUMBER, UUID, Rule, noise, rule, text_rule


def _pinned_memory_limit(device: str, limit: str) -> Message:
    return said.PinnedMemoryLimitTold(int(device), int(limit, 16))


def _exiting_in_reset(pid: int, context: int) -> Message:
    return said.ContextExiting(pid, context, in_reset=True)


RULES: tuple[Rule, ...] = (
    rule(rf"Status of client {CLIENT} is ACTIVE", said.ClientActive),
    rule(rf"Client {CLIENT} connected", said.ClientConnecting),
    rule(rf"Client (?:process )?{NUMBER} disconnected", said.ClientDisconnected),
    rule(rf"Client {CLIENT} exit", said.ContextExited),
    rule(rf"New client {NUMBER} connected", said.ClientActive),
    rule(r"(?:Server has started|MPS Server is started)", lambda: said.ServerReady(None)),
    text_rule(
        r"Active ?Threads ?Percentage set to (\d{1,3}(?:\.\d{1,12})?)", lambda told: said.ThreadsTold(float(told))
    ),
    text_rule(
        r"Device pinned memory limit for device (\d{1,4}) set to 0x([0-9a-f]{1,16}) bytes",
        _pinned_memory_limit,
    ),
    rule(rf"(?:Server|Client) Priority set to {NUMBER}", said.PriorityTold),
    rule(rf"Failed to accept new client\. Maximum number of clients \({NUMBER}\) reached\.", said.ClientLimitReached),
    rule(
        rf"Server teardown in progress\. Refusing to accept new client {CLIENT}",
        lambda pid, _context: said.ClientTurnedAway(pid),
    ),
    rule(
        rf"Failed to accept client {CLIENT} with status {NUMBER}",
        lambda pid, _context, status: said.ClientRejected(pid, status),
    ),
    rule(rf"Client {CLIENT} exiting\. Worker is in reset\..{{0,200}}", _exiting_in_reset),
    rule(
        rf"Client {CLIENT} exiting\..{{0,200}}",
        lambda pid, context: said.ContextExiting(pid, context, in_reset=False),
    ),
    rule(rf"MPS server requesting client {CLIENT} to exit", lambda pid, _context: said.ExitRequested(pid)),
    text_rule(rf"Device .{{0,200}} \(uuid ({UUID})\) is associated", said.DeviceAssociated),
    rule(
        rf"Client {CLIENT} encountered a fatal GPU error\.",
        lambda pid, _context: said.ClientEncountered(pid),
    ),
    rule(r"Server is handling a fatal GPU error\.", said.FaultHandled),
    rule(rf"Client {CLIENT} on .{{0,200}} to be torn down", lambda pid, _context: said.ClientToBeTornDown(pid)),
    rule(r"The following devices(?: will be reset:)?", said.DevicesFollow),
    rule(r"The following clients?(?: process)? have a sticky error set:", said.VictimsFollow),
    rule(rf"Destroy server context on device {NUMBER}(?: \(.{{0,200}}\))?", said.ContextDestroyed),
    rule(rf"Creating server context on device {NUMBER}(?: \(.{{0,200}}\))?", said.ContextCreated),
    text_rule(r"CUDA MPS Server for .{1,80} Binary version: (\d{1,10})", said.Version),
    noise(
        rf"Received new client request(?: for {CLIENT})?",
        rf"Creating worker thread(?: for client {CLIENT})?",
        r"Device .{0,200} \(uuid .{0,80}\) is associated",
        r"Worker created",
        rf"Server failed to rece\w+ command with status \d+, assuming client {CLIENT} exit",
        r"Receive command failed, assuming client exit",
        r"Client (?:process )?disconnected(?:\. Number of active client contexts is \d+)?",
        rf"Status of client {CLIENT} is INACTIVE",
        r"All clients belonging to error trigging process \d+ will be torn down",
        r"Client termination succeeded\.",
        rf"Priority level of client \{{{NUMBER}\}} is: \d+ ?",
        rf"Server failed to send reply with status \d+, for client {CLIENT}",
        r"Received device query command\. There are \d+ devices",
    ),
    noise(
        r"(?:MPS Server )?connecting to control daemon on socket: .{1,4096}",
        r"Startup|Initializing server process|Exiting|Waiting for current clients to finish",
        r"Server has been notified to shutdown",
        r"Server was unable to shutdown due to \d+ active clients",
        r"Created (?:anonymous|named) shared memory region .{1,400}",
        r"Display Driver version: .{1,80}",
        r"(?:Server|Client) Priority set to -\d+",
    ),
    # A server that could not start, or ran out of files; the daemon tells of its exit (2013 to 2026).
    noise(
        r"(?:MPS server )?failed to start(?: : .{1,200})?",
        r"Driver initialization failed with: .{1,200}",
        r"MPS is only supported on .{1,200}",
        r"Invalid CUDA_VISIBLE_DEVICES.{0,400}",
        r"Driver initialization failed with: .{1,200}",
        r"(?:MPS Server )?failed to create/open SHM segment\.",
    ),
)
