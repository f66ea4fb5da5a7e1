"""The node's GPUs: how busy they are, who starves whom, and how they are shared."""

from collections.abc import Mapping

from dashboards import looks
from dashboards.board import Row
from dashboards.looks import Colour
from dashboards.panel import Column, Panel, bars, lines, table, timeline
from dashboards.query import GPU, WITH_INDEX, Query, which
from exporter.model.gpu import SharingMode

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
            "How they are shared",
            "Mixed: somebody runs beside MPS. Time slicing: several processes without MPS.",
            Query(f"({_SHARING}) {WITH_INDEX}", "GPU {{index}} {{instance}}"),
            looks.states(SHARING_MODES),
            width=8,
            height=8,
        ),
        _of_each(
            "SMs that are busy",
            "Part of the SMs that were busy between two readings (GPM); absent where the GPU does not tell.",
            "cuda_mps_gpu_sm_utilization_ratio",
            looks.RATIO,
            1,
        ),
        _of_each(
            "Memory bandwidth in use",
            "Part of the DRAM's bandwidth that was used between two readings (GPM): a client that has all of it "
            "starves the others, whatever its share of threads.",
            "cuda_mps_gpu_dram_bandwidth_ratio",
            looks.RATIO,
            1,
        ),
        _of_each(
            "Memory in use",
            "Memory in use on each GPU; more than its clients' sum.",
            "cuda_mps_gpu_memory_used_bytes",
            looks.BYTES,
        ),
        _of_each("Temperature", "Of the GPU's die.", "cuda_mps_gpu_temperature_celsius", looks.CELSIUS),
        lines(
            "Power",
            "What each board draws; and, by its meter, what it has drawn on average.",
            Query(f"cuda_mps_gpu_power_watts{{gpus}} {WITH_INDEX}", "GPU {{index}} {{instance}}"),
            Query(
                f"rate(cuda_mps_gpu_energy_joules_total{{gpus}}[$__rate_interval]) {WITH_INDEX}",
                "GPU {{index}} by its meter {{instance}}",
            ),
            unit=looks.WATTS,
            width=8,
        ),
        bars(
            "Memory errors",
            "ECC errors, corrected and not: an uncorrected one ends who uses that memory.",
            Query(
                f"increase(cuda_mps_gpu_ecc_errors_total{{gpus}}[$__rate_interval]) {WITH_INDEX}",
                "{{type}} GPU {{index}} {{instance}}",
            ),
            width=12,
        ),
        lines(
            "What holds its clocks down",
            "Reasons for which a GPU's clocks are not as high as they could be. 1: it applies.",
            Query(
                f"(cuda_mps_gpu_clocks_event_reason{{gpus}} == 1) {WITH_INDEX}", "{{reason}} GPU {{index}} {{instance}}"
            ),
            width=12,
        ),
        table(
            "GPUs",
            "What each GPU is, whether NVML can read it, and its modes. With MIG on, MPS is by instance.",
            (
                Query(f"max by ({GPU}) (cuda_mps_gpu_up{{gpus}})", instant=True),
                Query(f"max by ({GPU}) (cuda_mps_gpu_mig_mode{{gpus}})", instant=True),
                Query(f"max by ({GPU}) (cuda_mps_gpu_persistence_mode{{gpus}})", instant=True),
                Query(f"max by ({GPU}) (cuda_mps_gpu_memory_total_bytes{{gpus}})", instant=True),
            ),
            {
                "instance": Column("Node"),
                "gpu": Column("GPU"),
                "Value #A": Column("Read", looks.NUMBER, mappings=looks.YES_IS_WELL),
                "Value #B": Column("MIG", looks.NUMBER, mappings=looks.YES_OR_NO),
                "Value #C": Column("Persistence", looks.NUMBER, mappings=looks.YES_OR_NO),
                "Value #D": Column("Memory", looks.BYTES),
            },
            sort=("GPU", False),
            width=12,
            height=7,
        ),
        table(
            "Models and modes",
            "Index, model and address of each GPU, and who may use it.",
            (
                Query(
                    f"topk by ({GPU}) (1, cuda_mps_gpu_compute_mode{{gpus}} == 1) "
                    f"* on ({GPU}) group_left (index, name, pci_bus_id) topk by ({GPU}) (1, cuda_mps_gpu_info{{node}})",
                    instant=True,
                ),
            ),
            {
                "instance": Column("Node"),
                "index": Column("Index"),
                "gpu": Column("GPU"),
                "name": Column("Model"),
                "pci_bus_id": Column("Address"),
                "mode": Column("Compute mode"),
            },
            sort=("Index", False),
            width=12,
            height=7,
        ),
        table(
            "What they can tell",
            "Whether a GPU in its present mode, with this driver, gives each reading; one that it does not give is "
            "absent above, and not 0.",
            (Query(f"max by ({GPU}, reading) (cuda_mps_gpu_reading_supported{{gpus}})", instant=True),),
            {
                "instance": Column("Node"),
                "gpu": Column("GPU"),
                "reading": Column("Reading"),
                "Value": Column("Given", looks.NUMBER, mappings=looks.YES_OR_NO),
            },
            sort=("Given", False),
            width=12,
            height=7,
        ),
        table(
            "Driver",
            "The driver's version, and the newest CUDA that it serves.",
            (Query("cuda_mps_driver_info{node}", instant=True),),
            {"instance": Column("Node"), "driver": Column("Driver"), "cuda": Column("CUDA")},
            sort=("Node", False),
            width=12,
            height=7,
        ),
    ),
)
