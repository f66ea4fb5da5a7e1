"""What can be set: the nouns of the configuration, each with its default. Times are in seconds."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from exporter.model.limits import Limits
from exporter.model.settings import Accounting, Mode, Rhythm, Rules
from exporter.store.retention import Retention

DEFAULT_PORT = 10677

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
FORMATS = ("auto", "console", "json", "logfmt")
"""Of the log."""

Address = tuple[str, int]


class Switch(StrEnum):
    """Whether to collect something. AUTO: where this machine can, and without complaint where it cannot."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


class Attribution(StrEnum):
    """By what clients' work is seen. BPF: by a program in the kernel that counts at the doors of libcuda."""

    OFF = "off"
    BPF = "bpf"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """A control daemon to watch. It is expected where the configuration names it: then its absence is an outage.

    `label` is the name it was given, `clients_limit` how many clients fit into one of its servers, `owner` the UID of
    the user who runs it. `watchdog` is None where the general mode holds. `restart_command` is what starts it where no
    unit does, `environment` what that adds to its environment, each as NAME=VALUE. Limits that are to hold: a
    percentage, bytes by the daemon's own ordinals, and a priority.
    """

    pipe_directory: Path
    log_directory: Path
    expected: bool
    label: str | None = None
    unit: str | None = None
    clients_limit: int | None = None
    owner: int | None = None
    watchdog: Mode | None = None
    restart_command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    active_thread_percentage: float | None = None
    pinned_memory_limits: tuple[tuple[int, int], ...] | None = None
    client_priority: int | None = None

    @property
    def limits(self) -> Limits:
        """The limits that are to hold there."""
        return Limits(
            active_thread_percentage=self.active_thread_percentage,
            pinned_memory=dict(self.pinned_memory_limits or ()),
            client_priority=self.client_priority,
        )

    @property
    def name(self) -> str:
        """The daemon's name in metrics and events."""
        return self.label or str(self.pipe_directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Whether and where to find daemons that the configuration does not name."""

    enabled: bool = True
    globs: tuple[str, ...] = (
        "/tmp/nvidia-mps*",  # noqa: S108 (NVIDIA's choice, not ours)
        "/run/nvidia-mps",
        "/run/nvidia-mps/*",
        "/run/nvidia/mps/*/pipe",
        "/run/nvidia/mps/*/*/pipe",
    )
    processes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Which sources to read, beside the daemons and their logs."""

    nvml: Switch = Switch.ON
    kernel_log: Switch = Switch.AUTO
    journal: Switch = Switch.AUTO
    pods: Switch = Switch.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set.

    `attribution_equal`: a GPU's time is parted equally among its clients where nothing better is known.
    """

    daemons: tuple[DaemonConfig, ...]
    listen: tuple[Address, ...] = (("", DEFAULT_PORT),)
    telemetry_path: str = "/metrics"
    max_requests: int = 40
    web_config_file: Path | None = None
    systemd_socket: bool = False
    log_level: str = "info"
    log_format: str = "auto"
    client_min_age: float = 15.0
    max_clients: int = 512
    client_series: str = "client"
    discovery: Discovery = field(default_factory=Discovery)
    collect: Collect = field(default_factory=Collect)
    attribution: Attribution = Attribution.OFF
    attribution_equal: bool = False
    control_executable: str = "nvidia-cuda-mps-control"
    control_deadline: float = 5.0
    look_deadline: float = 5.0
    proc: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")
    pods: Path = Path("/var/log/pods")
    runtime_directory: Path = Path("/run/cuda-mps-exporter")
    lock_directory: Path = Path("/run/cuda-mps-exporter")
    state_directory: Path = Path("/var/lib/cuda-mps-exporter")
    history: Retention = field(default_factory=Retention)
    accounting: Accounting = Accounting.WORKLOAD
    rhythm: Rhythm = field(default_factory=Rhythm)
    watchdog: Mode = Mode.OBSERVE
    rules: Rules = field(default_factory=Rules)
