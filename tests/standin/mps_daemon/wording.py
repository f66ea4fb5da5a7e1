"""Logs and commands of other drivers than R580, after NVIDIA's guides and users' reports from 2021 to 2026.

A line that was never reported of a driver is dropped, or has the wording of R580.
"""

import re
from collections.abc import Callable
from pathlib import Path

from .logs import Kind

MEASURED = 580
BINARY_VERSIONS = {
    470: "11040",
    515: "11070",
    535: "12020",
    550: "12040",
    565: "12070",
    575: "12090",
    MEASURED: "13000",
    590: "13010",
    610: "13030",
    615: "13040",
}
"""The version of CUDA that came with a driver, as its programs print it."""

_WITHOUT_VOLTA = 535
"""From this driver on, lines of servers do not begin with `Volta MPS:`, and have the role Server."""

_UNKNOWN = (
    (580, ("device_query",)),
    (535, ("ps", "terminate_client", "get_default_client_priority", "set_default_client_priority")),
)
"""Commands that drivers before a version may not know."""

_PAIR = re.compile(r"\{PID: (\d+), Context ID: (\d+)\}")
_UUID = re.compile(r"\(uuid GPU-([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})([0-9a-f]{8})\)")

_BRANCH = "standin.driver"

Change = tuple[str, str | None]

_BEFORE_580: tuple[Change, ...] = (
    (r"CUDA MPS .*Binary version: .*|Display Driver version: .*|.* encountered a fatal GPU error\.", None),
    (r"Client \{\d+, \d+\} connected", "Worker created"),
    (r"Received new client request for .*", "Received new client request"),
    (r"Creating worker thread for .*", "Creating worker thread"),
    (
        r"Created anonymous shared memory region mps\.shm\.(\d+)\.(\d+)",
        r"Created named shared memory region /cuda.shm.\1.\2.1",
    ),
    (r"Server failed to recevie command .*", "Receive command failed, assuming client exit"),
    (r"Client process \d+ disconnected", "Client process disconnected"),
    (r"Client (\{\d+, \d+\}) exiting\. .*", r"Client \1 exit"),
    (r"Client (\{\d+, \d+\}) on device \d+ to be torn down", r"Status of client \1 is INACTIVE"),
    (r"All clients belonging to .*|Client \S+ \S+ on the error-trigging process .*", None),
)
_BEFORE_535: tuple[Change, ...] = (
    (r"Startup|Initializing server process|Created named shared memory region .*|Server Priority set to .*", None),
    (r"Connecting to (.*)", r"MPS Server connecting to \1"),
    (r"(Creating|Destroy) server context on device (\d+) .*", r"Volta MPS: \1 server context on device \2"),
    (r"Server has started", "MPS Server is started"),
    (r"Received new client request", "Volta MPS Server: Received new client request"),
    (r"Worker created", "MPS Server: worker created"),
    (r"Status of client (.*)", r"Volta MPS: status of client \1"),
    (r"The following devices will be reset:", "Volta MPS: The following devices"),
    (r"The following client process have (.*)", r"Volta MPS: The following clients have \1"),
    (r"(Creating worker thread|Device .* is associated|Client process disconnected)", r"Volta MPS: \1"),
    (r"(Server is handling a fatal GPU error\.)", r"Volta MPS: \1"),
)


def line(driver: int, kind: Kind, text: str) -> tuple[Kind, str] | None:
    """Return a line of R580 in the words of another driver; None if that has no such line."""
    if driver >= MEASURED:
        return kind, text.replace(BINARY_VERSIONS[MEASURED], BINARY_VERSIONS[driver]) if "version" in text else text
    text = _PAIR.sub(r"{\1, \2}", text)
    for changes in (_BEFORE_580, _BEFORE_535 if driver < _WITHOUT_VOLTA else ()):
        changed = _changed(text, changes)
        if changed is None:
            return None
        text = changed
    if driver < _WITHOUT_VOLTA:
        text = _UUID.sub(r"(uuid 0x\1-0x\2\3-0x\4\5-0x\6)", text)
        kind = Kind.OTHER if kind is Kind.SERVER else kind
    return kind, text


def _changed(text: str, changes: tuple[Change, ...]) -> str | None:
    for pattern, replacement in changes:
        found = re.fullmatch(pattern, text)
        if found is not None:
            return None if replacement is None else found.expand(replacement)
    return text


def write_branch(directory: Path, driver: int) -> None:
    """Write the driver of a daemon into its pipe directory, for its program, which gets no other variables."""
    (directory / _BRANCH).write_text(str(driver))


def branch_of(directory: str) -> int:
    """Return the driver of the daemon in a pipe directory."""
    try:
        return int((Path(directory) / _BRANCH).read_text())
    except OSError:
        return MEASURED


def is_known(driver: int, command: str) -> bool:
    """Return whether the daemon of a driver knows a command."""
    verb = command.partition(" ")[0]
    return not any(driver < since and verb in verbs for since, verbs in _UNKNOWN)


def executed_by(driver: int, execute: Callable[..., None]) -> Callable[..., None]:
    """Return `execute` with other words in place of the commands that a driver does not know."""
    return lambda command, *rest: execute(command if is_known(driver, command) else f"{command}?", *rest)
