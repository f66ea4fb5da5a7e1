"""stub"""

from dataclasses import replace

from exporter.model.incident import FaultKind, Incident


def judged(incident: Incident) -> Incident:
    kind = (
        FaultKind.MEMORY
        if incident.clues.named
        else FaultKind.EXECUTION
        if incident.affected_told
        else FaultKind.UNKNOWN
    )
    return replace(incident, kind=kind)
