"""Processes, clients and reasons of the status document. Their texts come from users, and are printable here."""

from collections.abc import Iterable, Mapping
from typing import Any

from exporter.model.identity import Workload
from exporter.model.incident import ClientDetails
from exporter.model.node import Node
from exporter.model.reason import Reason
from exporter.model.server import Client
from exporter.parse.printable import LONGEST_PROBLEM, LONGEST_TEXT, LONGEST_VALUE, printable
from exporter.report.document import ClientStatus
from exporter.report.incident_document import ProcessStatus, ReasonStatus
from exporter.report.reasons import reason_text
from exporter.state.processes import cgroup_of, client_id, pod_of, workload_of
from exporter.view import gpu_name


def shown(text: str) -> str:
    """Return a name or path, printable."""
    return printable(text, LONGEST_VALUE)


def optional(text: str | None, longest: int = LONGEST_VALUE) -> str | None:
    """Return a name, printable; None if it is not known."""
    return None if text is None else printable(text, longest)


def process_status(node: Node, pid: int) -> ProcessStatus:
    """Return the process that has this PID now."""
    return ProcessStatus(**names_of(node, pid))


def names_of(node: Node, pid: int) -> Mapping[str, Any]:
    """Return the names of the process that has this PID now, as fields of a `ProcessStatus`."""
    process = node.processes.get(pid)
    pod = pod_of(node, process)
    return {
        "pid": pid,
        "user": None if process is None else optional(process.user),
        "command": None if process is None else optional(process.command),
        "workload": _workload(workload_of(process)),
        "pod": None if pod is None else shown(pod.name),
    }


def _workload(workload: Workload | None) -> Workload | None:
    return None if workload is None else Workload(kind=workload.kind, name=shown(workload.name))


def waiting_status(node: Node, pid: int, uid: int | None) -> ProcessStatus:
    """Return a client that waits for its turn. Of one with a hidden PID, the UID is known."""
    names = names_of(node, pid)
    user = f"UID {uid}" if names["user"] in (None, "") and uid is not None else names["user"]
    return ProcessStatus(**{**names, "user": user})


def client_status(
    node: Node, client: Client, memory: Mapping[str, int], gpus: Iterable[str], domain: str | None
) -> ClientStatus:
    """Return a connected client. `memory` are its bytes on each GPU, and `domain` names its failure domain."""
    process = node.processes.get(client.pid)
    member, pod = cgroup_of(process), pod_of(node, process)
    return ClientStatus(
        **names_of(node, client.pid),
        client=client_id(client, process),
        uid=None if process is None else process.uid,
        unit=optional(member.unit),
        container=optional(member.container),
        pod_uid=member.pod_uid,
        namespace=None if pod is None else shown(pod.namespace),
        slurm_job_id=member.slurm_job_id,
        memory_used_bytes=memory,
        connected_at=client.connected_at,
        gpus=by_number(node, gpus),
        failure_domain=domain,
    )


def identity_of(client: ClientDetails) -> Mapping[str, Any]:
    """Return what was known of a client at the time of a fault, as fields of a `ClientIdentity`."""
    texts = ("user", "command", "pod", "unit", "container", "pod_uid", "namespace", "slurm_job_id")
    return {
        **{name: optional(getattr(client, name), LONGEST_TEXT) for name in texts},
        "pid": client.pid,
        "client": optional(client.client, LONGEST_TEXT) or None,
        "uid": client.uid,
        "workload": _workload(client.workload),
        "memory_used_bytes": {printable(gpu): size for gpu, size in client.memory_bytes.items()},
    }


def by_number(node: Node, uuids: Iterable[str]) -> tuple[str, ...]:
    """Return GPUs in the order of their indices, each before its MIG instances."""

    def place(uuid: str) -> tuple[tuple[int, str], ...]:
        return tuple((len(part), part) for part in gpu_name(node, uuid).split("/"))

    return tuple(sorted(uuids, key=place))


def reason_status(reason: Reason, source: str = "") -> ReasonStatus:
    """Return a reason, or the problem of this collector, without the other problems of its collection."""
    known = {
        name: printable(value, LONGEST_PROBLEM)
        if type(value) is str
        else tuple(value)
        if type(value) is list
        else value
        for name, value in reason.parameters_as_json().items()
    }
    return ReasonStatus(code=reason.code.value, parameters=known, text=reason_text(reason, source))
