"""docs/METRICS.md, from the catalogue: `python -m exporter.metrics.reference > docs/METRICS.md`."""

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

from exporter.metrics import catalogue
from exporter.metrics.family import Family

_ABOUT = """\
<!-- Written by `python -m exporter.metrics.reference > docs/METRICS.md`. Edit the families' help instead. -->
# Metrics

Every family there is, beside the `process_…` ones of the exporter's own process. One that has nothing to tell is not
there; what could not be read is absent, and never 0.
"""


def reference() -> str:
    """The page."""
    return "\n".join([_ABOUT, *(line for module in _modules() for line in _section(module))])


def _modules() -> list[ModuleType]:
    """The modules that the catalogue is made of, in its order."""
    modules = [each for each in vars(catalogue).values() if isinstance(each, ModuleType) and hasattr(each, "FAMILIES")]
    return sorted(modules, key=lambda module: catalogue.CATALOGUE.index(module.FAMILIES[0]))


def _section(module: ModuleType) -> Iterator[str]:
    subject = (module.__doc__ or "").partition(".")[0].removeprefix("Families about ")
    yield f"## {subject[:1].upper()}{subject[1:]}\n"
    yield from _table(module.FAMILIES)
    yield ""


def _table(families: Iterable[Family]) -> Iterator[str]:
    yield "| family | type | labels | meaning |"
    yield "|---|---|---|---|"
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}` | {family.kind(family.name, family.help).type} | {labels} | {family.help} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
