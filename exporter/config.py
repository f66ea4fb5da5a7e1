"""Turns flags and environment into one frozen Config, and rejects what cannot be used."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from exporter import __version__
from exporter.core.agenda import Rhythm
from exporter.errors import ConfigError
from exporter.log import FORMATS, LEVELS
from exporter.model.node import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY

if TYPE_CHECKING:
    # argparse has no public name for what add_subparsers() returns.
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

DEFAULT_PORT = 10677
LONGEST_SOCKET_PATH = 107
"""Bytes that a unix socket's path may have (unix(7)): a control daemon with a longer one cannot start."""

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """A control daemon to watch. It is expected where the configuration names it: then its absence is an outage."""

    pipe_directory: Path
    log_directory: Path
    expected: bool

    @property
    def name(self) -> str:
        """The daemon's name in metrics and events."""
        return str(self.pipe_directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set, in seconds where it is a time."""

    daemons: tuple[DaemonConfig, ...]
    listen: tuple[str, int] = ("", DEFAULT_PORT)
    log_level: str = "info"
    log_format: str = "auto"
    client_min_age: float = 15.0
    control_executable: str = "nvidia-cuda-mps-control"
    control_deadline: float = 5.0
    look_deadline: float = 5.0
    proc: Path = Path("/proc")
    rhythm: Rhythm = field(default_factory=Rhythm)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; argparse itself ends the program, with exit code 2, on words that it does not know."""
    parser = argparse.ArgumentParser(
        prog="cuda-mps-exporter",
        description="Prometheus exporter for NVIDIA CUDA MPS: daemons, servers, clients, and what goes wrong.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cuda-mps-exporter {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_status(commands)
    _add_record(commands)
    _add_replay(commands)
    _add_demo(commands)
    return parser.parse_args(arguments)


def build_config(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Config:
    """The configuration that the flags and the environment make; ConfigError names what cannot be used."""
    return Config(
        daemons=(_daemon(arguments, environment),),
        listen=parse_address(getattr(arguments, "web_listen_address", f":{DEFAULT_PORT}")),
        log_level=arguments.log_level,
        log_format=arguments.log_format,
        client_min_age=parse_duration("--client-min-age", getattr(arguments, "client_min_age", "0")),
    )


def _daemon(arguments: argparse.Namespace, environment: Mapping[str, str]) -> DaemonConfig:
    pipe = getattr(arguments, "pipe_directory", None) or environment.get("CUDA_MPS_PIPE_DIRECTORY")
    log = getattr(arguments, "log_directory", None) or environment.get("CUDA_MPS_LOG_DIRECTORY")
    pipe_directory = _directory("--pipe-directory", pipe or DEFAULT_PIPE_DIRECTORY)
    socket = pipe_directory / "control_privileged"
    if len(str(socket).encode(errors="surrogateescape")) > LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"--pipe-directory: {socket} is longer than the {LONGEST_SOCKET_PATH} bytes that a unix socket's path may"
            " have, so no MPS daemon can run there; choose a shorter directory"
        )
    return DaemonConfig(
        pipe_directory=pipe_directory,
        log_directory=_directory("--log-directory", log or DEFAULT_LOG_DIRECTORY),
        expected=bool(pipe),
    )


def _directory(flag: str, text: str) -> Path:
    if not text.startswith("/") or "\0" in text:
        raise ConfigError(f"{flag}: {text!r} is no absolute path")
    return Path(text)


def parse_duration(flag: str, text: str) -> float:
    """A duration, such as 500ms, 15s or 2m, in seconds."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|)", text)
    if found is None:
        raise ConfigError(f"{flag}: {text!r} is no duration; write 500ms, 15s or 2m")
    return float(found[1]) * _UNITS[found[2]]


def parse_address(text: str) -> tuple[str, int]:
    """A host and port, as in 127.0.0.1:10677, [::1]:10677 or :10677 (all addresses)."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"--web.listen-address: {text!r} is no address; write HOST:PORT or :PORT")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise ConfigError(f"--web.listen-address: write the IPv6 address in {text!r} in brackets: [ADDRESS]:PORT")
    return host, int(port)


def _add_serve(commands: "Commands") -> None:
    parser = commands.add_parser("serve", help="watch this node and serve its metrics", allow_abbrev=False)
    _add_daemon_flags(parser)
    _add_web_flags(parser)
    _add_log_flags(parser)


def _add_status(commands: "Commands") -> None:
    parser = commands.add_parser("status", help="look once, and say how the node is", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    _add_daemon_flags(parser)
    _add_log_flags(parser, level="warning")


def _add_record(commands: "Commands") -> None:
    parser = commands.add_parser("record", help="write down what is seen, until interrupted", allow_abbrev=False)
    parser.add_argument("file", metavar="FILE", help="the recording to write (JSON Lines); - is standard output")
    parser.add_argument("--for", dest="duration", metavar="DURATION", help="how long (default: until interrupted)")
    _add_daemon_flags(parser)
    _add_log_flags(parser)


def _add_replay(commands: "Commands") -> None:
    parser = commands.add_parser("replay", help="tell what a recording tells", allow_abbrev=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--events", action="store_true", help="print one JSON object for each event")
    what.add_argument("--metrics", action="store_true", help="print the metrics as they stand at the end")
    parser.add_argument("file", metavar="FILE", help="a recording; - is standard input")
    parser.add_argument(
        "--client-min-age",
        default="0",
        metavar="DURATION",
        help="age from which a client has series of its own (default: 0)",
    )
    _add_log_flags(parser, level="warning")


def _add_demo(commands: "Commands") -> None:
    parser = commands.add_parser("demo", help="serve a simulated node; needs no GPU", allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=1, help="another number, another story (default: 1)")
    _add_web_flags(parser)
    _add_log_flags(parser)


def _add_daemon_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pipe-directory",
        metavar="DIR",
        help=f"the daemon's CUDA_MPS_PIPE_DIRECTORY; naming it makes the daemon an expected one"
        f" (default: that variable, else {DEFAULT_PIPE_DIRECTORY})",
    )
    parser.add_argument(
        "--log-directory",
        metavar="DIR",
        help=f"the daemon's CUDA_MPS_LOG_DIRECTORY (default: that variable, else {DEFAULT_LOG_DIRECTORY})",
    )


def _add_web_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--web.listen-address",
        dest="web_listen_address",
        default=f":{DEFAULT_PORT}",
        metavar="HOST:PORT",
        help=f"where to serve (default: all addresses, port {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--client-min-age",
        default="15s",
        metavar="DURATION",
        help="age from which a client has series of its own; it is counted at once (default: 15s)",
    )


def _add_log_flags(parser: argparse.ArgumentParser, level: str = "info") -> None:
    parser.add_argument(
        "--log.level", dest="log_level", choices=tuple(LEVELS), default=level, help=f"what to log (default: {level})"
    )
    parser.add_argument(
        "--log.format",
        dest="log_format",
        choices=FORMATS,
        default="auto",
        help="auto: for a person on a terminal, JSON elsewhere (default)",
    )
