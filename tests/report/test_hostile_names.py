"""A name that a user or a workload chose stays in its line, cell or sentence, is short, and is not markup."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from exporter.model.incident import ClientDetails
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.printable import LONGEST_TEXT
from exporter.report import remedy
from exporter.report.incident_text import brief, details, incidents_table, verdict
from exporter.report.remedy import Address
from exporter.report.status_text import headline, render_status, status_table
from exporter.report.status_view import view_of
from exporter.report.text import Line, text_of
from exporter.report.watchdog_text import summary_lines
from tests.builders import (
    AT,
    CLIENT,
    CRASHED,
    DAEMON,
    SERVER,
    at_work,
    circuit_open,
    flight,
    limited,
    node,
    process,
    reduced,
    split,
    three_clients,
)
from tests.incidents.values import HOSTILE, hostile, incident, suspect, tenant

NOW = AT + 182


def of_status(name: str, start: Node | None = None) -> list[str]:
    """Lines of a node with one client of this name."""
    client = process(CLIENT, user=name, command=name)
    shown = reduced(*(at_work(CLIENT) if start is None else ()), client, start=start).node
    return status_table(shown).splitlines()


def of_faults(name: str) -> list[str]:
    present = reduced(*at_work(600, 601)).node
    faults = {fault.id: fault for fault in (hostile(name), replace(hostile(name), id="two", server=SERVER + 1))}
    return [line for line in status_table(replace(present, incidents=faults)).splitlines() if "PIPE_DIR" not in line]


def of_details(name: str) -> list[str]:
    return texts(details(hostile(name), NOW, Address(pipe_directory=f"/tmp/{name}")))


def of_sharing(name: str) -> list[str]:
    busy = {600: flight(0.48, 0.012), 601: flight(0.004, 0.002)}
    present = reduced(process(600, user=name, command=name), start=limited()).node
    return texts(render_status(split(present, busy, dram=0.91)).sharing)


def of_daemon(name: str) -> Node:
    """A node with a daemon of this name, whose circuit is open for this reason."""
    reason = Reason(ReasonCode.UNSPECIFIED, text=name)
    known = replace(circuit_open().watches[DAEMON], diagnosis=replace(CRASHED, indications=(reason,)), reason=reason)
    return replace(reduced(*at_work(daemon=name), start=node(name)).node, watches={name: known})


def texts(lines: list[Line] | tuple[Line, ...]) -> list[str]:
    return [line.text for line in lines]


RENDERERS: dict[str, tuple[int, Callable[[str], list[str]]]] = {
    "table": (300, of_status),
    "failure domains": (400, lambda name: of_status(name, three_clients())),
    "faults of status": (900, of_faults),
    "sharing": (300, of_sharing),
    "headline": (2 * LONGEST_TEXT, lambda name: texts(headline(view_of(of_daemon(name))))),
    "watchdog": (900, lambda name: texts(summary_lines(of_daemon(name)))),
    "incident": (400, of_details),
    "incident on one line": (500, lambda name: [brief(hostile(name), NOW)]),
    "incidents": (400, lambda name: text_of(incidents_table([hostile(name)], NOW)).splitlines()),
    "verdict": (120, lambda name: [verdict(incident(suspects=(replace(suspect(600, 0.9), client=named(name)),)))]),
    "resume": (300, lambda name: remedy.resume_answer(of_daemon(name), before=False)["message"].splitlines()),
}
"""What shows names, and how long a line of it is at most."""


def named(name: str) -> ClientDetails:
    return tenant(600, command=name, user=name)


def test_names_stay_in_their_line(subtests: pytest.Subtests) -> None:
    for what, (longest, render) in RENDERERS.items():
        for name in HOSTILE:
            with subtests.test(what=what, name=name):
                lines = render(name)
                assert len(lines) == len(render("train"))
                assert all(line.isprintable() for line in lines)
                assert max(map(len, lines)) < longest
