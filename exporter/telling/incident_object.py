"""A fault as an object, for programs: all that is known of it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporter.model.incident import FaultKind, Incident, Suspect, Tenant
from exporter.model.xids import XidSighting
from exporter.parse.printable import printable
from exporter.parse.xid_catalogue import xid_meaning
from exporter.telling.moment import utc
from exporter.telling.reasons import reason_object
from exporter.telling.remedy import Address, command_to_end, command_to_end_server
from exporter.telling.verdict import likelihood, verdict
from exporter.telling.who import in_flight


def fitting(objects: Iterable[object], most_bytes: int) -> list[bytes]:
    """As many of the objects as fit, from the first on, each encoded; the first one in any case."""
    encoded: list[bytes] = []
    size = 0
    for each in objects:
        text = json.dumps(each, ensure_ascii=False).encode(errors="replace")
        size += len(text)
        if encoded and size > most_bytes:
            break
        encoded.append(text)
    return encoded


MOST_LISTED = 512
"""So many clients of a kind are listed; how many there are is told beside them."""


def incident_object(
    incident: Incident, *, now: float | None = None, address: Address | None = None, watched: bool = True
) -> dict[str, Any]:
    """One incident. `..._at`, `since` and `until` are seconds since the epoch, `started` and the like are in ISO 8601.

    Without `now`, the object lacks how long a client has held up recovery that still does. Without the daemon's
    `address`, it lacks how MPS itself ends the server. If PIDs are not `watched`, it has no command at all.
    """

    def commands(pid: int) -> Sequence[str]:
        return _list(command_to_end(pid) if watched else None)

    return {
        "id": printable(incident.id),
        "daemon": printable(incident.daemon),
        "server": incident.server,
        "state": "open" if incident.open else "ended",
        "ending": incident.ending,
        "settled": incident.settled,
        "kind": incident.kind,
        "gpus": [printable(gpu) for gpu in incident.gpus],
        "xids": [_xid(each) for each in incident.xids[:MOST_LISTED]],
        **_moment("started", incident.started_at),
        **_moment("detected", incident.detected_at),
        **_moment("ended", incident.ended_at),
        "seconds": None if incident.seconds is None else round(incident.seconds, 3),
        "affected": _affected(incident),
        "affected_count": len(incident.affected),
        "affected_confirmed": incident.affected_told,
        "verdict": verdict(incident),
        "hardware_fault": incident.kind is FaultKind.HARDWARE,
        "suspects": [_suspect(each) for each in incident.suspects[:MOST_LISTED]],
        "refused": [{"at": each.at, "pid": each.pid} for each in incident.refused[:MOST_LISTED]],
        "refused_count": incident.refused_count,
        "blocking": [_blocking(incident, pid, now, commands(pid)) for pid in list(incident.blocking)[:MOST_LISTED]],
        "blocking_count": len(incident.blockers),
        "stuck": incident.stuck,
        "end_server_command": _list(
            command_to_end_server(incident.server, address) if incident.stuck and watched else None
        ),
    }


def _list(command: str | None) -> list[str]:
    return [] if command is None else [command]


def _moment(name: str, at: float | None) -> Mapping[str, Any]:
    return {f"{name}_at": at, name: None if at is None else utc(at)}


def _xid(xid: XidSighting) -> Mapping[str, Any]:
    known = xid_meaning(xid.number)
    return {
        "xid": xid.number,
        "mnemonic": None if known is None else known.mnemonic,
        "meaning": None if known is None else known.meaning,
        "cause": None if known is None else known.kind,
        "advice": None if known is None else known.action,
        "gpu": _text(xid.gpu),
        "pid": xid.pid,
        "name": _text(xid.name),
        "at": xid.at,
    }


def _tenant_object(tenant: Tenant) -> dict[str, Any]:
    workload = tenant.workload
    return {
        "pid": tenant.pid,
        "client": _text(tenant.client or None),
        "uid": tenant.uid,
        "user": _text(tenant.user),
        "command": _text(tenant.command),
        "unit": _text(tenant.unit),
        "container": _text(tenant.container),
        "pod_uid": _text(tenant.pod_uid),
        "pod": _text(tenant.pod),
        "namespace": _text(tenant.namespace),
        "slurm_job_id": _text(tenant.slurm_job_id),
        "workload": None if workload is None else {"kind": workload.kind, "name": printable(workload.name)},
        "memory_used_bytes": {printable(gpu): used for gpu, used in tenant.memory_bytes.items()},
    }


def _affected(incident: Incident) -> list[Mapping[str, Any]]:
    flies = in_flight(incident)
    hit = incident.affected[:MOST_LISTED]
    return [{**_tenant_object(incident.tenant(pid)), "in_flight": flies.get(pid)} for pid in hit]


def _suspect(suspect: Suspect) -> Mapping[str, Any]:
    return {
        **_tenant_object(suspect.tenant),
        "confidence": suspect.confidence,
        "likelihood": likelihood(suspect.confidence),
        "indications": [reason_object(each) for each in suspect.indications],
    }


def _blocking(incident: Incident, pid: int, now: float | None, commands: Sequence[str]) -> Mapping[str, Any]:
    stay = incident.blocking[pid]
    end = now if stay.until is None else stay.until
    return {
        **_tenant_object(incident.tenant(pid)),
        "since": stay.since,
        "until": stay.until,
        "seconds": None if end is None else round(max(0.0, end - stay.since), 3),
        "kill_command": list(commands) if incident.open and stay.until is None else [],
    }


def _text(text: str | None) -> str | None:
    return None if text is None else printable(text)
