"""The accounts of owners: what each has used of the GPUs, by method, and what is nobody's."""

from dashboards import looks
from dashboards.board import Row
from dashboards.panel import Column, lines, stat, table
from dashboards.query import GPU, WITH_INDEX, Query

HOUR, KILOWATT_HOUR, GIGABYTE_HOUR = 3600, 3.6e6, 3.6e12

_OWNER = "workload_kind, workload"
_ENTRY = f"{_OWNER}, method"
_NAMED = "{{workload_kind}} {{workload}} {{method}}"

_SM, _ENERGY = "cuda_mps_workload_sm_seconds_total", "cuda_mps_workload_energy_joules_total"
_MEMORY = "cuda_mps_workload_memory_byte_seconds_total"
_GPU_SM, _GPU_ENERGY = "cuda_mps_gpu_sm_seconds_total", "cuda_mps_gpu_accounted_energy_joules_total"


def _in_all(family: str, per: float | None = None, more: str = "") -> str:
    """What was used in the time shown, by everybody."""
    return _in_units(f"sum(increase({family}{{gpus{more}}}[$__range]))", per)


def _by(labels: str, family: str, per: float | None = None) -> str:
    """The same by owner, GPU or entry."""
    return _in_units(f"sum by ({labels}) (increase({family}{{gpus}}[$__range]))", per)


def _in_units(expression: str, per: float | None) -> str:
    return expression if per is None else f"{expression} / {per:g}"


def _briefly(expression: str) -> str:
    """With containers by so much of their ids as one is used to."""
    return f'label_replace({expression}, "workload", "$1", "workload", "([0-9a-f]{{12}})[0-9a-f]{{52}}")'


def _unattributed(family: str, whole: str) -> str:
    """The part of it that is nobody's; 0 where there was no such time at all."""
    nobodys = _in_all(family, more=', workload_kind="unattributed"')
    return f"({nobodys} or 0 * {_in_all(whole)}) / ({_in_all(whole)} > 0)"


WHOLE = Row(
    "In the time shown",
    (
        stat(
            "SM-hours",
            "SM time of the chosen GPUs: an hour of all the SMs of a GPU is 1. It is what the GPUs told, whoever used "
            "them.",
            Query(_in_all(_GPU_SM, HOUR), instant=True),
            width=4,
        ),
        stat(
            "Energy",
            "What the chosen GPUs drew while they were watched, by their own meters.",
            Query(_in_all(_GPU_ENERGY, KILOWATT_HOUR), instant=True),
            unit=looks.KILOWATT_HOURS,
            width=4,
        ),
        stat(
            "GB-hours",
            "GPU memory held times how long; a gigabyte (10^9 bytes) for an hour is 1.",
            Query(_in_all(_MEMORY, GIGABYTE_HOUR), instant=True),
            width=4,
        ),
        stat(
            "SM time without an owner",
            "Part of the SM time of which it is not known whose it was. Above 10 %, the shares below are of too little "
            "to be trusted.",
            Query(_unattributed(_SM, _GPU_SM), instant=True),
            unit=looks.RATIO,
            thresholds=looks.steps(looks.Colour.WELL, (0.1, looks.Colour.WARNING)),
            width=4,
        ),
        stat(
            "Energy without an owner",
            "Part of the energy that no owner pays: what the GPUs drew while nobody ran, and while it is not known "
            "who did.",
            Query(_unattributed(_ENERGY, _GPU_ENERGY), instant=True),
            unit=looks.RATIO,
            width=4,
        ),
        stat(
            "SMs busy",
            "Part of the SMs of the chosen GPUs that were busy, on the average.",
            Query("avg(rate(cuda_mps_gpu_sm_seconds_total{gpus}[$__range]))", instant=True),
            unit=looks.RATIO,
            width=4,
        ),
    ),
)

OWNERS = Row(
    "Who used how much",
    (
        table(
            "SM time and energy by owner",
            "What each owner used in the time shown, by how that was found out (measured; flight: by time in flight; "
            "equal: a convention). Part: of all SM time. No method: nobody's work, or the MPS server's own. Energy is "
            "shared out in proportion to SM time.",
            (
                Query(_by(_ENTRY, _SM, HOUR), instant=True),
                Query(f"{_by(_ENTRY, _SM)} / on () group_left () ({_in_all(_GPU_SM)} > 0)", instant=True),
                Query(_by(_ENTRY, _ENERGY, KILOWATT_HOUR), instant=True),
            ),
            {
                "workload_kind": Column("Kind"),
                "workload": Column("Owner"),
                "method": Column("Method"),
                "Value #A": Column("SM-hours", looks.COUNT),
                "Value #B": Column("Part", looks.RATIO),
                "Value #C": Column("Energy", looks.KILOWATT_HOURS),
            },
            sort=("SM-hours", True),
            width=14,
            height=10,
        ),
        table(
            "Memory by owner",
            "GPU memory that each owner held in the time shown, times how long. This is read, and needs no method.",
            (Query(_by(_OWNER, _MEMORY, GIGABYTE_HOUR), instant=True),),
            {
                "workload_kind": Column("Kind"),
                "workload": Column("Owner"),
                "Value": Column("GB-hours", looks.COUNT),
            },
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
            "SM time by owner",
            "How many GPUs' SMs each owner kept busy, by method, upon one another; dashed, what the GPUs told: the sum "
            "is exactly that. A method is never mixed with another.",
            Query(_briefly(f"sum by ({_ENTRY}) (rate({_SM}{{gpus}}[$__rate_interval]))"), _NAMED),
            Query(f"sum(rate({_GPU_SM}{{gpus}}[$__rate_interval]))", "all of it"),
            stacked=True,
            limit="all of it",
            height=10,
        ),
        lines(
            "Power by owner",
            "What is put down to each owner, in proportion to SM time, upon one another; dashed, what the GPUs drew. "
            "While nobody runs, it is nobody's.",
            Query(_briefly(f"sum by ({_ENTRY}) (rate({_ENERGY}{{gpus}}[$__rate_interval]))"), _NAMED),
            Query(f"sum(rate({_GPU_ENERGY}{{gpus}}[$__rate_interval]))", "all of it"),
            unit=looks.WATTS,
            stacked=True,
            limit="all of it",
            height=10,
        ),
        lines(
            "Memory by owner over time",
            "GPU memory that each owner held, on the average, upon one another.",
            Query(
                _briefly(f"sum by ({_OWNER}) (rate({_MEMORY}{{gpus}}[$__rate_interval]))"),
                "{{workload_kind}} {{workload}}",
            ),
            unit=looks.BYTES,
            stacked=True,
            width=8,
        ),
        lines(
            "SM time by method",
            "How it was found out whose it was; what nobody is known to have used stands apart.",
            Query(f'sum by (method) (rate({_SM}{{gpus, method!=""}}[$__rate_interval]))', "{{method}}"),
            Query(
                f'sum by (workload_kind) (rate({_SM}{{gpus, method=""}}[$__rate_interval]))', "none: {{workload_kind}}"
            ),
            stacked=True,
            width=8,
        ),
        lines(
            "Nobody's SM time",
            "Part of each GPU's SMs that was busy in the last minute for nobody knows whom.",
            Query(f"cuda_mps_gpu_sm_unattributed_ratio{{gpus}} {WITH_INDEX}", "GPU {{index}} {{instance}}"),
            unit=looks.RATIO,
            width=8,
        ),
        table(
            "The books of each GPU",
            "What each GPU told in the time shown. Ended: of that, and of earlier, what owners had used whose series "
            "ended in that time. They were told of before, and are not lost.",
            (
                Query(_by(GPU, _GPU_SM, HOUR), instant=True),
                Query(_by(GPU, "cuda_mps_gpu_closed_sm_seconds_total", HOUR), instant=True),
                Query(_by(GPU, _GPU_ENERGY, KILOWATT_HOUR), instant=True),
                Query(_by(GPU, "cuda_mps_gpu_closed_energy_joules_total", KILOWATT_HOUR), instant=True),
            ),
            {
                "instance": Column("Node"),
                "gpu": Column("GPU"),
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
