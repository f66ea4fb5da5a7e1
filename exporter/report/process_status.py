"""Processes, clients and reasons of the status document. Texts that users chose become printable here."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from exporter.model.daemon import Daemon
from exporter.model.kernels import ClientKernels
from exporter.model.node import Node
from exporter.model.reason import Reason
from exporter.model.server import Client
from exporter.parse.printable import LONGEST_PROBLEM, LONGEST_VALUE, printable
from exporter.report.document import ClientStatus
from exporter.report.document_parts import Bytes, ProcessStatus, ReasonStatus
from exporter.report.reasons import reason_text
from exporter.report.text import pid_text, process_text, workload_text
from exporter.state.processes import cgroup_of, client_id, holders_of, pod_of, pod_of_daemon, workload_of
from exporter.view import gpu_name

Part = TypeVar("Part")

EARLIER = "some names are unknown, because the client got the kernels before the exporter began, or in an unusual way"
TOO_MANY = "some names are unknown, because too many came at once, or too many processes launched kernels"


def filled(kind: Callable[..., Part], *sources: object, longest: int = LONGEST_VALUE, **given: Any) -> Part:
    """Return a part of the document.

    What is not given comes from the first of the `sources` that has such an attribute, as printable text. If none has
    it, it is None, as of a source that is None.
    """
    for name, place in _places(kind, tuple(given), *map(type, sources)):
        value = None if place is None else getattr(sources[place], name)
        given[name] = value if type(value) in _PLAIN else printed(value, longest)
    return kind(**given)


_PLAIN = {int, float, bool, type(None)}


@cache
def _places(kind: Any, given: tuple[str, ...], *sources: type) -> tuple[tuple[str, int | None], ...]:
    """Return which of the sources, which have slots, has each field of a part that is not given."""
    missing = [each.name for each in fields(kind) if each.name not in given]
    return tuple((name, next((n for n, of in enumerate(sources) if hasattr(of, name)), None)) for name in missing)


def printed(value: Any, longest: int = LONGEST_VALUE) -> Any:
    """Return a value with printable texts, and with the text of each reason. A code stays as it is."""
    if type(value) is str:
        return printable(value, longest)
    if isinstance(value, Reason):
        return reason_status(value)
    return tuple(printed(each, longest) for each in value) if type(value) is tuple else value


def names_of(node: Node, pid: int, uid: int | None = None) -> ProcessStatus:
    """Return the names of a process. If its user is unknown, the name is made of its UID, if that is given."""
    return filled(ProcessStatus, **_names(node, pid, uid))


def _names(node: Node, pid: int, uid: int | None = None) -> dict[str, Any]:
    process = node.processes.get(pid)
    pod, user = pod_of(node, process), None if process is None else process.user
    return {
        "pid": pid,
        "user": printed(user) if user else None if uid is None else f"UID {uid}",
        "command": None if process is None else printed(process.command),
        "workload": workload_of(process),
        "pod": None if pod is None else printed(pod.name),
        "held_by": holders_of(node, pid),
    }


def owner_of(node: Node, daemon: Daemon) -> str:
    """Return the user of a daemon that is not expected, and its job or pod: `alice, job 42`; empty if unknown."""
    process = daemon.runtime.last_process
    if process is None or daemon.declared.expected:
        return ""
    pod = pod_of_daemon(node, daemon)
    workload = workload_text(workload_of(process), None if pod is None else pod.name)
    return ", ".join(filter(None, (printed(process.user), workload)))


def described(node: Node, pid: int, uid: int | None = None, *, start_ticks: int | None = None) -> str:
    """Return a process: `PID 600 (train.py of alice, job 42)`. With `start_ticks`, no other process is named."""
    process = node.processes.get(pid)
    if start_ticks is not None and (process is None or process.start_ticks != start_ticks):
        return pid_text(pid)
    names = names_of(node, pid, uid)
    return process_text(pid, names.command, names.user, workload_text(names.workload, names.pod), names.held_by)


def client_status(
    node: Node,
    client: Client,
    memory: Bytes = MappingProxyType({}),
    gpus: Iterable[str] = (),
    domain: str | None = None,
    kernels: ClientKernels | None = None,
) -> ClientStatus:
    """Return a connected client. `memory` are its bytes on each GPU, and `domain` names its failure domain."""
    process = node.processes.get(client.pid)
    pod = pod_of(node, process)
    return filled(
        ClientStatus,
        cgroup_of(process),
        client,
        process,
        kernels,
        **_names(node, client.pid),
        client=client_id(client, process),
        namespace=None if pod is None else printed(pod.namespace),
        memory_used_bytes=memory,
        gpus=by_number(node, gpus),
        failure_domain=domain,
        kernels=() if kernels is None else kernels.most,
        kernels_problem=None if kernels is None else _kernels_problem(kernels),
    )


def _kernels_problem(kernels: ClientKernels) -> str | None:
    named = all(each.names for each in kernels.most)
    if kernels.names_lost and not (kernels.most and named):
        return TOO_MANY
    return None if named else EARLIER


def by_number(node: Node, uuids: Iterable[str]) -> tuple[str, ...]:
    """Return GPUs in the order of their indices, each before its MIG instances."""

    def place(uuid: str) -> tuple[tuple[int, str], ...]:
        return tuple((len(part), part) for part in gpu_name(node, uuid).split("/"))

    found = tuple(uuids)
    return found if len(found) < 2 else tuple(sorted(found, key=place))


def reason_status(reason: Reason, source: str = "") -> ReasonStatus:
    """Return a reason, or the problem of this collector."""
    known = {name: printed(value, LONGEST_PROBLEM) for name, value in reason.parameters.items()}
    return ReasonStatus(code=reason.code.value, parameters=known, text=reason_text(reason, source))
