"""Whether the GPUs are well shared: how many more clients would fit, and how much was promised to those there are."""

from dashboards import looks
from dashboards.board import Row
from dashboards.links import to_node
from dashboards.panel import Column, lines, table
from dashboards.pod_requests import pod_requests
from dashboards.query import GPU, WITH_INDEX, Query
from exporter.usage.capacity import Bound

_EACH = "GPU {{index}} {{instance}}"
_FIT = "cuda_mps_gpu_clients_fit"
_THREADS = "cuda_mps_gpu_thread_percentage_committed_ratio"
_PINNED = "cuda_mps_gpu_pinned_memory_committed_ratio"


def clients_fit(of: str) -> str:
    """Return the smallest bound of each GPU. Without memory or slots, the smallest known bound may be too large."""
    return (
        f"min by ({GPU}) ({_FIT}{{{of}}})"
        f' and max by ({GPU}) ({_FIT}{{{of}, bound="memory"}})'
        f' and max by ({GPU}) ({_FIT}{{{of}, bound="slots"}})'
    )


_LEAST = clients_fit("gpus")

SHARING = Row(
    "Quality of sharing",
    (
        table(
            "How many more fit",
            "How many more clients like the present ones would fit on each GPU: the smallest of the bounds by "
            "memory, SM time and client slots, or 0 if another client would only slow down the others (contention). "
            "Without a bound for memory or for client slots, it is unknown. The other two may be absent. Best "
            "replicas: the clients with memory, and those that still fit.",
            (
                _LEAST,
                *(f'max by ({GPU}) ({_FIT}{{gpus, bound="{bound}"}})' for bound in Bound),
                f"count by ({GPU}) (cuda_mps_client_memory_used_bytes{{gpus}}) + on ({GPU}) ({_LEAST})",
            ),
            {
                "instance": Column("Node", links=to_node()),
                "gpu": "GPU",
                "Value #A": Column("More clients", looks.COUNT),
                "Value #B": Column("by memory", looks.COUNT),
                "Value #C": Column("by SM time", looks.COUNT),
                "Value #D": Column("by client slots", looks.COUNT),
                "Value #E": Column("by contention", looks.COUNT),
                "Value #F": Column("Best replicas", looks.COUNT),
            },
            sort=("More clients", False),
            width=12,
        ),
        lines(
            "How many more fit over time",
            "The smallest bound of each GPU, if those of memory and of client slots are known.",
            Query(f"({_LEAST}) {WITH_INDEX}", _EACH),
        ),
        lines(
            "Committed limits",
            "Sum of the limits of each GPU's clients: threads, and memory if each client has a limit. Above 100 %, "
            "they cannot all use their limit at once: threads are shared, memory runs out. Unknown if the "
            "environment of a client cannot be read.",
            Query(f"{_THREADS}{{gpus}} {WITH_INDEX}", f"threads {_EACH}"),
            Query(f"{_PINNED}{{gpus}} {WITH_INDEX}", f"memory {_EACH}"),
            unit=looks.RATIO,
            width=8,
        ),
        lines(
            "SMs busy, and memory bandwidth in use",
            "Near the peak of the bandwidth, clients wait for each other, independent of their threads.",
            Query(f"cuda_mps_gpu_sm_utilization_ratio{{gpus}} {WITH_INDEX}", f"SMs {_EACH}"),
            Query(f"cuda_mps_gpu_dram_bandwidth_ratio{{gpus}} {WITH_INDEX}", f"bandwidth {_EACH}"),
            unit=looks.RATIO,
            ceiling=1,
            width=8,
        ),
        lines(
            "Memory used, and SMs busy",
            "Fraction of each GPU's memory that is used. If it is high while the SMs are idle, memory limits the "
            "sharing.",
            Query(
                f"cuda_mps_gpu_memory_used_bytes{{gpus}} / cuda_mps_gpu_memory_total_bytes{{gpus}} {WITH_INDEX}",
                f"memory {_EACH}",
            ),
            Query(f"rate(cuda_mps_gpu_sm_seconds_total{{gpus}}[$__rate_interval]) {WITH_INDEX}", f"SMs {_EACH}"),
            unit=looks.RATIO,
            ceiling=1,
            width=8,
        ),
    ),
)

_REQUESTS = pod_requests(
    lambda name, matchers: f"{name}{{node, {matchers}}}", lambda name, matchers: f"{name}{{clusters, {matchers}}}"
)

SHARES = Row(
    "Sharing in Kubernetes",
    (
        table(
            "Requests by pod",
            "GPUs and shares of GPUs that pods request on nodes with MPS, by kube-state-metrics, and whether the pod "
            "has MPS clients: some, none, or unknown if nothing shows where a client of the node is. Resource claims "
            "(DRA) are not in it.",
            _REQUESTS,
            {
                "clients": "Clients",
                "node": "Kubernetes node",
                "client_namespace": "Namespace",
                "client_pod": "Pod",
                "resource": "Resource",
                "Value": Column("Requested", looks.COUNT),
            },
            sort=("Clients", False),
            width=14,
        ),
        lines(
            "Requests over time",
            "The same by namespace.",
            Query(
                f"sum by (cluster, client_namespace, clients) ({_REQUESTS})",
                "{{client_namespace}} clients: {{clients}}",
            ),
            width=10,
        ),
    ),
)
