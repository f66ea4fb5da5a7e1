"""Whether the GPUs are well shared: how many more clients would fit, and how much was promised to those there are."""

from dashboards import looks
from dashboards.board import Row
from dashboards.links import to_node
from dashboards.panel import Column, lines, table
from dashboards.query import DAEMON, GPU, WITH_INDEX, Query, max_by
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
            "Without a bound for memory or for client slots, it is unknown. The other two may be absent.",
            (_LEAST, *(f'max by ({GPU}) ({_FIT}{{gpus, bound="{bound}"}})' for bound in Bound)),
            {
                "instance": Column("Node", link=to_node()),
                "gpu": "GPU",
                "Value #A": Column("More clients", looks.COUNT),
                "Value #B": Column("by memory", looks.COUNT),
                "Value #C": Column("by SM time", looks.COUNT),
                "Value #D": Column("by client slots", looks.COUNT),
                "Value #E": Column("by contention", looks.COUNT),
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

_ALLOCATABLE, _ALLOCATED = "cuda_mps_gpu_allocatable_shares", "cuda_mps_gpu_allocated_shares"
_UNUSED = "cuda_mps_gpu_unused_shares"
_CLIENTS = f"count by ({GPU}) (cuda_mps_client_memory_used_bytes{{gpus}})"
_MEMORY_USED = "cuda_mps_gpu_memory_used_bytes{gpus} / cuda_mps_gpu_memory_total_bytes{gpus}"

SHARES = Row(
    "Sharing in Kubernetes",
    (
        table(
            "Shares by GPU",
            "Shares that the kubelet can allocate and has allocated, and how many of these belong to pods without a "
            "CUDA context; beside them, what is used of the GPU. Best replicas: the clients with memory, and those "
            "that still fit by the smallest bound.",
            (
                *(f"sum by ({GPU}) ({family}{{gpus}})" for family in (_ALLOCATABLE, _ALLOCATED, _UNUSED)),
                f"max by ({GPU}) (cuda_mps_gpu_sm_utilization_ratio{{gpus}})",
                f"max by ({GPU}) ({_MEMORY_USED})",
                f"{_CLIENTS} + on ({GPU}) ({_LEAST})",
            ),
            {
                "instance": Column("Node", link=to_node()),
                "gpu": "GPU",
                "Value #A": Column("Allocatable", looks.COUNT),
                "Value #B": Column("Allocated", looks.COUNT),
                "Value #C": Column("Unused", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
                "Value #D": Column("SMs busy", looks.RATIO),
                "Value #E": Column("Memory", looks.RATIO),
                "Value #F": Column("Best replicas", looks.COUNT),
            },
            sort=("Unused", True),
            width=14,
        ),
        table(
            "Shares by container",
            "Shares of each GPU that the kubelet has allocated to a container. Kubelets before 1.34 also list pods "
            "that have ended.",
            f"sum by ({GPU}, resource, client_namespace, client_pod, client_container_name) "
            "(cuda_mps_container_allocated_shares{gpus})",
            {
                "instance": Column("Node", link=to_node()),
                "gpu": "GPU",
                "resource": "Resource",
                "client_namespace": "Namespace",
                "client_pod": "Pod",
                "client_container_name": "Container",
                "Value": Column("Shares", looks.COUNT),
            },
            sort=("Shares", True),
            width=10,
        ),
        lines(
            "Shares over time",
            "Shares of each GPU: allocated, and those of pods without a CUDA context. Dashed: allocatable.",
            Query(f"sum by ({GPU}) ({_ALLOCATED}{{gpus}}) {WITH_INDEX}", f"allocated {_EACH}"),
            Query(f"sum by ({GPU}) ({_UNUSED}{{gpus}}) {WITH_INDEX}", f"unused {_EACH}"),
            Query(f"sum by ({GPU}) ({_ALLOCATABLE}{{gpus}}) {WITH_INDEX}", f"allocatable {_EACH}"),
            limit="allocatable",
            width=14,
        ),
        table(
            "Resource claims",
            "Daemons that NVIDIA's DRA driver runs, and the resource claim of each.",
            max_by("cuda_mps_daemon_claim_info", f"{DAEMON}, claim_namespace, claim_name, claim_uid", of="node"),
            {
                "instance": Column("Node", link=to_node()),
                "claim_namespace": "Namespace",
                "claim_name": "Claim",
                "claim_uid": "UID",
                "daemon": "Daemon",
            },
            sort=("Claim", False),
            width=10,
        ),
    ),
)
