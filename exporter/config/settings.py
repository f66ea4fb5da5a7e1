"""The configuration as frozen values. The metadata of a field describe its option. Times are in seconds."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, field, fields, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from exporter.config import checks
from exporter.config.checks import Address, Check
from exporter.model import settings as model
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, AllowedAction, Limits, Mode
from exporter.model.values import frozen
from exporter.parse.printable import metric_label

DEFAULT_PORT = 10677
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
PREFIX = "CUDA_MPS_EXPORTER_"

COLLECTING = ("serve", "status", "record", "doctor")  # commands that collect from this node
CONFIGURED = (*COLLECTING, "incidents", "once", "pause", "resume")  # commands that read the configuration file


class Attribution(StrEnum):
    """How SM time is attributed to clients: only to one that is alone, or by launches that BPF programs count."""

    OFF = "off"
    BPF = "bpf"


@frozen
class Option:
    """What the metadata of a field describe: an option of some commands, or a key of [[daemons]].

    `key` has the section of the file; if it is not given, it is that of the flag or field. `defaults` are other
    defaults of single commands. `systemd` is a variable by which systemd replaces the default: the first directory that
    it created (systemd.exec(5)).
    """

    attribute: str = ""
    default: Any
    key: str = ""
    flag: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    check: Check
    help: str
    commands: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    systemd: str = ""

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.flag.lstrip("-").replace("-", "_").replace(".", "_").upper()

    def of(self, config: object) -> Any:
        """Return its value in a configuration."""
        return getattr(config, self.attribute)

    def parse(self, where: str, text: str) -> Any:
        """Return the value of a flag or variable; ConfigError begins with `where`."""
        return checks.checked(where, lambda text: self.check(checks.from_text(text, self.default)), text)


def option(default: Any, *, choices: Iterable[str] = (), check: Check | None = None, **described: Any) -> Any:
    """Return a field with an option. Without `check`, its values are the `choices`."""
    words = tuple(choices)
    described |= {"default": default, "choices": words, "check": check or checks.one_of(words)}
    return field(default=default, metadata={"option": Option(**described)})


def options_of(config: type) -> tuple[Option, ...]:
    """Return the options of a configuration, complete."""
    options = {attribute.name: attribute.metadata["option"] for attribute in fields(config) if attribute.metadata}
    return tuple(
        replace(option, attribute=name, key=option.key or option.flag[2:].replace("-", "_") or name)
        for name, option in options.items()
    )


@frozen
class DaemonConfig:
    """A control daemon that the configuration declares. Its absence is an outage."""

    label: str | None = option(
        None, key="name", check=checks.NAME, help="Label `daemon` of its metrics (default: its pipe directory)."
    )
    pipe_directory: Path = option(MISSING, check=checks.pipe_directory, help="Its CUDA_MPS_PIPE_DIRECTORY (required).")
    log_directory: Path = option(
        Path(DEFAULT_LOG_DIRECTORY),
        check=checks.DIRECTORY,
        help=f"Its CUDA_MPS_LOG_DIRECTORY (default: {DEFAULT_LOG_DIRECTORY}).",
    )
    unit: str | None = option(None, check=checks.UNIT, help="The systemd unit that runs it.")
    owner: int | None = option(
        None,
        key="user",
        check=checks.user,
        help="The user that runs it, by name or number ([default](watchdog.md#who-may-run-a-daemon)).",
    )
    restart_command: tuple[str, ...] = option(
        (),
        check=checks.command,
        help="Command that starts it if it has no unit: a list of words, run without a shell as `user`, else as the"
        " user that the daemon had. The watchdog sets the daemon's directories and limits, and the CUDA_VISIBLE_DEVICES"
        " and CUDA_DEVICE_ORDER that it had. Set other variables or values by"
        ' `["env", "NAME=VALUE", ...]`.',
    )
    active_thread_percentage: float | None = option(
        None,
        check=checks.typed(float, "a number above 0, at most 100", lambda number: 0 < number <= 100),
        help="Percentage of a GPU's threads that each client may use. In mode `act` the watchdog enforces it."
        " Set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in its unit too.",
    )
    pinned_memory_limits: tuple[tuple[int, int], ...] | None = option(
        None,
        check=checks.entries(checks.memory_limit, distinct=lambda limit: limit[0]),
        help="GPU memory that each client may use, by the client's own device numbers, in G or M. In mode"
        " `act` the watchdog enforces it.",
    )
    """Bytes for each device."""
    watchdog: Mode | None = option(None, choices=Mode, help="Mode of the watchdog for it (default: `watchdog.mode`).")

    @property
    def limits(self) -> Limits:
        """The limits that the watchdog enforces."""
        return Limits(
            active_thread_percentage=self.active_thread_percentage,
            pinned_memory=dict(self.pinned_memory_limits or ()),
        )

    @property
    def name(self) -> str:
        """The daemon's name in metrics and events."""
        return self.label or str(self.pipe_directory)


PIPE_DIRECTORIES = (
    "/tmp/nvidia-mps*",  # noqa: S108 (chosen by NVIDIA)
    "/run/nvidia-mps",
    "/run/nvidia-mps/*",
    "/run/mps-ecs",
    "/run/nvidia/mps/*/pipe",
    "/run/nvidia/mps/*/*/pipe",
    "/var/lib/kubelet/plugins/gpu.nvidia.com/mps/*/pipe",
)
"""Where discovery searches for pipe directories: the defaults, those of NVIDIA's device plugin and DRA driver, and that
of ECS (scripts/al2023/gpu/nvidia-mps.service of amazon-ecs-ami)."""


@frozen
class Constants:
    """Values that are not options. Only tests replace them, by the parameter of `exporter.cli.main`."""

    discovery: bool = True  # whether to find daemons that the configuration does not name
    discovery_period: float = 10.0  # seconds between two searches for daemons, and for the names of pods
    pipe_directories: tuple[str, ...] = PIPE_DIRECTORIES
    gke_config: Path = Path("/etc/nvidia/gpu_config.json")
    """The configuration of GKE's device plugin."""
    journal: bool = True  # whether to read the logs of foreground daemons from the journal
    control_executable: str = "nvidia-cuda-mps-control"
    control_deadline: float = 5.0
    collect_deadline: float = 5.0
    procfs: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")
    pods: Path = Path("/var/log/pods")
    """Directory in which the kubelet stores the logs of pods; the names in it are those of the pods."""
    lock_directory: Path = Path("/run/cuda-mps-exporter")
    """Directory of the locks by which one exporter at a time acts for a daemon."""
    intervals: model.PollIntervals = field(default_factory=model.PollIntervals)
    rules: model.Thresholds = field(default_factory=model.Thresholds)
    retention: model.Retention = field(default_factory=model.Retention)


_url = partial(option, None, metavar="URL", check=checks.base_url, commands=("serve", "demo"))


@frozen
class Config:
    """The value of every option, the daemons, and the constants."""

    listen: tuple[Address, ...] = option(
        (("", DEFAULT_PORT),),
        flag="--web.listen-address",
        metavar="HOST:PORT",
        check=checks.entries(checks.address),
        help="Address to listen on; can be repeated. Without a host: all addresses.",
        commands=("serve", "demo", "doctor"),
    )
    telemetry_path: str = option(
        "/metrics",
        flag="--web.telemetry-path",
        metavar="PATH",
        check=checks.PAGE,
        help="Path of the metrics.",
        commands=("serve", "demo"),
    )
    max_requests: int = option(
        40,
        flag="--web.max-requests",
        metavar="N",
        check=checks.typed(int, "an integer from 1 to 1000", lambda number: 1 <= number <= 1000),
        help="Parallel requests, at most half pages.",
        commands=("serve", "demo"),
    )
    web_config_file: Path | None = option(
        None,
        flag="--web.config.file",
        key="web.config_file",
        metavar="FILE",
        check=checks.FILE,
        help="Web configuration file of Prometheus' exporter-toolkit, for TLS and passwords.",
        commands=("serve", "demo", "doctor"),
    )
    prometheus_url: str | None = _url(flag="--web.prometheus-url", help="URL of Prometheus, for links of pages.")
    grafana_url: str | None = _url(flag="--web.grafana-url", help="URL of Grafana, for links of pages.")
    systemd_socket: bool = option(
        False,
        flag="--web.systemd-socket",
        check=checks.typed(bool, "true or false"),
        help="Use systemd socket activation instead of the listen addresses.",
        commands=("serve", "doctor"),
    )
    log_level: str = option(
        "info",
        flag="--log.level",
        choices=LEVELS,
        help="Lowest level of the messages to log.",
        commands=(*CONFIGURED, "replay", "demo"),
        defaults=dict.fromkeys(("status", "incidents", "doctor", "replay"), "warning"),
    )
    log_format: str = option(
        "auto",
        flag="--log.format",
        choices=("auto", "console", "json", "logfmt"),
        help="Format of the log; auto: console on a terminal, else json.",
        commands=(*CONFIGURED, "replay", "demo"),
    )
    client_min_age: float = option(
        15.0,
        flag="--client-min-age",
        key="clients.min_age_seconds",
        metavar="DURATION",
        check=checks.SECONDS,
        help="Minimum age of a client to get series of its own. All clients are counted.",
        commands=("serve", "demo", "replay"),
        # A recording may end before a client in it is old enough.
        defaults={"replay": 0.0},
    )
    attribution: Attribution = option(
        Attribution.OFF,
        flag="--attribution",
        key="attribution.method",
        choices=Attribution,
        help="Divide SM time among clients: bpf counts kernel launches (needs CAP_BPF, CAP_PERFMON).",
        commands=("serve", "record", "doctor", "demo"),
    )
    pod_labels: tuple[str, ...] = option(
        (),
        flag="--kubernetes.pod-labels",
        metavar="LIST",
        check=checks.entries(checks.POD_LABEL, least=0, distinct=metric_label),
        help="Labels of clients' pods, such as team, that cuda_mps_pod_labels shows.",
        commands=("serve", "record"),
    )
    watchdog: Mode = option(
        Mode.OBSERVE,
        flag="--watchdog.mode",
        choices=Mode,
        help="observe reports what the watchdog would do; act does it, for expected daemons.",
        commands=("serve", "doctor", "demo"),
    )
    watchdog_allow: frozenset[AllowedAction] = option(
        frozenset(),
        flag="--watchdog.allow",
        metavar="LIST",
        check=lambda raw: frozenset(checks.entries(checks.one_of(AllowedAction), least=0)(raw)),
        help=f"Actions that end clients and that the watchdog may take: {', '.join(AllowedAction)}.",
        commands=("serve", "replay"),
    )
    slurm_trusted_namespaces: tuple[str, ...] = option(
        (),
        flag="--slurm.trusted-namespaces",
        metavar="LIST",
        check=checks.entries(checks.NAMESPACE, least=0),
        help="Kubernetes namespaces with slurmd in pods: their Slurm jobs are trusted. Root there can name any job.",
        commands=("serve", "status", "record"),
    )
    runtime_directory: Path = option(
        Path("/run/cuda-mps-exporter"),
        flag="--path.runtime-directory",
        key="paths.runtime_directory",
        metavar="DIR",
        check=checks.DIRECTORY,
        help="Directory of the service socket and of locks. $RUNTIME_DIRECTORY, set by systemd, replaces the default.",
        commands=CONFIGURED,
        systemd="RUNTIME_DIRECTORY",
    )
    state_directory: Path = option(
        Path("/var/lib/cuda-mps-exporter"),
        flag="--path.state-directory",
        key="paths.state_directory",
        metavar="DIR",
        check=checks.DIRECTORY,
        help="Directory of incidents, events, totals and evidence. $STATE_DIRECTORY, set by systemd, replaces the"
        " default.",
        commands=("serve", "incidents", "doctor"),
        systemd="STATE_DIRECTORY",
    )
    daemons: tuple[DaemonConfig, ...] = ()
    constants: Constants = field(default_factory=Constants)


OPTIONS = options_of(Config)
DAEMON_KEYS = {key.key: key for key in options_of(DaemonConfig)}

SECTIONS: dict[str, dict[str, Option]] = {}
"""Options by section and key of the file."""
for _option in OPTIONS:
    _section, _, _key = _option.key.partition(".")
    SECTIONS.setdefault(_section, {})[_key] = _option

FIXED = tuple(option for option in OPTIONS if not option.key.startswith(("clients.", "log.", "watchdog.")))
"""Options that a reload does not change."""
