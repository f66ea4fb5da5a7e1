"""The status of a node as it is shown: as lines, as text, and as JSON."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.values import plain
from exporter.parse.printable import printable_value
from exporter.report.document import StatusDocument
from exporter.report.finding import Finding
from exporter.report.incident_status import incident_status
from exporter.report.incident_text import brief, details, incidents_table
from exporter.report.node_status import document_of
from exporter.report.remedy import Address
from exporter.report.status_text import body
from exporter.report.text import Line, text_of
from exporter.watchdog.context import Policy
from tests.builders import AT

NOW = AT + 182


def status_table(node: Node, policy: Policy | None = None) -> str:
    """Return the text of `status` without its headline."""
    return text_of(body(document_of(node, policy)))


def commands_of(finding: Finding) -> tuple[str, ...]:
    """Return all commands of what a finding asks to do, in order."""
    return tuple(command for step in finding.all_steps for command in step.commands)


def as_json(document: StatusDocument) -> Any:
    """Return a document as a client of the service receives it."""
    return json.loads(json.dumps(printable_value(plain(document))))


def status_json(node: Node, policy: Policy | None = None) -> Any:
    """Return the status of a node as JSON."""
    return as_json(document_of(node, policy))


def incident_json(fault: Incident, at: float = NOW, address: Address | None = None) -> Any:
    """Return a fault as JSON."""
    return json.loads(json.dumps(printable_value(plain(incident_status(fault, at, address)))))


def details_of(fault: Incident, at: float = NOW, address: Address | None = None) -> Sequence[Line]:
    """Return all that `incidents` shows of a fault."""
    return details(incident_status(fault, at, address))


def brief_of(fault: Incident, at: float = NOW) -> str:
    """Return a fault on one line."""
    return brief(incident_status(fault, at))


def table_of(faults: Iterable[Incident], width: int | None = None) -> Sequence[Line]:
    """Return the table of `incidents`."""
    return incidents_table([incident_status(each, NOW) for each in faults], width)
