"""METRICS.md, from the catalogue."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from exporter.metrics.catalogue import GROUPS
from exporter.metrics.family import Family, Group

_INTRODUCTION = """\
<!-- Written by `python -m docs`. Edit the families' help instead. -->
# Metrics

This page lists all families except `process_…` of the exporter itself. Names of counters end in `_total`. The others
are gauges, except one histogram. Values that are unknown or could not be read are absent, never 0. Families whose names
end in `_info` are always 1. Of the values of `state`, `mode` or `diagnosis`, exactly one is 1.
"""

_IN_INTRODUCTION = re.compile(r" Absent if unknown\.|[,;] always 1|; exactly one (state|mode|diagnosis) is 1")


def metrics_page() -> str:
    """Return METRICS.md."""
    return "\n".join([_INTRODUCTION, *(line for group in GROUPS for line in _section(group))])


def _section(group: Group) -> Iterator[str]:
    yield f"## {group.title}\n"
    common = [label for label in group.families[0].labels if all(label in each.labels for each in group.families)]
    if common:
        yield f"All have the label{'s' * (len(common) > 1)} {_code(common)}.\n"
    yield f"| family | {'other ' * bool(common)}labels | meaning |"
    yield "|---|---|---|"
    for family in group.families:
        meaning = _IN_INTRODUCTION.sub("", family.help)
        yield f"| `{family.name}` | {_code(label for label in family.labels if label not in common)} | {meaning} |"
    yield from ("", *_choices(group.families))
    yield f"{group.purpose[0].upper()}{group.purpose[1:]}:\n\n```promql\n{group.query}\n```\n"


def _choices(families: Iterable[Family]) -> Iterator[str]:
    """List all values of labels. Families are named if a label has other values in another family."""
    found: defaultdict[str, defaultdict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for family in families:
        for label, values in family.choices.items():
            found[label][values].append(family.name)
    for label, sets in found.items():
        for values, names in sets.items():
            yield f"- `{label}`{f' of {_code(names)}' if len(sets) > 1 else ''}: {_code(values)}"
    if found:
        yield ""


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" if name else "empty" for name in names)
