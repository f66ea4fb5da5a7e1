"""What `incidents` tells, whoever is asked: the running service, or what it has kept."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from exporter.model.incident import Incident
from exporter.parse.printable import printable
from exporter.plain import plain
from exporter.telling.incident_object import fitting, incident_object
from exporter.telling.incident_table import table
from exporter.telling.incident_text import details
from exporter.telling.line import Lines
from exporter.telling.remedy import AddressOf
from exporter.telling.wanted import Wanted

MOST_BYTES = 1 << 24
"""Of JSON; an incident with many clients has some 100 KB."""


def told(
    incidents: Iterable[Incident],
    wanted: Wanted,
    *,
    as_json: bool,
    now: float,
    address_of: AddressOf,
    watched: bool = True,
    width: int | None = None,
) -> Mapping[str, Any]:
    """The text or, for a person, lines, and the exit code: 1 where one that is shown is open: its server is in FAULT.

    `width` is that of the terminal that the lines are for, None where they go elsewhere. What was kept by a service
    that runs no more was not `watched` since: a PID may be anybody's by now.
    """
    shown = wanted.of(incidents)
    if wanted.id is not None and not shown:
        return {"problem": f"no incident {printable(wanted.id)} is remembered; `incidents` lists those that are"}
    objects = (incident_object(each, now=now, address=address_of(each.daemon), watched=watched) for each in shown)
    exit_code = int(any(each.open for each in shown))
    if not as_json:
        lines = (
            table(shown, now, width)
            if wanted.id is None
            else details(shown[0], now, address_of(shown[0].daemon), watched=watched)
        )
        return {"page": plain(Lines(tuple(lines))), "exit_code": exit_code}
    if wanted.id is None:
        text = "[{}]\n".format(",\n".join(each.decode() for each in fitting(objects, MOST_BYTES)))
    else:
        text = json.dumps(next(objects), indent=2) + "\n"
    return {"text": text, "exit_code": exit_code}
