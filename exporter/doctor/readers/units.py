"""Reads how systemd units are confined."""

from collections.abc import Iterable, Mapping

from exporter.doctor.facts import UnitFacts
from exporter.model.problem import Problem
from exporter.parse.systemd import is_service_name
from exporter.sources.systemctl import Systemctl

_PROPERTIES = ("Id", "LoadState", "PrivateTmp")
_MOST_UNITS = 64
_NO = ("", "no")


def read_units(names: Iterable[str], systemctl: Systemctl) -> tuple[Mapping[str, UnitFacts] | None, Problem | None]:
    """Those of these services that are loaded, and the problem that kept them from being shown.

    Where systemd does not run nobody tells; that is no problem.
    """
    wanted = [name for name in dict.fromkeys(names) if is_service_name(name)][:_MOST_UNITS]
    shown = systemctl.show(_PROPERTIES, *wanted)
    if shown.text is None:
        return None, shown.problem
    blocks = shown.text.split("\n\n")
    values = [dict(line.split("=", 1) for line in block.split("\n") if "=" in line) for block in blocks]
    loaded = (each for each in values if each.get("LoadState") == "loaded" and "Id" in each)
    # From systemd 257 on there is `disconnected` beside `yes`.
    units = (UnitFacts(name=each["Id"], private_tmp=each.get("PrivateTmp", "") not in _NO) for each in loaded)
    return {unit.name: unit for unit in units}, None
