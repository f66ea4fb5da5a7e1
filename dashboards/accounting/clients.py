"""What each client uses now, how sure that is, what it launches, and how much others slow it down."""

from dashboards import looks
from dashboards.accounting.owners import HOUR, OWNER, by
from dashboards.board import Row
from dashboards.links import to_client, to_node
from dashboards.panel import Column, lines, table
from dashboards.query import CLIENT, WITH_INDEX, Query

_WHO = "pid, user, command"
_INFO = f"* on ({CLIENT}) group_left ({_WHO}) topk by ({CLIENT}) (1, cuda_mps_client_info{{node}})"
_SAME = f"{CLIENT}, gpu, method, {_WHO}"
_NAMED = "{{command}} {{pid}} of {{user}} {{instance}}"
_ON_GPU = "{{command}} {{pid}} of {{user}} on GPU {{index}} {{instance}}"

_USED = "cuda_mps_client_sm_utilization_ratio"
_BY_METHOD = f"* on ({CLIENT}, gpu) group_left (method) topk by ({CLIENT}, gpu) (1, {_USED}{{gpus}} >= bool 0)"
"""Adds the method of attribution to a series of a client on a GPU: one method, if it has just changed."""

_LAUNCHES = "cuda_mps_client_kernel_launches_total"
_ERROR = "cuda_mps_client_sm_utilization_error_ratio"
_FLIGHT = "cuda_mps_client_in_flight_seconds_total"

CLIENTS = Row(
    "Clients",
    (
        table(
            "SM time by client",
            "Fraction of each GPU's SMs that each client used in the last minute, or since its first use, "
            "one standard error of it, and the method. If the error is more than a quarter of the fraction, only the "
            "range of two standard errors is known. An idle client has 0. The use of clients that are not listed is "
            "unknown.",
            (
                f"sum by ({_SAME}) ({_USED}{{gpus}} {_INFO})",
                f"sum by ({_SAME}) ({_ERROR}{{gpus}} {_BY_METHOD} {_INFO})",
            ),
            {
                "instance": Column("Node", links=to_node()),
                "gpu": "GPU",
                "pid": "PID",
                "user": "User",
                "command": "Command",
                "Value #A": Column("SMs", looks.RATIO),
                "Value #B": Column("±", looks.RATIO),
                "method": "Method",
            },
            sort=("SMs", True),
            width=12,
            height=10,
        ),
        lines(
            "SM time by client over time",
            "Fraction of a GPU's SMs that each client used in the minute before, or since its first use, by method. In "
            "a client's first minute, the sum can exceed what the GPU used.",
            Query(f"sum by ({_SAME}) ({_USED}{{gpus}} {_INFO}) {WITH_INDEX}", f"{_ON_GPU} {{{{method}}}}"),
            unit=looks.RATIO,
            stacked=True,
            height=10,
        ),
        lines(
            "Standard error",
            "One standard error of each client's fraction of a GPU. It is 0 for a client alone.",
            Query(f"sum by ({CLIENT}, gpu, {_WHO}) ({_ERROR}{{gpus}} {_INFO}) {WITH_INDEX}", _ON_GPU),
            unit=looks.RATIO,
            width=6,
        ),
        lines(
            "Launches",
            "Kernels and graphs that each client launches; absent if its libcuda is not probed (--attribution=bpf "
            "probes it).",
            Query(f"rate({_LAUNCHES}{{node}}[$__rate_interval]) {_INFO}", f"{{{{kind}}}} {_NAMED}"),
            unit=looks.PER_SECOND,
            width=6,
        ),
        lines(
            "Streams with work in flight",
            "Average number of streams of each client that had work in flight: 1 is a stream that was never idle.",
            Query(f"rate({_FLIGHT}{{node}}[$__rate_interval]) {_INFO}", _NAMED),
            unit=looks.NUMBER,
            width=6,
        ),
        lines(
            "Launches not counted",
            "Kernel launches that were not counted because a BPF map was full. If there are any, time in flight is "
            "too small.",
            Query("rate(cuda_mps_exporter_launches_lost_total{node}[$__rate_interval])", "{{instance}}"),
            unit=looks.PER_SECOND,
            width=6,
        ),
        lines(
            "Fraction of time in which a client was watched",
            "Below 1 if clients launch so much that continuous probing would slow them down. The exporter then "
            "extrapolates. It watches for longer while clients are new or change. 0: the client cannot be watched.",
            Query("cuda_mps_client_watched_ratio{node}", "{{instance}} {{client}}"),
            unit=looks.RATIO,
            ceiling=1,
            width=12,
        ),
    ),
)

_SLOWDOWN, _LEAST = "cuda_mps_client_slowdown_ratio", "cuda_mps_client_slowdown_least_ratio"
_BANDWIDTH = "cuda_mps_client_dram_bandwidth_ratio"
_LOST = ("cuda_mps_workload_contention_seconds_total", "cuda_mps_workload_contention_caused_seconds_total")
_SLOWED = (
    _SLOWDOWN,
    "cuda_mps_client_slowdown_error_ratio",
    _LEAST,
    _BANDWIDTH,
    "cuda_mps_client_dram_bandwidth_error_ratio",
)


def _of_client(family: str) -> str:
    return f"sum by ({CLIENT}, gpu, {_WHO}) ({family}{{gpus}} {_INFO})"


NEIGHBOURS = Row(
    "Slowdown by neighbours",
    (
        table(
            "Slowdown by client",
            "Time that each client's work took in the last minute, divided by that on a quiet GPU, and one standard "
            "error; beside it, how much of the GPU memory's bandwidth it used. At least: the client never had a quiet "
            "GPU, or its own work may have changed.",
            tuple(map(_of_client, _SLOWED)),
            {
                "instance": Column("Node", links=to_node()),
                "gpu": "GPU",
                "pid": "PID",
                "user": "User",
                "command": "Command",
                "Value #A": Column("Slowdown", looks.NUMBER),
                "Value #B": Column("±", looks.NUMBER),
                "Value #C": Column("At least", looks.NUMBER),
                "Value #D": Column("Bandwidth", looks.RATIO),
                "Value #E": Column("± of it", looks.RATIO),
            },
            sort=("Slowdown", True),
            width=14,
            height=10,
        ),
        lines(
            "Sharing gain",
            "How many clients' worth of work each GPU did in the minute before. Clearly below 1, the same work may "
            "take less time if the clients run one after another. Absent while the slowdown of a client is unknown.",
            Query(
                f"cuda_mps_gpu_sharing_gain_ratio{{gpus}} {WITH_INDEX}",
                "GPU {{index}} {{instance}}",
            ),
            unit=looks.NUMBER,
            width=10,
            height=10,
        ),
        table(
            "Time lost by slowdown, by workload",
            "Hours that slowdown cost each workload in the selected time range, at least, and that the workload cost "
            "others, in proportion to its use of the resource for which they waited.",
            tuple(by(OWNER, family, HOUR) for family in _LOST),
            {
                "workload_kind": "Kind",
                "workload": "Workload",
                "Value #A": Column("Lost", looks.COUNT),
                "Value #B": Column("Cost others", looks.COUNT),
            },
            sort=("Cost others", True),
            width=24,
            height=7,
        ),
        table(
            "Slowed clients",
            "The resource that each clearly slowed client waits for, and the neighbour that uses most of it. Click a "
            "client for its page. Empty: no client is clearly slowed down.",
            "cuda_mps_client_slowdown_info{gpus}",
            {
                "instance": Column("Node", links=to_node()),
                "gpu": "GPU",
                "client": Column("Client", links=to_client()),
                "resource": "Waits for",
                "neighbour": "Neighbour",
            },
            sort=("Client", False),
            width=24,
            height=5,
        ),
        lines(
            "Slowdown over time",
            "Time that each client's work took in the minute before, divided by that on a quiet GPU.",
            Query(f"{_of_client(_SLOWDOWN)} {WITH_INDEX}", _ON_GPU),
            Query(f"{_of_client(_LEAST)} {WITH_INDEX}", f"at least: {_ON_GPU}"),
            unit=looks.NUMBER,
        ),
        lines(
            "Memory bandwidth by client",
            "Fraction of the GPU memory's bandwidth that each client used in the minute before, estimated. A limit of "
            "a client's threads does not limit its bandwidth.",
            Query(f"{_of_client(_BANDWIDTH)} {WITH_INDEX}", _ON_GPU),
            unit=looks.RATIO,
            stacked=True,
            ceiling=1,
        ),
    ),
)
"""How much clients slow each other down, and which of them use the memory's bandwidth."""
