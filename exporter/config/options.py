"""Tables of all options and daemon keys.

Flags, variables, keys of the file, checks, help and documentation come from these tables. `Config` has the defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exporter.config import values
from exporter.config.settings import FORMATS, LEVELS, Attribution, Config
from exporter.config.values import InvalidError, Kind, list_of, one_of, text_kind
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, AllowedAction, Mode
from exporter.parse.printable import is_service_name

PREFIX = "CUDA_MPS_EXPORTER_"
DAEMONS = "daemons"
"""Section of the file in which each table is a daemon."""

COLLECTING = ("serve", "status", "record", "doctor")
"""Commands that collect from this node."""

CONFIGURED = (*COLLECTING, "incidents", "once", "pause", "resume")
"""Commands that read the configuration file."""

_SERVING = ("serve", "demo")
_LISTENING = (*_SERVING, "doctor")

LONGEST_SOCKET_PATH = 107
"""Maximum length of a unix socket's path in bytes (unix(7)). A control daemon with a longer one cannot start."""

MAX_NAME = 128

DEFAULTS = Config()

DEFAULTS_OF: Mapping[str, Mapping[str, object]] = {
    "status": {"log_level": "warning"},
    "incidents": {"log_level": "warning"},
    "doctor": {"log_level": "warning"},
    # A recording has no more than it has, so no client in it is too young.
    "replay": {"log_level": "warning", "client_min_age": 0.0},
}
"""Other defaults of single commands, by attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of some commands. `attribute` is the field of `Config` that it sets, `key` its key in the file."""

    key: str
    attribute: str
    kind: Kind
    help: str
    flag: str = ""
    commands: tuple[str, ...]

    @property
    def name(self) -> str:
        """The flag."""
        return self.flag or flag_of(self.key)

    @property
    def variable(self) -> str:
        """The environment variable."""
        return variable_of(self.name)

    @property
    def section(self) -> str:
        """The section of the file."""
        return self.key.partition(".")[0]

    @property
    def reloadable(self) -> bool:
        """Whether a reload changes it."""
        return self.section in ("clients", "log", "watchdog")

    @property
    def key_in_section(self) -> str:
        """The key within its section."""
        return self.key.partition(".")[2]

    def of(self, config: Config) -> Any:
        """Return its value in a configuration."""
        return getattr(config, self.attribute)

    def set(self, config: Config, value: Any) -> Config:
        """Return the configuration with another value of it."""
        return replace(config, **{self.attribute: value})


def flag_of(key: str) -> str:
    """Return the flag of a key that has no flag of its own."""
    return "--" + key.removesuffix("_seconds").replace("_", "-")


def variable_of(flag: str) -> str:
    """Return the environment variable of a flag."""
    return PREFIX + flag.lstrip("-").replace("-", "_").replace(".", "_").upper()


OPTIONS = (
    Option(
        key="web.listen_address",
        attribute="listen",
        kind=list_of(values.ADDRESS),
        help="Address to listen on; can be repeated. Without a host: all addresses.",
        commands=_LISTENING,
    ),
    Option(
        key="web.telemetry_path",
        attribute="telemetry_path",
        kind=values.PAGE,
        help="Path of the metrics.",
        commands=_SERVING,
    ),
    Option(
        key="web.max_requests",
        attribute="max_requests",
        kind=values.integer(1, 1000),
        help="Maximum number of parallel requests.",
        commands=_SERVING,
    ),
    Option(
        key="web.config_file",
        flag="--web.config.file",
        attribute="web_config_file",
        kind=values.FILE,
        help="Web configuration file of Prometheus' exporter-toolkit, for TLS and passwords.",
        commands=_LISTENING,
    ),
    Option(
        key="web.systemd_socket",
        attribute="systemd_socket",
        kind=values.BOOLEAN,
        help="Use systemd socket activation instead of the listen addresses.",
        commands=("serve", "doctor"),
    ),
    Option(
        key="log.level",
        attribute="log_level",
        kind=one_of(LEVELS),
        help="Lowest level of the messages to log.",
        commands=(*CONFIGURED, "replay", "demo"),
    ),
    Option(
        key="log.format",
        attribute="log_format",
        kind=one_of(FORMATS),
        help="Format of the log; auto: console on a terminal, else json.",
        commands=(*CONFIGURED, "replay", "demo"),
    ),
    Option(
        key="clients.min_age_seconds",
        flag="--client-min-age",
        attribute="client_min_age",
        kind=values.DURATION,
        help="Minimum age of a client to get series of its own. All clients are counted.",
        commands=(*_SERVING, "replay"),
    ),
    Option(
        key="attribution.method",
        flag="--attribution",
        attribute="attribution",
        kind=one_of(Attribution),
        help="Divide SM time among clients: bpf counts kernel launches (needs CAP_BPF, CAP_PERFMON).",
        commands=("serve", "record", "doctor"),
    ),
    Option(
        key="watchdog.mode",
        attribute="watchdog",
        kind=one_of(Mode),
        help="observe reports what the watchdog would do; act does it, for expected daemons.",
        commands=("serve", "doctor"),
    ),
    Option(
        key="watchdog.allow",
        attribute="watchdog_allow",
        kind=list_of(one_of(AllowedAction), least=0, make=frozenset),
        help=f"Actions that end clients and that the watchdog may take: {', '.join(AllowedAction)}.",
        commands=("serve", "replay"),
    ),
    Option(
        key="paths.runtime_directory",
        flag="--path.runtime-directory",
        attribute="runtime_directory",
        kind=values.DIRECTORY,
        help="Directory of the service socket and of locks. $RUNTIME_DIRECTORY, set by systemd, replaces the default.",
        commands=CONFIGURED,
    ),
    Option(
        key="paths.state_directory",
        flag="--path.state-directory",
        attribute="state_directory",
        kind=values.DIRECTORY,
        help="Directory of incidents, events, totals and evidence. $STATE_DIRECTORY, set by systemd, replaces the"
        " default.",
        commands=("serve", "incidents", "doctor"),
    ),
)


def parse_pipe_directory(text: str) -> Path:
    """Return a path that is short enough for a daemon's sockets; else InvalidError."""
    directory = values.parse_directory(text)
    socket = directory / "control_privileged"
    if len(str(socket).encode(errors="surrogateescape")) > LONGEST_SOCKET_PATH:
        raise InvalidError(
            f"the path of a unix socket has at most {LONGEST_SOCKET_PATH} bytes, so no MPS daemon can run there;"
            " use a shorter directory"
        )
    return directory


def _parse_name(text: str) -> str:
    if len(text) > MAX_NAME:
        raise InvalidError(f"expected at most {MAX_NAME} characters")
    if text.startswith("-"):
        raise InvalidError("expected a name that does not begin with a hyphen, as an option does")
    return values.parse_text(text)


def _parse_unit(text: str) -> str:
    if not is_service_name(text):
        raise InvalidError("expected a service such as nvidia-cuda-mps.service")
    return text


def _parse_user(text: str) -> int:
    # Imported only if the key is set: `status` beside a running service loads no module of the service.
    from exporter.collectors.child import uid_of

    uid = uid_of(text)
    if uid is None:
        raise InvalidError("there is no such user")
    return uid


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonKey:
    """A key of [[daemons]]: the field of `DaemonConfig` that it sets, and an example for the documentation.

    A daemon cannot have the key and the one that it is `instead_of`.
    """

    key: str
    attribute: str
    kind: Kind
    help: str
    example: object
    instead_of: str | None = None

    @property
    def key_in_section(self) -> str:
        """The key within the daemon's table."""
        return self.key


DAEMON_KEYS = (
    DaemonKey(
        key="name",
        attribute="label",
        kind=text_kind("TEXT", _parse_name),
        help="Label `daemon` of its metrics (default: its pipe directory).",
        example="training",
    ),
    DaemonKey(
        key="pipe_directory",
        attribute="pipe_directory",
        kind=text_kind("DIR", parse_pipe_directory),
        help="Its CUDA_MPS_PIPE_DIRECTORY (required).",
        example=Path("/run/nvidia/mps/training/pipe"),
    ),
    DaemonKey(
        key="log_directory",
        attribute="log_directory",
        kind=values.DIRECTORY,
        help=f"Its CUDA_MPS_LOG_DIRECTORY (default: {DEFAULT_LOG_DIRECTORY}).",
        example=Path("/run/nvidia/mps/training/log"),
    ),
    DaemonKey(
        key="unit",
        attribute="unit",
        kind=text_kind("UNIT", _parse_unit),
        help="The systemd unit that runs it.",
        example="training-mps.service",
    ),
    DaemonKey(
        key="user",
        attribute="owner",
        kind=text_kind("USER", _parse_user),
        help="The user that runs it, by name or number. The exporter does not take another user's daemon in the pipe"
        " directory for this one. Default: the unit's user, else root, the exporter's user, or the only user"
        " other than root who can write to the directories above.",
        example=0,
    ),
    DaemonKey(
        key="restart_command",
        attribute="restart_command",
        kind=values.WORDS,
        help="Command that starts it if it has no unit: a list of words, run without a shell as `user`, else as the"
        " user that the daemon had. The watchdog sets the daemon's directories and limits. Set other variables by"
        ' `["env", "NAME=VALUE", ...]`.',
        example=("env", "CUDA_VISIBLE_DEVICES=0,1", "nvidia-cuda-mps-control", "-d"),
        instead_of="unit",
    ),
    DaemonKey(
        key="active_thread_percentage",
        attribute="active_thread_percentage",
        kind=values.PERCENTAGE,
        help="Percentage of a GPU's threads that each client may use. In mode `act` the watchdog enforces it."
        " Set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in its unit too.",
        example=40.0,
    ),
    DaemonKey(
        key="pinned_memory_limits",
        attribute="pinned_memory_limits",
        kind=values.MEMORY_LIMITS,
        help="GPU memory that each client may use, by the daemon's own device ordinals, in G or M. In mode"
        " `act` the watchdog enforces it.",
        example=((0, 2 << 30), (1, 512 << 20)),
    ),
    DaemonKey(
        key="watchdog",
        attribute="watchdog",
        kind=one_of(Mode),
        help="Mode of the watchdog for it (default: `watchdog.mode`).",
        example=Mode.OBSERVE,
    ),
)
