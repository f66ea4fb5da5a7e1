"""What each client uses now, how sure that is, and what it launches."""

from dashboards import looks
from dashboards.board import Row
from dashboards.panel import Column, lines, table
from dashboards.query import CLIENT, WITH_INDEX, Query

_WHO = "pid, user, command"
_INFO = f"* on ({CLIENT}) group_left ({_WHO}) topk by ({CLIENT}) (1, cuda_mps_client_info{{node}})"
_SAME = f"{CLIENT}, gpu, method, {_WHO}"
_NAMED = "{{command}} {{pid}} of {{user}} {{instance}}"
_ON_GPU = "{{command}} {{pid}} of {{user}} on GPU {{index}} {{instance}}"

_USED = "cuda_mps_client_sm_utilization_ratio"
_BY_METHOD = f"* on ({CLIENT}, gpu) group_left (method) topk by ({CLIENT}, gpu) (1, {_USED}{{gpus}} >= bool 0)"
"""Gives what is said of a client on a GPU the method by which that was found out: one, where it has just changed."""

_LAUNCHES = "cuda_mps_client_kernel_launches_total"
_ERROR = "cuda_mps_client_sm_utilization_error_ratio"
_FLIGHT = "cuda_mps_client_in_flight_seconds_total"

CLIENTS = Row(
    "Clients",
    (
        table(
            "SM time by client",
            "Part of each GPU's SMs that each client kept busy in the last minute, one standard error of that, and how "
            "it was found out. A client that is not here is not known to have used any, or too young for series of "
            "its own.",
            (
                Query(f"sum by ({_SAME}) ({_USED}{{gpus}} {_INFO})", instant=True),
                Query(
                    f"sum by ({_SAME}) ({_ERROR}{{gpus}} {_BY_METHOD} {_INFO})",
                    instant=True,
                ),
            ),
            {
                "instance": Column("Node"),
                "gpu": Column("GPU"),
                "pid": Column("PID"),
                "user": Column("User"),
                "command": Column("Command"),
                "Value #A": Column("SMs", looks.RATIO),
                "Value #B": Column("±", looks.RATIO),
                "method": Column("Method"),
            },
            sort=("SMs", True),
            width=12,
            height=10,
        ),
        lines(
            "SM time by client over time",
            "Part of a GPU's SMs that each client kept busy in the minute before, by method.",
            Query(
                f"sum by ({_SAME}) ({_USED}{{gpus}} {_INFO}) {WITH_INDEX}",
                f"{_ON_GPU} {{{{method}}}}",
            ),
            unit=looks.RATIO,
            stacked=True,
            height=10,
        ),
        lines(
            "How sure that is",
            "One standard error of each client's part of a GPU.",
            Query(
                f"sum by ({CLIENT}, gpu, {_WHO}) ({_ERROR}{{gpus}} {_INFO}) {WITH_INDEX}",
                _ON_GPU,
            ),
            unit=looks.RATIO,
            width=6,
        ),
        lines(
            "Launches",
            "Kernels and graphs that each client launches; absent where its libcuda is not watched (--attribution=bpf "
            "watches it).",
            Query(f"rate({_LAUNCHES}{{node}}[$__rate_interval]) {_INFO}", f"{{{{kind}}}} {_NAMED}"),
            unit=looks.PER_SECOND,
            width=6,
        ),
        lines(
            "Streams with work in flight",
            "How many streams of each client had work in flight, on the average: 1 is one that never rested.",
            Query(f"rate({_FLIGHT}{{node}}[$__rate_interval]) {_INFO}", _NAMED),
            unit=looks.NUMBER,
            width=6,
        ),
        lines(
            "Launches that could not be put down",
            "For want of room: where there are any, time in flight is too small.",
            Query("rate(cuda_mps_exporter_launches_lost_total{node}[$__rate_interval])", "{{instance}}"),
            unit=looks.PER_SECOND,
            width=6,
        ),
        lines(
            "How much of the time libcuda is watched",
            "Less than all of it where a client launches so much that watching all would slow it down: what it does "
            "between is taken to be alike, and is less sure. 0: nobody uses CUDA.",
            Query("cuda_mps_exporter_attribution_watched_ratio{node}", "{{instance}}"),
            unit=looks.RATIO,
            ceiling=1,
            width=12,
        ),
    ),
)
