"""Status and incidents as JSON objects."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporter.model.gpu import IncidentXid
from exporter.model.incident import ClientDetails, FaultKind, Incident, Suspect
from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.model.server import Client
from exporter.model.settings import Mode
from exporter.model.usage import Share
from exporter.model.watchdog import Diagnosis, LastAction, OngoingAction, Quarantine, WatchdogState
from exporter.parse.printable import printable
from exporter.parse.xid_catalogue import xid_meaning
from exporter.report.finding import Finding
from exporter.report.identity import in_flight
from exporter.report.incident_filter import IncidentFilter
from exporter.report.incident_text import details, likelihood, table, verdict
from exporter.report.problem_text import problem_object, problem_text
from exporter.report.reasons import reason_object
from exporter.report.remedy import Address, AddressOf, address_of, command_to_end_server, command_to_kill
from exporter.report.status_view import ClientView, DaemonView, GpuView, ServerView, StatusView
from exporter.report.text import Lines, utc_time
from exporter.serialization import plain
from exporter.state.failure_domains import FailureDomain
from exporter.state.gpus import NVML
from exporter.state.processes import belonging_of, pod_of, workload_of
from exporter.state.transition import client_id
from exporter.usage.capacity import BandwidthContention, ClientUsage, GpuSharing


def watchdog_object(watch: WatchdogState | None, mode: Mode | None) -> dict[str, Any] | None:
    """Return the object; None if the watchdog does not watch the daemon. Times are seconds since the epoch."""
    if watch is None:
        return None
    return {
        "mode": mode,
        "state": watch.phase,
        "diagnosis": _diagnosis(watch.diagnosis),
        "acting": _acting(watch.acting),
        "restarts": list(watch.restarts),
        "failures": watch.failures,
        "last_restart_at": watch.last_restart_at,
        "not_before": watch.not_before,
        "circuit_opened_at": watch.circuit_opened_at,
        "state_lost_at": watch.state_lost_at,
        "quarantine": _quarantine(watch.quarantine),
        "stopped_at": watch.stopped_at,
        "counts": [
            {"action": each.kind, "reason": each.reason, "result": each.result, "count": each.count}
            for each in watch.action_counts
        ],
        "reason": None if watch.reason is None else reason_object(watch.reason),
        "last_action": _last_action(watch.last_action),
        "problem": None if watch.problem is None else reason_object(watch.problem),
    }


def _diagnosis(found: Diagnosis | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "condition": found.condition,
        "since": found.since,
        "indications": [reason_object(each) for each in found.indications],
        "culprit": None if found.process is None else found.process.pid,
        "server": found.server,
        "incident": found.incident,
    }


def _last_action(action: LastAction | None) -> dict[str, Any] | None:
    return None if action is None else {"action": action.kind, "reason": action.reason, "begun": action.begun}


def _acting(acting: OngoingAction | None) -> dict[str, Any] | None:
    if acting is None:
        return None
    return {
        "action": acting.kind,
        "reason": acting.reason,
        "began_at": acting.began_at,
        "done_at": acting.done_at,
    }


def _quarantine(quarantine: Quarantine | None) -> dict[str, Any] | None:
    if quarantine is None:
        return None
    return {
        "at": quarantine.at,
        "xid": quarantine.xid,
        "gpu": printable(quarantine.gpu),
        "action": printable(quarantine.action),
    }


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
        return _list(command_to_kill(pid) if watched else None)

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
        "affected_confirmed": incident.affected_confirmed,
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
    return {f"{name}_at": at, name: None if at is None else utc_time(at)}


def _xid(xid: IncidentXid) -> Mapping[str, Any]:
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


def _tenant_object(client: ClientDetails) -> dict[str, Any]:
    workload = client.workload
    return {
        "pid": client.pid,
        "client": _text(client.client or None),
        "uid": client.uid,
        "user": _text(client.user),
        "command": _text(client.command),
        "unit": _text(client.unit),
        "container": _text(client.container),
        "pod_uid": _text(client.pod_uid),
        "pod": _text(client.pod),
        "namespace": _text(client.namespace),
        "slurm_job_id": _text(client.slurm_job_id),
        "workload": None if workload is None else {"kind": workload.kind, "name": printable(workload.name)},
        "memory_used_bytes": {printable(gpu): used for gpu, used in client.memory_bytes.items()},
    }


def _affected(incident: Incident) -> list[Mapping[str, Any]]:
    flies = in_flight(incident)
    hit = incident.affected[:MOST_LISTED]
    return [{**_tenant_object(incident.details_of(pid)), "in_flight": flies.get(pid)} for pid in hit]


def _suspect(suspect: Suspect) -> Mapping[str, Any]:
    return {
        **_tenant_object(suspect.client),
        "confidence": suspect.confidence,
        "likelihood": likelihood(suspect.confidence),
        "indications": [reason_object(each) for each in suspect.indications],
    }


def _blocking(incident: Incident, pid: int, now: float | None, commands: Sequence[str]) -> Mapping[str, Any]:
    stay = incident.blocking[pid]
    end = now if stay.until is None else stay.until
    return {
        **_tenant_object(incident.details_of(pid)),
        "since": stay.since,
        "until": stay.until,
        "seconds": None if end is None else round(max(0.0, end - stay.since), 3),
        "kill_command": list(commands) if incident.open and stay.until is None else [],
    }


def _text(text: str | None) -> str | None:
    return None if text is None else printable(text)


def sharing_object(node: Node, found: GpuSharing | None) -> dict[str, Any] | None:
    """All that is known; null where the GPU has no MPS clients. Parts of the whole are 0 to 1."""
    if found is None:
        return None
    return {
        "seconds": found.recent.seconds,
        "sm_utilization_ratio": found.recent.sm,
        "dram_bandwidth_ratio": found.recent.dram,
        "clients_sm_ratio": found.sm_used,
        "clients_sm_error_ratio": None if found.sm_used is None else found.sm_error,
        "unattributed_ratio": found.recent.unattributed if found.recent.shares else None,
        "gone_ratio": found.departed_sm if found.recent.shares else None,
        "methods": list(found.methods),
        "clients_memory_bytes": found.memory_held,
        "memory_total_bytes": found.memory_total_bytes,
        "threads_committed_ratio": found.threads_committed,
        "memory_committed_ratio": found.memory_committed,
        "fit": {"clients": found.headroom.fits, "bound": found.headroom.binding, "by": dict(found.headroom.by_bound)},
        "idle": [each.client.pid for each in found.idle],
        "at_limit": [each.client.pid for each in found.at_limit],
        "bandwidth": _starving_object(found.contention),
        "beside": [{"pid": pid, **_share_object(share)} for pid, share in found.bypassing.items()],
        "clients": [_holding_object(node, each) for each in found.clients],
    }


def _starving_object(found: BandwidthContention | None) -> dict[str, Any] | None:
    """Null where the bandwidth is not used up; without a PID where nobody stands out."""
    return None if found is None else {"used_ratio": found.dram, "largest_user_of_sm_time": found.pid}


def _holding_object(node: Node, holding: ClientUsage) -> dict[str, Any]:
    process = node.processes.get(holding.client.pid)
    workload = workload_of(process)
    return {
        "client": client_id(holding.client, process),
        "daemon": holding.daemon,
        "server": holding.client.server,
        "pid": holding.client.pid,
        "workload": None if workload is None else {"kind": workload.kind, "name": workload.name},
        "active_thread_ratio": holding.threads,
        "memory_limit_bytes": holding.memory_limit,
        "memory_used_bytes": holding.memory,
        **_share_object(holding.share),
        "watched": holding.watched,
        "connected_at": holding.client.connected_at,
    }


def _share_object(share: Share | None) -> dict[str, Any]:
    if share is None:
        return {"sm_ratio": None, "sm_error_ratio": None, "method": None}
    return {"sm_ratio": share.sm, "sm_error_ratio": share.error, "method": share.method}


def node_object(view: StatusView) -> dict[str, Any]:
    """Return all that is known. Times are seconds since the epoch."""
    node = view.node
    return {
        "at": node.at,
        "findings": [_finding_object(each) for each in view.findings],
        "daemons": [_daemon_object(node, each) for each in view.daemons],
        "gpus": [_gpu_object(node, each) for each in view.gpus],
        "incidents": [
            incident_object(each, now=node.at, address=address_of(node, each.daemon, view.policy))
            for each in view.incidents
        ],
        "sources": {each.name: {"problem": problem_object(each.problem, each.text)} for each in view.collectors},
    }


def _finding_object(found: Finding) -> dict[str, Any]:
    """Return a problem and what to do about it; `fails` says that `status` exits with code 1."""
    return {
        "code": found.code,
        "severity": found.severity,
        "daemon": found.daemon,
        "server": found.server,
        "gpu": found.gpu,
        "client": found.client,
        "since": found.since,
        "text": found.text,
        "meaning": found.definition.meaning,
        "remedy": found.remedy,
        "runbook": found.definition.page,
        "commands": list(found.commands),
        "steps": [{"text": each.text, "commands": list(each.commands)} for each in found.steps],
        "fails": found.fails,
    }


def _daemon_object(node: Node, shown: DaemonView) -> dict[str, Any]:
    daemon = shown.daemon
    return {
        "name": daemon.name,
        "state": daemon.state,
        "severity": shown.severity,
        "expected": daemon.declared.expected,
        "pid": None if daemon.runtime.process is None else daemon.runtime.process.pid,
        "foreign_uid": daemon.runtime.foreign_owner,
        "version": daemon.runtime.version,
        "waiting": list(shown.waiting),
        "watchdog": watchdog_object(shown.watch, shown.mode),
        "servers": [_server_object(node, each) for each in shown.servers],
    }


def _server_object(node: Node, shown: ServerView) -> dict[str, Any]:
    share = shown.server.active_thread_percentage
    return {
        "pid": shown.server.pid,
        "uid": shown.server.uid,
        "state": shown.server.state,
        "active_thread_ratio": None if share is None else share / 100,
        "pinned_memory_limit_bytes": dict(shown.memory_limits.values()),
        "clients": [_client_object(node, each) for each in shown.clients],
    }


def _client_object(node: Node, shown: ClientView) -> dict[str, Any]:
    process = shown.process
    return {
        "client": shown.id,
        "pid": shown.client.pid,
        "user": None if process is None else process.user,
        "command": None if process is None else process.command,
        **_owners_object(node, process),
        "memory_used_bytes": dict(shown.memory),
        "failure_domain": _domain_object(shown.client, shown.domain),
    }


def _domain_object(client: Client, domain: FailureDomain | None) -> dict[str, Any] | None:
    """Whom a fatal fault of this client would take along, and on which GPUs; null where that cannot be told."""
    if domain is None:
        return None
    return {"others": sorted(domain.clients - {client.pid}), "gpus": sorted(domain.gpus)}


def _owners_object(node: Node, process: ProcessReading | None) -> dict[str, Any]:
    owners, pod, workload = belonging_of(process), pod_of(node, process), workload_of(process)
    return {
        "unit": owners.unit,
        "container": owners.container,
        "pod_uid": owners.pod_uid,
        "pod": None if pod is None else pod.name,
        "namespace": None if pod is None else pod.namespace,
        "slurm_job_id": owners.slurm_job_id,
        "slurm_job_sluid": owners.slurm_job_sluid,
        "workload": None if workload is None else {"kind": workload.kind, "name": workload.name},
    }


def _gpu_object(node: Node, shown: GpuView) -> dict[str, Any]:
    reading, problem = shown.gpu.reading, shown.gpu.reading.problem
    return {
        "uuid": shown.uuid,
        "index": reading.index,
        "name": reading.name,
        "problem": None if problem is None else problem_object(problem, problem_text(problem, NVML)),
        "memory_used_bytes": reading.memory_used_bytes,
        "memory_total_bytes": reading.memory_total_bytes,
        "bypassing": list(shown.gpu.bypassing),
        "sharing": sharing_object(node, shown.fitness),
    }


MOST_BYTES = 1 << 24
"""Of JSON; an incident with many clients has some 100 KB."""


def incidents_answer(
    incidents: Iterable[Incident],
    wanted: IncidentFilter,
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
        return {"lines": plain(Lines(tuple(lines))), "exit_code": exit_code}
    if wanted.id is None:
        text = "[{}]\n".format(",\n".join(each.decode() for each in fitting(objects, MOST_BYTES)))
    else:
        text = json.dumps(next(objects), indent=2) + "\n"
    return {"text": text, "exit_code": exit_code}
