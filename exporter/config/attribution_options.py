"""Attribution's part of the table of options: how a GPU's time is divided among its clients, and who pays for it."""

from exporter.config.kinds import boolean, member
from exporter.config.option import Option
from exporter.config.settings import Attribution
from exporter.model.settings import Accounting

ATTRIBUTION_OPTIONS = (
    Option(
        key="attribution.method",
        flag="--attribution",
        attribute="attribution",
        kind=member(Attribution),
        help="bpf counts every process's launches, by a program in the kernel on libcuda's entry points, and divides"
        " the GPUs' time by them; it needs CAP_BPF and CAP_PERFMON",
        commands=("serve", "record", "doctor"),
        reloadable=False,
    ),
    Option(
        key="attribution.equal",
        attribute="attribution_equal",
        kind=boolean(),
        help="give each connected client an equal part of its GPU's time where nothing better is known: a convention,"
        " not a measurement",
        commands=("serve", "replay"),
        reloadable=False,
    ),
    Option(
        key="accounting.by",
        attribute="accounting",
        kind=member(Accounting),
        help="who pays for a process: the most telling owner (workload), or its owner of one kind; where there is none"
        " of that kind, its user",
        commands=("serve",),
        reloadable=False,
    ),
)
