"""The node's GPUs: utilization, bandwidth and sharing."""

from collections.abc import Mapping

from dashboards import looks
from dashboards.board import Row
from dashboards.links import to_page
from dashboards.looks import Colour
from dashboards.panel import Column, Panel, lines, table, timeline
from dashboards.query import GPU, WITH_INDEX, Query, max_by, which
from exporter.model.node import SharingMode

SHARING_MODES: Mapping[str, Colour] = {
    SharingMode.IDLE: Colour.QUIET,
    SharingMode.EXCLUSIVE: Colour.NEWS,
    SharingMode.MPS: Colour.WELL,
    SharingMode.MIG: Colour.NEWS,
    SharingMode.TIME_SLICING: Colour.WARNING,
    SharingMode.MIXED: Colour.BAD,
}

_SHARING = which("cuda_mps_gpu_sharing_mode", "mode", SHARING_MODES, GPU, of="gpus")


def _of_each(title: str, description: str, family: str, unit: str, ceiling: float | None = None) -> Panel:
    return lines(
        title,
        description,
        Query(f"{family}{{gpus}} {WITH_INDEX}", "GPU {{index}} {{instance}}"),
        unit=unit,
        ceiling=ceiling,
        width=8,
    )


GPUS = Row(
    "GPUs",
    (
        timeline(
            "Sharing mode",
            "Mixed: a process bypasses MPS. Time slicing: several processes without MPS.",
            Query(f"({_SHARING}) {WITH_INDEX}", "GPU {{index}} {{instance}}"),
            looks.states(SHARING_MODES),
            width=8,
            height=8,
        ),
        _of_each(
            "SM utilization",
            "Fraction of the SMs that were busy between two readings (GPM); absent if the GPU does not report it.",
            "cuda_mps_gpu_sm_utilization_ratio",
            looks.RATIO,
            1,
        ),
        _of_each(
            "Memory bandwidth in use",
            "Fraction of the DRAM bandwidth that was used between two readings (GPM). A client that uses all of it "
            "slows down the others, independent of its share of threads.",
            "cuda_mps_gpu_dram_bandwidth_ratio",
            looks.RATIO,
            1,
        ),
        _of_each(
            "Memory in use",
            "Memory in use on each GPU. It is more than the sum of its clients.",
            "cuda_mps_gpu_memory_used_bytes",
            looks.BYTES,
        ),
        lines(
            "Power",
            "Power that each board draws, and the average power from its energy counter.",
            Query(f"cuda_mps_gpu_power_watts{{gpus}} {WITH_INDEX}", "GPU {{index}} {{instance}}"),
            Query(
                f"rate(cuda_mps_gpu_energy_joules_total{{gpus}}[$__rate_interval]) {WITH_INDEX}",
                "GPU {{index}} by its energy counter {{instance}}",
            ),
            unit=looks.WATTS,
            width=16,
        ),
        table(
            "GPUs",
            "Each GPU, whether NVML can read it, and its memory.",
            (max_by("cuda_mps_gpu_up", GPU, of="gpus"), max_by("cuda_mps_gpu_memory_total_bytes", GPU, of="gpus")),
            {
                "instance": Column("Node", links=to_page()),
                "gpu": "GPU",
                "Value #A": Column("Read", looks.NUMBER, mappings=looks.YES_IS_WELL),
                "Value #B": Column("Memory", looks.BYTES),
            },
            sort=("GPU", False),
            width=7,
            height=7,
        ),
        table(
            "Models and modes",
            "Index, model, address and compute mode of each GPU.",
            f"topk by ({GPU}) (1, cuda_mps_gpu_compute_mode{{gpus}} == 1) "
            f"* on ({GPU}) group_left (index, name, pci_bus_id) topk by ({GPU}) (1, cuda_mps_gpu_info{{node}})",
            {
                "instance": Column("Node", links=to_page()),
                "index": "Index",
                "gpu": "GPU",
                "name": "Model",
                "pci_bus_id": "Address",
                "mode": "Compute mode",
            },
            sort=("Index", False),
            width=11,
            height=7,
        ),
        table(
            "Driver",
            "Version of the driver, and the newest CUDA version that it supports.",
            "cuda_mps_driver_info{node}",
            {"instance": Column("Node", links=to_page()), "driver": "Driver", "cuda": "CUDA"},
            sort=("Node", False),
            width=6,
            height=7,
        ),
    ),
)
