"""The table of options: flags, variables, the file's keys, their checks, help and documentation all come from it.

The defaults stand in Config. The daemons are not here: which there are is for `daemons.py`.
"""

from collections.abc import Mapping

from exporter.config import values
from exporter.config.attribution_options import ATTRIBUTION_OPTIONS
from exporter.config.kinds import boolean, choice, duration, integer, several, switch, textual
from exporter.config.option import Option
from exporter.config.settings import FORMATS, LEVELS, Config
from exporter.config.watchdog_options import WATCHDOG_OPTIONS

WATCHING = ("serve", "status", "record", "doctor")
"""The commands that watch this node."""

CONFIGURED = (*WATCHING, "incidents", "pause", "resume")
"""Those that read the configuration file."""

HISTORICAL = ("serve",)
"""Those that know the history of this node."""

_SERVING = ("serve", "demo")
_LISTENING = (*_SERVING, "doctor")
_ALL = (*CONFIGURED, "replay", "demo")

_MOST_REQUESTS = 1000
_MOST_CLIENTS = 10_000
_MOST_INCIDENTS = 10_000
_MOST_EVENTS = 100_000

_ADDRESSES = several(
    textual("HOST:PORT", lambda where, text: values.parse_address(text, where), values.written_address)
)
_FILE = textual("FILE", values.parse_path)
_PATH = textual("PATH", values.parse_directory)
_DIRECTORY = textual("DIR", values.parse_directory)

DEFAULTS = Config(daemons=())

DEFAULTS_OF: Mapping[str, Mapping[str, object]] = {
    "status": {"log_level": "warning"},
    "incidents": {"log_level": "warning"},
    "doctor": {"log_level": "warning"},
    # A recording has only what it has, so there nobody is too young.
    "replay": {"log_level": "warning", "client_min_age": 0.0},
}
"""What a command does otherwise, where nobody says how."""

OPTIONS = (
    Option(
        key="web.listen_address",
        attribute="listen",
        kind=_ADDRESSES,
        help="where to serve; without a host, on all addresses",
        commands=_LISTENING,
        reloadable=False,
    ),
    Option(
        key="web.telemetry_path",
        attribute="telemetry_path",
        kind=textual("PATH", values.parse_page),
        help="the page of the metrics",
        commands=_SERVING,
        reloadable=False,
    ),
    Option(
        key="web.max_requests",
        attribute="max_requests",
        kind=integer(1, _MOST_REQUESTS),
        help="how many requests are served at once",
        commands=_SERVING,
        reloadable=False,
    ),
    Option(
        key="web.config_file",
        flag="--web.config.file",
        attribute="web_config_file",
        kind=_FILE,
        help="TLS and passwords, in a file of the format of Prometheus' exporter-toolkit",
        commands=_LISTENING,
        reloadable=False,
    ),
    Option(
        key="web.systemd_socket",
        attribute="systemd_socket",
        kind=boolean(),
        help="serve on the sockets that systemd hands over, and not on the listen addresses",
        commands=("serve", "doctor"),
        reloadable=False,
    ),
    Option(
        key="log.level",
        attribute="log_level",
        kind=choice(*LEVELS),
        help="what to log",
        commands=_ALL,
    ),
    Option(
        key="log.format",
        attribute="log_format",
        kind=choice(*FORMATS),
        help="how to log; auto is for a person on a terminal, and JSON elsewhere",
        commands=_ALL,
    ),
    Option(
        key="clients.min_age_seconds",
        flag="--client-min-age",
        attribute="client_min_age",
        kind=duration(),
        help="age from which a client has series of its own; it is counted at once",
        commands=(*_SERVING, "replay"),
    ),
    Option(
        key="clients.max",
        attribute="max_clients",
        kind=integer(0, _MOST_CLIENTS),
        help="how many clients of a node have series of their own; all are counted",
        commands=_SERVING,
    ),
    Option(
        key="clients.series",
        attribute="client_series",
        kind=choice("client", "workload"),
        help="whether each client has series of its own, or only the workload it belongs to",
        commands=_SERVING,
    ),
    Option(
        key="discovery.enabled",
        flag="--discovery",
        attribute="discovery.enabled",
        kind=boolean(),
        help="find daemons that the configuration does not name; they are expected only if an enabled unit or NVIDIA's "
        "device plugin declares them",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="discovery.globs",
        attribute="discovery.globs",
        kind=several(textual("GLOB", values.parse_glob)),
        help="the pipe directories to look for a control socket in",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="discovery.processes",
        attribute="discovery.processes",
        kind=boolean(),
        help="find control daemons among the running processes, too",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="collect.nvml",
        attribute="collect.nvml",
        kind=switch(),
        help="read NVML: the GPUs, their memory, and who uses it",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="collect.kernel_log",
        attribute="collect.kernel_log",
        kind=switch(),
        help="read Xid errors from the kernel log, which needs CAP_SYSLOG",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="collect.journal",
        attribute="collect.journal",
        kind=switch(),
        help="read foreground daemons' logs from the journal, which needs the group systemd-journal",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="collect.pods",
        attribute="collect.pods",
        kind=switch(),
        help="look up the names of Kubernetes pods",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="rhythm.liveness_seconds",
        attribute="rhythm.liveness",
        kind=duration(1, 300),
        help="how often to ask a daemon whether it lives; each time costs five lines in its log",
        commands=WATCHING,
    ),
    Option(
        key="rhythm.lists_seconds",
        attribute="rhythm.lists",
        kind=duration(5, 3600),
        help="how often to ask a daemon for all its clients, where nothing else gives reason to",
        commands=WATCHING,
    ),
    Option(
        key="rhythm.nvml_seconds",
        attribute="rhythm.nvml",
        kind=duration(0.5, 300),
        help="how often to read NVML",
        commands=WATCHING,
    ),
    *ATTRIBUTION_OPTIONS,
    *WATCHDOG_OPTIONS,
    Option(
        key="history.max_age_seconds",
        attribute="history.max_age",
        kind=duration(60),
        help="how long incidents and events are kept, across restarts too; an incident that is open is kept anyhow",
        commands=HISTORICAL,
        reloadable=False,
    ),
    Option(
        key="history.max_incidents",
        attribute="history.max_incidents",
        kind=integer(1, _MOST_INCIDENTS),
        help="how many incidents are kept; the oldest go first",
        commands=HISTORICAL,
        reloadable=False,
    ),
    Option(
        key="history.max_events",
        attribute="history.max_events",
        kind=integer(1, _MOST_EVENTS),
        help="how many events are kept; the oldest go first",
        commands=HISTORICAL,
        reloadable=False,
    ),
    Option(
        key="paths.procfs",
        flag="--path.procfs",
        attribute="proc",
        kind=_PATH,
        help="where proc is mounted",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="paths.kmsg",
        flag="--path.kmsg",
        attribute="kmsg",
        kind=_PATH,
        help="the kernel log",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="paths.pods",
        flag="--path.pods",
        attribute="pods",
        kind=_DIRECTORY,
        help="where the kubelet keeps the pods' logs; the names of its directories tell the pods' names",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="paths.control_executable",
        flag="--path.control-executable",
        attribute="control_executable",
        kind=textual("PROGRAM", values.parse_program),
        help="the program that asks a daemon; without a slash, it is looked for in PATH",
        commands=WATCHING,
        reloadable=False,
    ),
    Option(
        key="paths.runtime_directory",
        flag="--path.runtime-directory",
        attribute="runtime_directory",
        kind=_DIRECTORY,
        help="for the socket by which status and its like reach the service, and for locks;"
        " RUNTIME_DIRECTORY, which systemd sets, is the default where it is there",
        commands=CONFIGURED,
        reloadable=False,
    ),
    Option(
        key="paths.lock_directory",
        flag="--path.lock-directory",
        attribute="lock_directory",
        kind=_DIRECTORY,
        help="for the locks by which one exporter at a time acts for a daemon: the same for all exporters of a machine",
        commands=("serve",),
        reloadable=False,
    ),
    Option(
        key="paths.state_directory",
        flag="--path.state-directory",
        attribute="state_directory",
        kind=_DIRECTORY,
        help="for what outlives a restart: incidents, events, evidence;"
        " STATE_DIRECTORY, which systemd sets, is the default where it is there",
        commands=(*HISTORICAL, "incidents", "doctor"),
        reloadable=False,
    ),
)
