"""Use of the GPUs by workload and method, and what is unattributed."""

from dashboards import looks
from dashboards.board import Row
from dashboards.links import to_node
from dashboards.panel import Column, lines, stat, table
from dashboards.query import GPU, WITH_INDEX, Query, rate

HOUR, KILOWATT_HOUR, GIGABYTE_HOUR = 3600, 3.6e6, 3.6e12

OWNER = "workload_kind, workload"
_ENTRY = f"{OWNER}, method"
_NAMED = "{{workload_kind}} {{workload}} {{method}}"

_SM, _ENERGY = "cuda_mps_workload_sm_seconds_total", "cuda_mps_workload_energy_joules_total"
_MEMORY = "cuda_mps_workload_memory_byte_seconds_total"
_GPU_SM, _GPU_ENERGY = "cuda_mps_gpu_sm_seconds_total", "cuda_mps_gpu_accounted_energy_joules_total"


def _in_all(family: str, per: float | None = None, more: str = "") -> str:
    """Return the total use in the selected time range."""
    return _in_units(f"sum(increase({family}{{gpus{more}}}[$__range]))", per)


def by(labels: str, family: str, per: float | None = None) -> str:
    """Return the same by owner, GPU or entry."""
    return _in_units(f"sum by ({labels}) (increase({family}{{gpus}}[$__range]))", per)


def _in_units(expression: str, per: float | None) -> str:
    return expression if per is None else f"{expression} / {per:g}"


def _briefly(expression: str) -> str:
    """With containers by so much of their ids as one is used to."""
    return f'label_replace({expression}, "workload", "$1", "workload", "([0-9a-f]{{12}})[0-9a-f]{{52}}")'


def _unattributed(family: str, whole: str) -> str:
    """Return the unattributed fraction; 0 if there was no use at all."""
    nobodys = _in_all(family, more=', workload_kind="unattributed"')
    return f"({nobodys} or 0 * {_in_all(whole)}) / ({_in_all(whole)} > 0)"


WHOLE = Row(
    "In the selected time range",
    (
        stat(
            "SM-hours",
            "SM time of the chosen GPUs: all SMs of a GPU for one hour are 1. The GPUs measure it, independent of "
            "the workloads.",
            _in_all(_GPU_SM, HOUR),
            width=4,
        ),
        stat(
            "Energy",
            "Energy that the chosen GPUs used while they were monitored, from their own counters.",
            _in_all(_GPU_ENERGY, KILOWATT_HOUR),
            unit=looks.KILOWATT_HOURS,
            width=4,
        ),
        stat(
            "GB-hours",
            "GPU memory held, multiplied by the time; a gigabyte (10^9 bytes) for an hour is 1.",
            _in_all(_MEMORY, GIGABYTE_HOUR),
            width=4,
        ),
        stat(
            "SM time without a workload",
            "Fraction of the SM time that could not be attributed to a workload. Above 10 %, do not rely on the "
            "shares below.",
            _unattributed(_SM, _GPU_SM),
            unit=looks.RATIO,
            thresholds=looks.steps(looks.Colour.WELL, (0.1, looks.Colour.WARNING)),
            width=4,
        ),
        stat(
            "Energy without a workload",
            "Fraction of the energy that is not attributed to a workload: the GPUs were idle, or the workload is "
            "unknown.",
            _unattributed(_ENERGY, _GPU_ENERGY),
            unit=looks.RATIO,
            width=4,
        ),
        stat(
            "SMs busy",
            "Average fraction of the SMs of the chosen GPUs that were busy.",
            "avg(rate(cuda_mps_gpu_sm_seconds_total{gpus}[$__range]))",
            unit=looks.RATIO,
            width=4,
        ),
    ),
)

OWNERS = Row(
    "Use by workload",
    (
        table(
            "SM time and energy by workload",
            "Use of each workload in the selected time range, by method (measured; flight: by time in flight). "
            "Part: of all SM time. No method: unattributed, or used by the MPS server itself. "
            "Energy is divided in proportion to SM time.",
            (
                by(_ENTRY, _SM, HOUR),
                f"{by(_ENTRY, _SM)} / on () group_left () ({_in_all(_GPU_SM)} > 0)",
                by(_ENTRY, _ENERGY, KILOWATT_HOUR),
            ),
            {
                "workload_kind": "Kind",
                "workload": "Workload",
                "method": "Method",
                "Value #A": Column("SM-hours", looks.COUNT),
                "Value #B": Column("Part", looks.RATIO),
                "Value #C": Column("Energy", looks.KILOWATT_HOURS),
            },
            sort=("SM-hours", True),
            width=14,
            height=10,
        ),
        table(
            "Memory by workload",
            "GPU memory of each workload in the selected time range, multiplied by the time. It is measured.",
            by(OWNER, _MEMORY, GIGABYTE_HOUR),
            {"workload_kind": "Kind", "workload": "Workload", "Value": Column("GB-hours", looks.COUNT)},
            sort=("GB-hours", True),
            width=10,
            height=10,
        ),
    ),
)

OVER_TIME = Row(
    "Over time",
    (
        lines(
            "SM time by workload",
            "How many GPUs' SMs each workload used, by method, stacked. Dashed: the total that the GPUs measured, "
            "which is exactly the sum. Methods are never mixed.",
            Query(_briefly(rate(_SM, _ENTRY, of="gpus")), _NAMED),
            Query(f"sum(rate({_GPU_SM}{{gpus}}[$__rate_interval]))", "GPU total"),
            stacked=True,
            limit="GPU total",
            height=10,
        ),
        lines(
            "Power by workload",
            "Power attributed to each workload, in proportion to SM time, stacked. Dashed: power of the GPUs. The "
            "power of idle GPUs is unattributed.",
            Query(_briefly(rate(_ENERGY, _ENTRY, of="gpus")), _NAMED),
            Query(f"sum(rate({_GPU_ENERGY}{{gpus}}[$__rate_interval]))", "GPU total"),
            unit=looks.WATTS,
            stacked=True,
            limit="GPU total",
            height=10,
        ),
        lines(
            "Memory by workload over time",
            "Average GPU memory of each workload, stacked.",
            Query(_briefly(rate(_MEMORY, OWNER, of="gpus")), "{{workload_kind}} {{workload}}"),
            unit=looks.BYTES,
            stacked=True,
            width=8,
        ),
        lines(
            "SM time by method",
            "Method by which SM time was attributed; unattributed SM time is separate.",
            Query(f'sum by (method) (rate({_SM}{{gpus, method!=""}}[$__rate_interval]))', "{{method}}"),
            Query(
                f'sum by (workload_kind) (rate({_SM}{{gpus, method=""}}[$__rate_interval]))', "none: {{workload_kind}}"
            ),
            stacked=True,
            width=8,
        ),
        lines(
            "Unattributed SM time",
            "Fraction of each GPU's SM capacity used in the last minute that could not be attributed to a client.",
            Query(f"cuda_mps_gpu_sm_unattributed_ratio{{gpus}} {WITH_INDEX}", "GPU {{index}} {{instance}}"),
            unit=looks.RATIO,
            width=8,
        ),
        table(
            "Totals of each GPU",
            "Totals of each GPU in the selected time range. Ended: use of workloads whose series ended in that "
            "time. It was reported before, and is not lost.",
            (
                by(GPU, _GPU_SM, HOUR),
                by(GPU, "cuda_mps_gpu_closed_sm_seconds_total", HOUR),
                by(GPU, _GPU_ENERGY, KILOWATT_HOUR),
                by(GPU, "cuda_mps_gpu_closed_energy_joules_total", KILOWATT_HOUR),
            ),
            {
                "instance": Column("Node", links=to_node()),
                "gpu": "GPU",
                "Value #A": Column("SM-hours", looks.COUNT),
                "Value #B": Column("SM-hours ended", looks.COUNT),
                "Value #C": Column("Energy", looks.KILOWATT_HOURS),
                "Value #D": Column("Energy ended", looks.KILOWATT_HOURS),
            },
            sort=("SM-hours", True),
            height=7,
        ),
    ),
)
