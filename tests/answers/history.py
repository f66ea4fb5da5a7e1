"""A month of recorded series, whose answers are known: two clusters, applications and a Slurm job."""

from collections.abc import Iterator, Mapping
from pathlib import Path

MONTH, END, DAYS = "2026-10", 1_793_491_200, 2
"""October 2026 and its end in UTC. The series are recorded for its last days."""

_WEB = {"team": "search", "client_namespace": "web", "workload_kind": "pod", "application": "ranker"}
_TRAIN = {"client_namespace": "=ml|x", "workload_kind": "pod", "application": "trainer", "user": "svc_ml"}
_IDLE = {"workload_kind": "unit", "application": "idle.service"}
_UNUSED = {"team": "lab", "client_namespace": "lab", "workload_kind": "pod", "application": "notebook", "user": "eve"}
_JOB = {"workload_kind": "job", "application": "4711", "user": "ann"}
_NODE = {"job": "cuda-mps-exporter", "instance": "n1:10677"}

_A: Mapping[str, str] = {"cluster": "a"}
_B: Mapping[str, str] = {"cluster": "b"}

SERIES: Mapping[str, list[tuple[Mapping[str, str], float]]] = {
    "application:cuda_mps_sm_seconds:increase10m": [(_A | _WEB, 150), (_A | _TRAIN, 75), (_B | _JOB, 300)],
    "application:cuda_mps_memory_byte_seconds:increase10m": [(_A | _WEB, 600 * 8e9)],
    "application:cuda_mps_energy_joules:increase10m": [(_A | _WEB, 600 * 100)],
    "application:cuda_mps_client_seconds:increase10m": [(_A | _WEB, 1200), (_A | _TRAIN, 100), (_A | _IDLE, 600)],
    "application:cuda_mps_requested_sm_seconds:increase10m": [(_A | _WEB, 1200), (_A | _UNUSED, 300)],
    "application:cuda_mps_client_sm_ratio:avg10m": [(_A | _WEB, 0.13), (_A | _TRAIN, 0.9), (_A | _IDLE, 0)],
    "application:cuda_mps_client_memory_bytes:avg10m": [(_A | _WEB, 10 * 2**30), (_A | _TRAIN, 2**30), (_A | _IDLE, 0)],
    "application:cuda_mps_faults_caused:increase10m": [(_A | _TRAIN, 1 / 144)],
    "application:cuda_mps_faults_suffered:increase10m": [(_A | _WEB, 1 / 144)],
    "application:cuda_mps_faulted_clients:increase10m": [
        (
            _A | _WEB | {"suspect_namespace": "=ml|x", "suspect_application": "trainer", "confidence": "high"},
            3 / 144,
        )
    ],
    "instance:cuda_mps_sm_seconds:increase10m": [(_A | _NODE, 225), (_B | _NODE, 300)],
    "instance:cuda_mps_gpu_seconds:increase10m": [(_A | _NODE, 600), (_B | _NODE, 1200)],
    "instance:cuda_mps_client_minutes:increase10m": [
        (_A | _NODE | {"outcome": "served"}, 999),
        (_A | _NODE | {"outcome": "refused"}, 1),
        (_B | _NODE | {"outcome": "served"}, 10),
        (_B | _NODE | {"outcome": "faulted"}, 20),
    ],
    "cluster:cuda_mps_client_minutes:increase10m": [(_A | {"outcome": "served"}, 10)],
    "namespace:cuda_mps_requested_shares:sum": [
        (_A | {"client_namespace": "web", "resource": "nvidia_com_gpu", "clients": "some"}, 2),
        (_A | {"client_namespace": "web", "resource": "nvidia_com_gpu", "clients": "unknown"}, 1),
        (_A | {"client_namespace": "idle", "resource": "nvidia_com_gpu", "clients": "none"}, 1),
    ],
    "cluster:cuda_mps_gpu_hour_price:value": [(_A, 2), (_B, 1)],
    "cluster:cuda_mps_gpu_memory_bytes:min": [(_A, 80 * 2**30)],
    "instance:cuda_mps_problem_severity:max": [(_A | _NODE, 2), (_B | _NODE, 0)],
    "instance:cuda_mps_clients_fit:sum": [(_A | _NODE, 7)],
    "instance:cuda_mps_clients:sum": [(_A | _NODE, 12)],
}
"""The value of each series, the same at each evaluation."""


def openmetrics() -> Iterator[str]:
    """Yield the samples as lines of OpenMetrics."""
    for name, series in SERIES.items():
        step = 300 if name.startswith("instance:cuda_mps_problem") else 600
        for labels, value in series:
            text = ",".join(f'{label}="{text}"' for label, text in labels.items())
            for at in range(END - 86_400 * DAYS + step, END + 1, step):
                yield f"{name}{{{text}}} {value!r} {at}\n"
    yield "# EOF\n"


def write(file: Path) -> None:
    """Write all samples with their times."""
    file.write_text("".join(openmetrics()))
