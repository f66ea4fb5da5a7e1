"""Status and incidents as JSON objects."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from exporter.model.contention import Slowdown
from exporter.model.gpu import IncidentXid
from exporter.model.incident import ClientDetails, FaultKind, Incident
from exporter.model.node import CollectorName, Node
from exporter.model.observation import ProcessReading
from exporter.model.settings import Mode
from exporter.model.usage import Share
from exporter.model.values import plain
from exporter.model.watchdog import WatchdogState
from exporter.parse.printable import LONGEST_TEXT, PrintableText, printable, printable_value
from exporter.parse.xid_catalogue import xid_meaning
from exporter.report.finding import Finding
from exporter.report.incident_filter import IncidentFilter
from exporter.report.incident_text import address_texts, details, in_flight, incidents_table, likelihood, verdict
from exporter.report.reasons import problem_object, reason_object, reason_text, source_text
from exporter.report.remedy import Address, AddressOf, address_of, command_to_end_server, command_to_kill
from exporter.report.status_view import ClientView, DaemonView, GpuView, ServerView, StatusView
from exporter.report.text import SIMULATED, Lines, line_of, utc_time, warning
from exporter.state.processes import cgroup_of, client_id, pod_of, workload_of
from exporter.usage.allocation import AllocatedShares
from exporter.usage.capacity import ClientUsage, GpuSharing

MOST_LISTED = 512
"""At most so many clients of a kind are listed; their number is given, too."""

MOST_NEIGHBOURS = 4
"""Others that use the resource for which a client waits; the list of the clients has all."""

MOST_BYTES = 1 << 24
"""Size limit of the JSON of all incidents. An incident with many clients has about 100 KB."""


def _fields(value: object, *names: str) -> dict[str, Any]:
    """Return these attributes of a value by their names."""
    return {name: getattr(value, name) for name in names}


def watchdog_object(watch: WatchdogState | None, mode: Mode | None) -> dict[str, Any] | None:
    """Return the watchdog's state of a daemon; None if there is none. Times are seconds since the epoch."""
    if watch is None:
        return None
    found, acting, last, quarantine = watch.diagnosis, watch.acting, watch.last_action, watch.quarantine
    return {
        "mode": mode,
        "state": watch.phase,
        "diagnosis": None
        if found is None
        else {
            **_fields(found, "condition", "since"),
            "indications": [reason_object(each) for each in found.indications],
            "culprit": None if found.process is None else found.process.pid,
            **_fields(found, "server", "incident"),
        },
        "acting": None
        if acting is None
        else {"action": acting.kind, **_fields(acting, "reason", "began_at", "done_at")},
        "restarts": list(watch.restarts),
        **_fields(watch, "failures", "last_restart_at", "not_before", "circuit_opened_at", "state_lost_at"),
        "quarantine": None
        if quarantine is None
        else printable_value(_fields(quarantine, "at", "xid", "gpu", "action"), LONGEST_TEXT),
        "stopped_at": watch.stopped_at,
        "counts": [{"action": each.kind, **_fields(each, "reason", "result", "count")} for each in watch.action_counts],
        "reason": None if watch.reason is None else reason_object(watch.reason),
        "last_action": None if last is None else {"action": last.kind, **_fields(last, "reason", "begun")},
        "problem": None if watch.problem is None else reason_object(watch.problem),
    }


def encode_within(objects: Iterable[object], most_bytes: int) -> list[bytes]:
    """Return the first objects as JSON of printable texts, as many as fit into `most_bytes`, but at least one."""
    encoded: list[bytes] = []
    size = 0
    for each in objects:
        text = json.dumps(printable_value(each), ensure_ascii=False).encode()
        size += len(text)
        if encoded and size > most_bytes:
            break
        encoded.append(text)
    return encoded


def incident_object(incident: Incident, *, now: float | None = None, address: Address | None = None) -> dict[str, Any]:
    """Return an incident. `..._at`, `since` and `until` are seconds since the epoch, `started` etc. are in ISO 8601.

    Without `now`, the durations of present blockers are null. Without the daemon's `address`, there are no commands.
    """
    flights, server_command = in_flight(incident), None
    if incident.stuck:
        server_command = command_to_end_server(incident.server, address)
    return {
        "id": printable(incident.id),
        "daemon": printable(incident.daemon),
        "server": incident.server,
        "state": "open" if incident.open else "ended",
        **_fields(incident, "ending", "settled", "kind"),
        "address": _address(incident),
        "gpus": [printable(gpu) for gpu in incident.gpus],
        "xids": [_xid(each) for each in incident.xids[:MOST_LISTED]],
        **_time("started", incident.started_at),
        **_time("detected", incident.detected_at),
        **_time("ended", incident.ended_at),
        "seconds": None if incident.seconds is None else round(incident.seconds, 3),
        "affected": [
            {**_client_details(incident.details_of(pid)), "in_flight": flights.get(pid)}
            for pid in incident.affected[:MOST_LISTED]
        ],
        "affected_count": len(incident.affected),
        "affected_confirmed": incident.affected_confirmed,
        "verdict": verdict(incident),
        "hardware_fault": incident.kind is FaultKind.HARDWARE,
        "suspects": [
            {
                **_client_details(each.client),
                "confidence": each.confidence,
                "likelihood": likelihood(each.confidence),
                "indications": [reason_object(indication) for indication in each.indications],
            }
            for each in incident.suspects[:MOST_LISTED]
        ],
        "refused": [{"at": each.at, "pid": each.pid} for each in incident.refused[:MOST_LISTED]],
        "refused_count": incident.refused_count,
        "blocking": [_blocking(incident, pid, now, address) for pid in list(incident.blocking)[:MOST_LISTED]],
        "blocking_count": len(incident.blockers),
        "stuck": incident.stuck,
        "end_server_command": [] if server_command is None else [server_command],
    }


def _time(name: str, at: float | None) -> Mapping[str, Any]:
    return {f"{name}_at": at, name: None if at is None else utc_time(at)}


def _xid(xid: IncidentXid) -> Mapping[str, Any]:
    known = xid_meaning(xid.number)
    return {
        "xid": xid.number,
        "mnemonic": None if known is None else known.mnemonic,
        "meaning": None if known is None else known.meaning,
        "cause": None if known is None else known.kind,
        "advice": None if known is None else known.action,
        **printable_value(_fields(xid, "gpu", "pid", "name", "at"), LONGEST_TEXT),
    }


def _client_details(client: ClientDetails) -> dict[str, Any]:
    details = {
        "pid": client.pid,
        "client": client.client or None,
        **_fields(client, "uid", "user", "command", "unit", "container", "pod_uid", "pod", "namespace", "slurm_job_id"),
        "workload": plain(client.workload),
        "memory_used_bytes": client.memory_bytes,
    }
    return dict(printable_value(details, LONGEST_TEXT))


def _address(incident: Incident) -> Mapping[str, Any] | None:
    clue = incident.clues.address
    return None if clue is None else {**plain(clue), "texts": list(address_texts(incident))}


def _blocking(incident: Incident, pid: int, now: float | None, address: Address | None) -> Mapping[str, Any]:
    delay = incident.blocking[pid]
    end = now if delay.until is None else delay.until
    present = incident.open and delay.until is None
    command = command_to_kill(incident.details_of(pid), address) if present else None
    return {
        **_client_details(incident.details_of(pid)),
        "since": delay.since,
        "until": delay.until,
        "seconds": None if end is None else round(max(0.0, end - delay.since), 3),
        "kill_command": [] if command is None else [command],
    }


def sharing_object(node: Node, found: GpuSharing | None) -> dict[str, Any] | None:
    """Return how a GPU is shared; None if it has no MPS clients. Ratios are 0 to 1."""
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
        "over_limit": [each.client.pid for each in found.over_limit],
        "sharing_gain_ratio": found.gain,
        "beside": [{"pid": pid, **_share(share)} for pid, share in found.bypassing.items()],
        "clients": [_client_usage(node, each) for each in found.clients],
    }


def _client_usage(node: Node, usage: ClientUsage) -> dict[str, Any]:
    process = node.processes.get(usage.client.pid)
    return {
        "client": client_id(usage.client, process),
        "daemon": usage.daemon,
        "server": usage.client.server,
        "pid": usage.client.pid,
        "workload": plain(workload_of(process)),
        "active_thread_ratio": usage.threads,
        "memory_limit_bytes": usage.memory_limit,
        "memory_used_bytes": usage.memory,
        **_share(usage.share),
        "dram_bandwidth_ratio": None if usage.bandwidth is None else usage.bandwidth.part,
        "dram_bandwidth_error_ratio": None if usage.bandwidth is None else usage.bandwidth.error,
        "slowdown": None if usage.slowdown is None else _slowdown(usage.slowdown),
        "watched": usage.watched,
        "connected_at": usage.client.connected_at,
    }


def _slowdown(found: Slowdown) -> dict[str, Any]:
    return {
        "ratio": found.ratio,
        "error_ratio": found.error,
        "at_least": found.is_bound,
        "resource": found.resource,
        "neighbours": [{"pid": pid, "used_ratio": part} for pid, part in found.neighbours[:MOST_NEIGHBOURS]],
    }


def _share(share: Share | None) -> dict[str, Any]:
    if share is None:
        return {"sm_ratio": None, "sm_error_ratio": None, "method": None}
    return {"sm_ratio": share.sm, "sm_error_ratio": share.error, "method": share.method}


def node_object(view: StatusView) -> dict[str, Any]:
    """Return the status of a node, with printable texts. Times are seconds since the epoch."""
    node = view.node
    shown = {
        "at": node.at,
        "simulated": node.simulated,
        "findings": [_finding(each) for each in view.findings],
        "daemons": [_daemon(node, each) for each in view.daemons],
        "gpus": [_gpu(node, each) for each in view.gpus],
        "incidents": [
            incident_object(each, now=node.at, address=address_of(node, each.daemon, view.policy))
            for each in view.incidents
        ],
        "sources": {
            name: {"problem": problem_object(source.last.problem, source_text(name, source))}
            for name, source in sorted(node.sources.items())
        },
    }
    return dict(printable_value(shown))


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "code": found.problem.code,
        **_fields(found, "severity", "daemon", "server", "gpu", "client", "since", "text"),
        "meaning": found.definition.meaning,
        "remedy": found.remedy,
        "runbook": found.definition.page,
        "commands": list(found.commands),
        "steps": [{"text": each.text, "commands": list(each.commands)} for each in found.steps],
        "fails": found.fails,
    }


def _daemon(node: Node, shown: DaemonView) -> dict[str, Any]:
    daemon = shown.daemon
    return {
        "name": daemon.name,
        "state": daemon.state,
        "severity": shown.severity,
        "expected": daemon.declared.expected,
        "pid": None if daemon.runtime.process is None else daemon.runtime.process.pid,
        "foreign_uid": daemon.runtime.foreign_owner,
        "version": daemon.runtime.version,
        "waiting": [max(pid, 0) for pid in shown.waiting],
        "watchdog": watchdog_object(shown.watch, shown.mode),
        "servers": [_server(node, each) for each in shown.servers],
    }


def _server(node: Node, shown: ServerView) -> dict[str, Any]:
    percentage = shown.server.limits.active_thread_percentage
    return {
        **_fields(shown.server, "pid", "uid", "state"),
        "active_thread_ratio": None if percentage is None else percentage / 100,
        "pinned_memory_limit_bytes": dict(shown.memory_limits),
        "clients_limit": shown.clients_limit,
        "clients": [_client(node, each) for each in shown.clients],
    }


def _client(node: Node, shown: ClientView) -> dict[str, Any]:
    process, domain, pid = shown.process, shown.domain, shown.client.pid
    return {
        "client": shown.id,
        "pid": pid,
        "user": None if process is None else process.user,
        "command": None if process is None else process.command,
        **_belonging(node, process),
        "memory_used_bytes": dict(shown.memory),
        "failure_domain": None
        if domain is None
        else {
            "others": sorted(domain.clients - {pid}),
            "gpus": sorted(domain.gpus),
            "upper_bound": domain.upper_bound,
        },
    }


def _belonging(node: Node, process: ProcessReading | None) -> dict[str, Any]:
    belonging, pod = cgroup_of(process), pod_of(node, process)
    return {
        **_fields(belonging, "unit", "container", "pod_uid"),
        "pod": None if pod is None else pod.name,
        "namespace": None if pod is None else pod.namespace,
        **_fields(belonging, "slurm_job_id", "slurm_job_sluid", "task"),
        "workload": plain(workload_of(process)),
    }


def _gpu(node: Node, shown: GpuView) -> dict[str, Any]:
    reading, problem = shown.gpu.reading, shown.gpu.reading.problem
    return {
        "uuid": shown.uuid,
        **_fields(reading, "index", "name"),
        "problem": None if problem is None else problem_object(problem, reason_text(problem, CollectorName.NVML)),
        **_fields(reading, "memory_used_bytes", "memory_total_bytes"),
        "bypassing": list(shown.gpu.bypassing),
        "sharing": sharing_object(node, shown.sharing),
        "shares": [_shares(resource, each) for resource, each in shown.shares.items()],
    }


def _shares(resource: str, found: AllocatedShares) -> dict[str, Any]:
    pods = found.unused_by
    return {
        "resource": printable(resource),
        **_fields(found, "allocatable", "allocated", "unused"),
        "unused_by": None
        if pods is None
        else [{"namespace": printable(each.namespace), "pod": printable(each.pod)} for each in pods[:MOST_LISTED]],
    }


def incidents_answer(
    incidents: Iterable[Incident],
    wanted: IncidentFilter,
    *,
    as_json: bool,
    now: float,
    address_of: AddressOf,
    width: int | None = None,
    simulated: bool = False,
) -> Mapping[str, Any]:
    """Return JSON text, or lines for a person, with the exit code: 1 if an incident that is shown is open.

    `width` is that of the terminal, if there is one. The lines and the objects of a `simulated` node state it.
    """
    shown = wanted.apply(incidents)
    if wanted.id is not None and not shown:
        return {"problem": f"no incident {printable(wanted.id)} is stored; `incidents` lists those that are"}
    exit_code = int(any(each.open for each in shown))
    if not as_json:
        lines = (
            incidents_table(shown, now, width)
            if wanted.id is None
            else details(shown[0], now, address_of(shown[0].daemon))
        )
        first = (line_of(warning(SIMULATED)),) if simulated else ()
        return {"lines": plain(Lines((*first, *lines))), "exit_code": exit_code}
    mark = {"simulated": True} if simulated else {}
    objects = (mark | incident_object(each, now=now, address=address_of(each.daemon)) for each in shown)
    if wanted.id is None:
        text = "[{}]\n".format(",\n".join(each.decode() for each in encode_within(objects, MOST_BYTES)))
    else:
        text = json.dumps(next(objects), indent=2) + "\n"
    return {"text": PrintableText(text), "exit_code": exit_code}
