"""The answers about a fleet, as tables of PromQL. They read only the recorded series of `cuda-mps.recording.yml`.

In a query, `$range` is the period as a duration, `$selector` are label matchers, and `$by` are the labels of a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

LIMIT = 50
"""Rows of an answer."""


class Unit(StrEnum):
    """What a number means. RISK is 0 for low, 1 for little data, and 2 for suspected of a fault."""

    HOURS = "h"
    COST = "cost"
    COUNT = "count"
    RATIO = "ratio"
    BYTES = "bytes"
    GIGABYTE_HOURS = "GB h"
    KILOWATT_HOURS = "kWh"
    RISK = "risk"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers: its heading, its query, and what its values are."""

    heading: str
    unit: Unit
    query: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A table. Its rows are those of the first column's query, with the greatest value first.

    `labels` tell rows apart, with their headings; a label without heading is not shown. `meaning` says what the values
    are, for readers. With `ascending`, the least value comes first.
    """

    key: str
    title: str
    meaning: str
    labels: Mapping[str, str]
    columns: Sequence[Column] = field(repr=False)
    ascending: bool = False

    def queries(self, duration: str, selector: str, limit: int | None = LIMIT) -> list[str]:
        """Return the query of each column, each for the same rows. Without `limit`, for all rows."""
        by = ", ".join(self.labels)
        queries = [
            column.query.replace("$by", by).replace("$range", duration).replace("$selector", selector)
            for column in self.columns
        ]
        sort, select = ("sort", "bottomk") if self.ascending else ("sort_desc", "topk")
        if limit is None:
            return [f"{sort}({queries[0]})", *queries[1:]]
        rows = f"{select}({limit}, {queries[0]})"
        return [f"{sort}({rows})", *(f"({query}) and on ({by}) {rows}" for query in queries[1:])]


def _total(series: str, matchers: str = "") -> str:
    """Return the sum of the increases in the period; `matchers` end with a comma."""
    return f"sum by ($by) (sum_over_time({series}{{{matchers}$selector}}[$range]))"


def _peak(series: str) -> str:
    return f"max by ($by) (max_over_time({series}{{$selector}}[$range]))"


def _last(series: str) -> str:
    return f"max by ($by) (last_over_time({series}{{$selector}}[15m]))"


_SM_SECONDS = "application:cuda_mps_sm_seconds:increase10m"
_NODE_SM, _NODE_GPU = "instance:cuda_mps_sm_seconds:increase10m", "instance:cuda_mps_gpu_seconds:increase10m"
_FAULTED_CLIENTS = "application:cuda_mps_faulted_clients:increase10m"

_TIMES_PRICE = (
    "* on (cluster) group_left () "
    "max by (cluster) (last_over_time(cluster:cuda_mps_gpu_hour_price:value{$selector}[$range]))"
)
"""Each cluster has its price of a GPU hour. It is that at the end of the period."""


def _use(matchers: str = "", *without_use: str) -> list[Column]:
    """Return the columns of use, of what clients may use, and of their costs.

    Owners that only reserve have rows too, and those that `without_use` finds.
    """
    reserved = "application:cuda_mps_requested_sm_seconds:increase10m"
    used_cost, reserved_cost = (
        f"sum by ($by) (sum_over_time({series}{{{matchers}$selector}}[$range]) {_TIMES_PRICE}) / 3600"
        for series in (_SM_SECONDS, reserved)
    )
    reserved_seconds = _total(reserved, matchers)
    memory, energy = (
        "application:cuda_mps_memory_byte_seconds:increase10m",
        "application:cuda_mps_energy_joules:increase10m",
    )
    used_seconds = " or 0 * ".join((_total(_SM_SECONDS, matchers), reserved_seconds, *without_use))
    return [
        Column("SM time", Unit.HOURS, f"({used_seconds}) / 3600"),
        Column("Cost", Unit.COST, used_cost),
        Column("Reserved", Unit.HOURS, f"{reserved_seconds} / 3600"),
        Column("Cost of reservation", Unit.COST, reserved_cost),
        Column("Memory", Unit.GIGABYTE_HOURS, f"{_total(memory, matchers)} / 3.6e12"),
        Column("Energy", Unit.KILOWATT_HOURS, f"{_total(energy, matchers)} / 3.6e6"),
    ]


_COST = (
    "SM time is in hours of a whole GPU, 0 if unknown. Cost is SM time multiplied by the price of a GPU hour. Reserved "
    "is the fraction of the threads that clients may use, multiplied by time."
)

_REQUESTED, _WITHOUT_CLIENTS = "namespace:cuda_mps_requested_shares:sum", 'clients="none", '
COST_BY_NAMESPACE = Answer(
    "cost_by_namespace",
    "Cost by namespace",
    f"{_COST} Without namespace: workloads that are not pods, and unattributed use.",
    {"cluster": "Cluster", "client_namespace": "Namespace"},
    [
        *_use("", _total(_REQUESTED)),
        Column("Requested shares", Unit.HOURS, f"{_total(_REQUESTED)} / 6"),
        Column("Requested without clients", Unit.HOURS, f"{_total(_REQUESTED, _WITHOUT_CLIENTS)} / 6"),
    ],
)
COST_BY_TEAM = Answer("cost_by_team", "Cost by team", _COST, {"team": "Team"}, _use())
COST_BY_USER = Answer("cost_by_user", "Cost by user", _COST, {"user": "User"}, _use())
COST_BY_JOB = Answer(
    "cost_by_job",
    "Cost by job",
    _COST,
    {"cluster": "Cluster", "application": "Job", "user": "User"},
    _use('workload_kind="job", '),
)

_GPU_SECONDS, _USED_SECONDS = _total(_NODE_GPU), f"({_total(_NODE_SM)} or 0 * {_total(_NODE_GPU)})"
_IDLE_HOURS = f"({_GPU_SECONDS} - {_USED_SECONDS}) / 3600"
_IDLE = [
    Column("Idle", Unit.HOURS, _IDLE_HOURS),
    Column("Cost of idle time", Unit.COST, f"{_IDLE_HOURS} {_TIMES_PRICE}"),
    Column("GPU time", Unit.HOURS, f"{_GPU_SECONDS} / 3600"),
    Column("Used", Unit.RATIO, f"{_USED_SECONDS} / {_GPU_SECONDS}"),
    Column("Cost of use", Unit.COST, f"{_USED_SECONDS} / 3600 {_TIMES_PRICE}"),
]
_UNATTRIBUTED = 'workload_kind="unattributed", '
_RECORDED = (
    "clamp_max(max by ($by) (count_over_time(cluster:cuda_mps_gpu_hour_price:value{$selector}[$range])) "
    "/ scalar(count_over_time(vector(1)[$range:10m])), 1)"
)
_IDLE_MEANING = "Idle is GPU time less SM time: a client with a few busy SMs uses little of its GPU."

NODE: Mapping[str, str] = {"cluster": "Cluster", "job": "", "instance": "Node"}

IDLE_BY_CLUSTER = Answer(
    "idle_by_cluster",
    "Clusters",
    f"{_IDLE_MEANING} Unattributed is the fraction of the SM time that is not known by workload. Recorded is the "
    "fraction of the period for which the recording rules were evaluated.",
    {"cluster": "Cluster"},
    [
        *_IDLE,
        Column("Unattributed", Unit.RATIO, f"{_total(_SM_SECONDS, _UNATTRIBUTED)} / {_total(_NODE_SM)}"),
        Column("Recorded", Unit.RATIO, _RECORDED),
    ],
)
IDLE_BY_NODE = Answer("idle_by_node", "Idle cost by node", _IDLE_MEANING, NODE, _IDLE)

_CLIENT_SECONDS = _total("application:cuda_mps_client_seconds:increase10m")
_CAUSED = _total("application:cuda_mps_faults_caused:increase10m")
_SUFFERED = _total("application:cuda_mps_faults_suffered:increase10m")
_PEAK_SM = _peak("application:cuda_mps_client_sm_ratio:avg10m")
_PEAK_MEMORY = _peak("application:cuda_mps_client_memory_bytes:avg10m")

_PERCENTAGE = f"clamp(5 * ceil(25 * ({_PEAK_SM} > 0)), 5, 100)"
"""1.25 times the peak, in steps of 5 %. A peak of 0 is no measurement: the SM time of the clients is unknown."""
_MEMORY_LIMIT = f"1048576 * ceil(1.2 * ({_PEAK_MEMORY} > 0) / 1048576)"
"""1.2 times the peak, in MiB. A client has a context, so a peak of 0 is no measurement."""
_BY_THREADS = f"floor(100 / {_PERCENTAGE})"
_BY_MEMORY = (
    f"floor(1 / ({_MEMORY_LIMIT} / on (cluster) group_left () "
    "min by (cluster) (last_over_time(cluster:cuda_mps_gpu_memory_bytes:min{$selector}[$range]))))"
)

SIZES = Answer(
    "sizes",
    "Requested and used, with recommended limits",
    "Threads and memory are for each client. Peaks are averages over the clients and 10 minutes. The recommended "
    "thread percentage is 1.25 times the peak, the memory limit 1.2 times. If more than 10 % of the SM time is "
    "unattributed, the percentages are too low. Replicas: how many such clients fit on a GPU. Risk suspected: the "
    "application was the main suspect of a fault, which is no proof: examine the faults. Little data: less than 24 "
    "client hours.",
    {
        "cluster": "Cluster",
        "client_namespace": "Namespace",
        "workload_kind": "Kind",
        "application": "Application",
    },
    [
        Column("Client time", Unit.HOURS, f"{_CLIENT_SECONDS} / 3600"),
        Column(
            "Threads allowed",
            Unit.RATIO,
            f"{_total('application:cuda_mps_requested_sm_seconds:increase10m')} / {_CLIENT_SECONDS}",
        ),
        Column("Threads, peak", Unit.RATIO, _PEAK_SM),
        Column("Threads, recommended", Unit.RATIO, f"{_PERCENTAGE} / 100"),
        Column(
            "Memory limit",
            Unit.BYTES,
            f"{_total('application:cuda_mps_requested_memory_byte_seconds:increase10m')} / {_CLIENT_SECONDS}",
        ),
        Column("Memory, peak", Unit.BYTES, _PEAK_MEMORY),
        Column("Memory, recommended", Unit.BYTES, _MEMORY_LIMIT),
        Column(
            "Replicas per GPU",
            Unit.COUNT,
            f'min by ($by) (label_replace({_BY_THREADS}, "bound", "threads", "", "") '
            f'or label_replace({_BY_MEMORY} and {_PEAK_SM} > 0, "bound", "memory", "", ""))',
        ),
        Column("Risk", Unit.RISK, f"2 * ({_CAUSED} > bool 0) or {_CLIENT_SECONDS} < bool 86400"),
    ],
)

CRASHES = Answer(
    "crashes",
    "Suspects and affected applications",
    "Clients that faults ended, by the main suspect (no proof). Confidence: high is at least 0.8, medium 0.5.",
    {
        "cluster": "Cluster",
        "suspect_namespace": "Suspect's namespace",
        "suspect_application": "Suspect",
        "client_namespace": "Namespace",
        "application": "Affected",
        "confidence": "Confidence",
    },
    [Column("Clients", Unit.COUNT, _total(_FAULTED_CLIENTS))],
)

FAULTS = Answer(
    "faults",
    "Faults by application",
    "Suspected: faults with the application as main suspect (no proof). Suffered: faults that ended its clients.",
    {"cluster": "Cluster", "client_namespace": "Namespace", "application": "Application"},
    [
        Column("Suspected", Unit.COUNT, f"{_CAUSED} or 0 * {_SUFFERED}"),
        Column("Suffered", Unit.COUNT, _SUFFERED),
        Column("Clients ended", Unit.COUNT, _total(_FAULTED_CLIENTS)),
    ],
)


def _service_level(series: str) -> list[Column]:
    """Return the columns of the share of good client-minutes."""
    total, bad = _total(series, 'outcome!="faulted", '), _total(series, 'outcome!="served", ')
    causes = [
        Column(heading, Unit.COUNT, _total(series, f'outcome="{heading.lower()}", '))
        for heading in ("Faulted", "Refused", "Bypassed")
    ]
    return [
        Column("Good", Unit.RATIO, f"clamp_min(1 - ({bad} or 0 * {total}) / {total}, 0)"),
        Column("Client-minutes", Unit.COUNT, total),
        *causes,
    ]


_SLO = (
    "Good is the share of client-minutes without fault, refusal or bypass. Each client that a fault ended or that was "
    "refused counts as one minute."
)

SLO_BY_CLUSTER = Answer(
    "slo_by_cluster",
    "Service level by cluster",
    _SLO,
    {"cluster": "Cluster"},
    _service_level("cluster:cuda_mps_client_minutes:increase10m"),
    ascending=True,
)
SLO_BY_NODE = Answer(
    "slo_by_node",
    "Service level of the worst nodes",
    _SLO,
    NODE,
    _service_level("instance:cuda_mps_client_minutes:increase10m"),
    ascending=True,
)


def _with_severity(severity: int) -> str:
    of_node = f"instance:cuda_mps_problem_severity:max{{$selector}} == {severity}"
    return f"max by ($by) (count_over_time(({of_node})[$range:5m])) / 12"


OPERATOR = Answer(
    "operator",
    "Nodes that needed an operator",
    "Hours in which a node had a critical problem, and hours with a warning only.",
    NODE,
    [
        Column("Critical", Unit.HOURS, _with_severity(2)),
        Column("Warning", Unit.HOURS, _with_severity(1)),
        Column("Faults", Unit.COUNT, _total("instance:cuda_mps_faults:increase10m")),
        Column("Daemon deaths", Unit.COUNT, _total("instance:cuda_mps_daemon_losses:increase10m")),
    ],
)

ROOM = Answer(
    "room",
    "Room for more clients",
    "At the end of the period: how many more clients like the present ones fit. SM time used: in the last hour.",
    NODE,
    [
        Column("Clients that fit", Unit.COUNT, _last("instance:cuda_mps_clients_fit:sum")),
        Column("Clients", Unit.COUNT, _last("instance:cuda_mps_clients:sum")),
        Column("Memory used", Unit.RATIO, _last("instance:cuda_mps_gpu_memory_used:ratio")),
        Column("SM time used", Unit.RATIO, f"{_total(_NODE_SM)} / {_total(_NODE_GPU)}".replace("$range", "1h")),
        Column("Bypassing processes", Unit.COUNT, _last("instance:cuda_mps_bypassing_processes:max5m")),
    ],
)

ANSWERS: Sequence[Answer] = (
    IDLE_BY_CLUSTER,
    COST_BY_NAMESPACE,
    COST_BY_TEAM,
    COST_BY_USER,
    COST_BY_JOB,
    IDLE_BY_NODE,
    SIZES,
    CRASHES,
    FAULTS,
    SLO_BY_CLUSTER,
    SLO_BY_NODE,
    OPERATOR,
    ROOM,
)
"""All answers, in the order of the report."""
