"""The keys of [[daemons]] in the file, each with its check, as the table of options is for the rest."""

import re
from dataclasses import dataclass
from pathlib import Path

from exporter.config.kinds import Kind, boolean, integer, member, percentage, several, textual
from exporter.config.memory_limits import memory_limits
from exporter.config.values import parse_directory, parse_text, shown
from exporter.errors import ConfigError
from exporter.model.settings import Mode
from exporter.model.variables import DEFAULT_LOG_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY
from exporter.parse.unit_name import is_service

LONGEST_SOCKET_PATH = 107
"""Bytes that a unix socket's path may have (unix(7)): a control daemon with a longer one cannot start."""

LONGEST_NAME = 128
MOST_CLIENTS = 10_000

SET_OTHERWISE = {
    PIPE_DIRECTORY: "pipe_directory",
    LOG_DIRECTORY: "log_directory",
}
"""Variables of a daemon's that have a key of their own: started elsewhere, it would be another."""


def parse_pipe_directory(where: str, text: str) -> Path:
    """An absolute path in which a daemon's sockets have room."""
    directory = parse_directory(where, text)
    socket = directory / "control_privileged"
    if len(str(socket).encode(errors="surrogateescape")) > LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"{where}: {socket} is longer than the {LONGEST_SOCKET_PATH} bytes that a unix socket's path may"
            " have, so no MPS daemon can run there; choose a shorter directory"
        )
    return directory


def _name(where: str, text: str) -> str:
    if len(text) > LONGEST_NAME:
        raise ConfigError(f"{where}: {shown(text)} is longer than {LONGEST_NAME} characters")
    return parse_text(where, text)


def _unit(where: str, text: str) -> str:
    if not is_service(text):
        raise ConfigError(f"{where}: {shown(text)} is no service; write it as in nvidia-cuda-mps.service")
    return text


def _user(where: str, text: str) -> int:
    # Only if the key is set: `status` beside a running service loads none of the service's modules.
    from exporter.sources.user import uid_of

    uid = uid_of(text)
    if uid is None:
        raise ConfigError(f"{where}: there is no user {shown(text)}")
    return uid


def _variable(where: str, text: str) -> str:
    name, equals, _ = text.partition("=")
    if not equals or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
        raise ConfigError(f"{where}: {shown(text)} is no variable; write it as in CUDA_VISIBLE_DEVICES=0")
    if name in SET_OTHERWISE:
        raise ConfigError(f"{where}: {name} is set by {SET_OTHERWISE[name]}; leave it out")
    return parse_text(where, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonKey:
    """A key of [[daemons]], the attribute of DaemonConfig that it sets, and an example for the documentation.

    A daemon that has a key has not the one that this is `instead_of`.
    """

    key: str
    attribute: str
    kind: Kind
    help: str
    example: object
    instead_of: str | None = None


DAEMON_KEYS = (
    DaemonKey(
        key="name",
        attribute="label",
        kind=textual("TEXT", _name),
        help="the label `daemon` of its metrics (default: its pipe directory)",
        example="training",
    ),
    DaemonKey(
        key="pipe_directory",
        attribute="pipe_directory",
        kind=textual("DIR", parse_pipe_directory),
        help="its CUDA_MPS_PIPE_DIRECTORY; cannot be left out",
        example=Path("/run/nvidia/mps/training/pipe"),
    ),
    DaemonKey(
        key="log_directory",
        attribute="log_directory",
        kind=textual("DIR", parse_directory),
        help=f"its CUDA_MPS_LOG_DIRECTORY (default: {DEFAULT_LOG_DIRECTORY})",
        example=Path("/run/nvidia/mps/training/log"),
    ),
    DaemonKey(
        key="unit",
        attribute="unit",
        kind=textual("UNIT", _unit),
        help="the systemd unit that runs it, where one does",
        example="nvidia-cuda-mps@0.service",
    ),
    DaemonKey(
        key="user",
        attribute="owner",
        kind=textual("USER", _user),
        help="the user who runs it, by name or number; another user's daemon in its pipe directory is not this daemon"
        " (default: its unit's user, else root, the exporter's user, or a user who alone beside root can write to the"
        " directories above)",
        example=0,
    ),
    DaemonKey(
        key="expected",
        attribute="expected",
        kind=boolean(),
        help="whether its absence is an outage (default: true)",
        example=True,
    ),
    DaemonKey(
        key="clients_limit",
        attribute="clients_limit",
        kind=integer(1, MOST_CLIENTS),
        help="maximum number of clients of each of its servers (default: as the server or NVIDIA's MPS guide states)",
        example=48,
    ),
    DaemonKey(
        key="active_thread_percentage",
        attribute="active_thread_percentage",
        kind=percentage(),
        help="the share of a GPU's threads that each client may have; set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE for it too",
        example=40.0,
    ),
    DaemonKey(
        key="pinned_memory_limits",
        attribute="pinned_memory_limits",
        kind=memory_limits(),
        help="how much of a GPU's memory each client may have, by the daemon's own ordinals, in G or M",
        example=((0, 2 << 30), (1, 512 << 20)),
    ),
    DaemonKey(
        key="client_priority",
        attribute="client_priority",
        kind=integer(0, 1),
        help="the priority of its clients: 0 normal, 1 below it",
        example=1,
    ),
    DaemonKey(
        key="watchdog",
        attribute="watchdog",
        kind=member(Mode),
        help="whether the watchdog may act for it: `observe` or `act` (default: `watchdog.mode`)",
        example=Mode.OBSERVE,
    ),
    DaemonKey(
        key="restart_command",
        attribute="restart_command",
        kind=several(textual("WORD", parse_text), differing=None),
        help="what starts it where no unit does, a list of words that no shell sees; it runs as `user`, else"
        " as the user that the daemon had",
        example=("nvidia-cuda-mps-control", "-d"),
        instead_of="unit",
    ),
    DaemonKey(
        key="environment",
        attribute="environment",
        kind=several(textual("NAME=VALUE", _variable), differing=lambda each: each.partition("=")[0]),
        help="what `restart_command` adds to the daemon's environment, beside its directories and limits",
        example=("CUDA_VISIBLE_DEVICES=0,1",),
        instead_of="unit",
    ),
)
