"""Faults as objects, for programs."""

from typing import Any

from exporter.model.incident import Incident


def incident_object(incident: Incident) -> dict[str, Any]:
    """One incident. Times are seconds since the epoch."""
    return {
        "id": incident.id,
        "daemon": incident.daemon,
        "server": incident.server,
        "open": incident.open,
        "kind": incident.kind,
        "gpus": list(incident.gpus),
        "started_at": incident.started_at,
        "ended_at": incident.ended_at,
        "affected": list(incident.affected),
        "suspects": [{"pid": each.tenant.pid, "confidence": each.confidence} for each in incident.suspects],
        "blocking": {str(pid): {"since": stay.since, "until": stay.until} for pid, stay in incident.blocking.items()},
        "refused": [each.pid for each in incident.refused],
    }
