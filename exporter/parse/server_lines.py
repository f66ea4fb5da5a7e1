"""What a server writes.

Measured on R580 (CUDA 13.0). Older wordings as in NVIDIA's guide (2013, 2022) and in users' reports (2021 to 2026).
"""

from exporter.parse import log_message as said
from exporter.parse.log_message import Message
from exporter.parse.rule import CLIENT, NUMBER, Rule, noise, rule, text_rule


def _pinned_memory_limit(device: str, limit: str) -> Message:
    return said.PinnedMemoryLimitTold(int(device), int(limit, 16))


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
    rule(rf"Failed to accept new client\. Maximum number of clients \({NUMBER}\) reached\.", said.ClientLimitReached),
    rule(
        rf"Server teardown in progress\. Refusing to accept new client {CLIENT}",
        lambda pid, _context: said.ClientTurnedAway(pid),
    ),
    rule(
        rf"Failed to accept client {CLIENT} with status {NUMBER}",
        lambda pid, _context, status: said.ClientRejected(pid, status),
    ),
    rule(r"Server is handling a fatal GPU error\.", said.FaultHandled),
    rule(r"The following devices(?: will be reset:)?", said.DevicesFollow),
    rule(r"The following clients?(?: process)? have a sticky error set:", said.VictimsFollow),
    rule(rf"Destroy server context on device {NUMBER}(?: \(.{{0,200}}\))?", said.ContextDestroyed),
    rule(rf"Creating server context on device {NUMBER}(?: \(.{{0,200}}\))?", said.ContextCreated),
    text_rule(r"CUDA MPS Server for .{1,80} Binary version: (\d{1,10})", said.Version),
    noise(
        rf"Client {CLIENT} exiting\..{{0,200}}",
        rf"Received new client request(?: for {CLIENT})?",
        rf"Creating worker thread(?: for client {CLIENT})?",
        r"Worker created",
        r"Device .{0,200} \(uuid .{0,80}\) is associated",
        rf"Server failed to rece\w+ command with status \d+, assuming client {CLIENT} exit",
        r"Receive command failed, assuming client exit",
        r"Client (?:process )?disconnected(?:\. Number of active client contexts is \d+)?",
        rf"Status of client {CLIENT} is INACTIVE",
        rf"Client {CLIENT} encountered a fatal GPU error\.",
        rf"Client {CLIENT} on .{{0,200}} to be torn down",
        r"All clients belonging to error trigging process \d+ will be torn down",
        rf"MPS server requesting client {CLIENT} to exit",
        r"Client termination succeeded\.",
        rf"Priority level of client \{{{NUMBER}\}} is: \d+ ?",
    ),
    noise(
        r"(?:MPS Server )?connecting to control daemon on socket: .{1,4096}",
        r"Startup|Initializing server process|Exiting|Waiting for current clients to finish",
        r"Server has been notified to shutdown",
        r"Server was unable to shutdown due to \d+ active clients",
        r"Created (?:anonymous|named) shared memory region .{1,400}",
        r"Display Driver version: .{1,80}",
        r"Server Priority set to -?\d+",
    ),
    # A server that could not start, or ran out of files; the daemon tells of its exit (2013 to 2026).
    noise(
        r"(?:MPS server )?failed to start(?: : .{1,200})?",
        r"MPS is only supported on .{1,200}",
        r"Invalid CUDA_VISIBLE_DEVICES.{0,400}",
        r"(?:MPS Server )?failed to create/open SHM segment\.",
    ),
)
