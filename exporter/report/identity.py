"""How a client or process is named, and whether it had work in flight."""

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.model.incident import ClientDetails, Incident
from exporter.model.node import Node
from exporter.report.text import display_name, process_text, workload_text
from exporter.state.processes import pod_of, workload_of


def called(client: ClientDetails) -> str:
    """A client in a few words: `PID 600 (train.py of alice, job 42)`."""
    return process_text(client.pid, client.command, client.user, workload_text(client.workload, client.pod))


def in_flight(incident: Incident) -> Mapping[int, bool]:
    """Of whom it is known, by PID."""
    return {each.pid: each.in_flight for each in incident.clues.in_flight_work}


def flying(incident: Incident) -> Mapping[int, str]:
    """What to say of each of whom it is known, after who it is."""
    words = {True: ", with work in flight", False: ", with nothing in flight"}
    return {pid: words[flies] for pid, flies in in_flight(incident).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """A process; what is not known of it is empty. A PID that cannot be told here is a question mark."""

    pid: str
    command: str = ""
    user: str = ""
    owner: str = ""

    @property
    def name(self) -> str:
        """The shortest that says who it is."""
        return self.command or self.user or "unknown"


def who(node: Node, pid: int) -> Who:
    """Whoever has this PID now."""
    process, shown = node.processes.get(pid), str(pid) if pid > 0 else "?"
    if process is None:
        return Who(pid=shown)
    pod = pod_of(node, process)
    return Who(
        pid=shown,
        command=display_name(process.command),
        user=display_name(process.user),
        owner=workload_text(workload_of(process), None if pod is None else pod.name),
    )
