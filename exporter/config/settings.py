"""The configuration as frozen values, with all defaults. Times are in seconds."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from exporter.model.settings import AllowedAction, Limits, Mode, PollIntervals, Retention, Thresholds

DEFAULT_PORT = 10677

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
FORMATS = ("auto", "console", "json", "logfmt")
"""Formats of the log."""

Address = tuple[str, int]


class Attribution(StrEnum):
    """How SM time is attributed to clients: only to one that is alone, or by launches that BPF programs count."""

    OFF = "off"
    BPF = "bpf"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """A control daemon that the configuration declares. Its absence is an outage."""

    pipe_directory: Path
    log_directory: Path
    label: str | None = None
    """The configured name, if there is one."""
    unit: str | None = None
    owner: int | None = None
    """UID of the user that runs the daemon."""
    watchdog: Mode | None = None
    """None: the mode of all daemons."""
    restart_command: tuple[str, ...] = ()
    active_thread_percentage: float | None = None
    pinned_memory_limits: tuple[tuple[int, int], ...] | None = None
    """Bytes for each device, by the daemon's own ordinals."""

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
    "/run/nvidia/mps/*/pipe",
    "/run/nvidia/mps/*/*/pipe",
    "/var/lib/kubelet/plugins/gpu.nvidia.com/mps/*/pipe",
)
"""Where discovery searches for pipe directories: the defaults, and those of NVIDIA's device plugin and DRA driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Values that are not options. Only tests replace them, by the parameter of `exporter.cli.main`."""

    discovery: bool = True
    """Whether to find daemons that the configuration does not name."""
    discovery_period: float = 10.0
    """Seconds between two searches for daemons, and for the names of pods."""
    pipe_directories: tuple[str, ...] = PIPE_DIRECTORIES
    gke_config: Path = Path("/etc/nvidia/gpu_config.json")
    """The configuration of GKE's device plugin."""
    journal: bool = True
    """Whether to read the logs of foreground daemons from the journal."""
    control_executable: str = "nvidia-cuda-mps-control"
    control_deadline: float = 5.0
    collect_deadline: float = 5.0
    procfs: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")
    pods: Path = Path("/var/log/pods")
    """Directory in which the kubelet stores the logs of pods; the names in it are those of the pods."""
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """Socket of the kubelet's pod resources API."""
    lock_directory: Path = Path("/run/cuda-mps-exporter")
    """Directory of the locks by which one exporter at a time acts for a daemon."""
    intervals: PollIntervals = field(default_factory=PollIntervals)
    rules: Thresholds = field(default_factory=Thresholds)
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The value of every option, the daemons, and the constants."""

    daemons: tuple[DaemonConfig, ...] = ()
    listen: tuple[Address, ...] = (("", DEFAULT_PORT),)
    telemetry_path: str = "/metrics"
    max_requests: int = 40
    web_config_file: Path | None = None
    systemd_socket: bool = False
    log_level: str = "info"
    log_format: str = "auto"
    client_min_age: float = 15.0
    attribution: Attribution = Attribution.OFF
    runtime_directory: Path = Path("/run/cuda-mps-exporter")
    state_directory: Path = Path("/var/lib/cuda-mps-exporter")
    watchdog: Mode = Mode.OBSERVE
    watchdog_allow: frozenset[AllowedAction] = frozenset()
    constants: Constants = field(default_factory=Constants)
