"""The HTML pages: that of a node, made of its status document, and pages of text. All values are escaped."""

import re
from collections.abc import Iterator, Mapping, Sequence
from inspect import isfunction
from itertools import groupby
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from exporter import __version__
from exporter.page import clients, tables
from exporter.page.events import event_rows
from exporter.page.hour import last_hour
from exporter.parse.printable import printable
from exporter.report import incident_text, status_text, text
from exporter.report.document import StatusDocument
from exporter.report.document_parts import IncidentStatus
from exporter.report.finding import finding_statuses
from exporter.report.node_status import MOST_PAST, findings_as_seen, incident_as_seen, status_document
from exporter.report.status_text import sharing_warnings
from exporter.report.text import SIMULATED
from exporter.view import StatusInput

REFRESH_SECONDS = 5

_LIMITS = {
    "MOST_NAMED": 8,
    "MOST_OPEN": tables.MOST_OPEN,
    "MOST_CARDS": 5,
    "MOST_PAST": MOST_PAST,
    "MOST_SUSPECTS": 5,
    "MOST_OWNERS": 3,
}
"""How many entries of a kind the page names, and how many clients it shows unfolded; it counts the others."""

_NO_ACCESS = """\
The status of this node contains names of users and workloads. This page shows it only on this machine, at
http://localhost, or to visitors with a password or a client certificate (--web.config.file).
"""

_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\(([\w.-]+\.md)\)")
_ITEM = re.compile(r"(\d+\.|-) ")
_COMMAND = Markup('<div class="command"><code>{}</code><button type="button" class="copy">Copy</button></div>')


class Page:
    """Renders the pages of a node, its incidents and its events, runbooks, and links for visitors without access.

    Safe for several threads.
    """

    def __init__(
        self, links: Mapping[str, str], monitoring: Mapping[str, Any] = MappingProxyType({}), *, simulated: bool = False
    ) -> None:
        """`links` are the paths of other pages by their titles. The pages of a `simulated` node state it.

        `monitoring` has the base URLs of `prometheus` and `grafana`, if there are any, and by which `host` and `port`
        they may know the node.
        """
        environment = Environment(
            loader=PackageLoader("exporter.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        modules = (incident_text, status_text, text)
        named = {name: each for module in modules for name, each in vars(module).items() if isfunction(each)}
        environment.filters.update(
            named,
            printable=printable,
            joined=_joined,
            with_code=tables.with_code,
            basename=lambda path: path.rpartition("/")[2],
            local_time=lambda at: tables.time_shown(at, text.local_time(at)),
            short_time=lambda at, now: tables.time_shown(at, text.short_time(at, now)),
        )
        mark = SIMULATED if simulated else ""
        environment.globals.update(named, version=__version__, links=links, refresh=REFRESH_SECONDS, simulated=mark)
        environment.globals.update(_LIMITS, tables=tables, clients=clients, monitoring=monitoring)
        self._template = environment.get_template

    def node(self, data: StatusInput) -> bytes:
        """Return the page of a node."""
        document = status_document(data)
        return self._rendered(
            "node",
            data,
            document=document,
            word=_capitalized(document.severity.words),
            sentence=sentence(document),
            events=event_rows(data),
            hour=last_hour(data),
            uses=tables.uses_of(document),
        )

    def incidents(self, data: StatusInput) -> bytes:
        """Return the page of all known incidents."""
        newest = sorted(data.known_incidents.values(), key=lambda each: -each.detected_at)
        return self._rendered("incidents", data, incidents=[incident_as_seen(data, each, 0) for each in newest])

    def incident(self, data: StatusInput, incident: IncidentStatus) -> bytes:
        """Return the page of one incident."""
        events = [each for each in event_rows(data, None) if each.incident == incident.id]
        found = finding_statuses(findings_as_seen(data)) if incident.open else ()
        of_it = (each for each in found if incident.daemon in each.daemons and each.server in (None, incident.server))
        return self._rendered("incident", data, incident=incident, events=events, finding=next(of_it, None))

    def events(self, data: StatusInput) -> bytes:
        """Return the page of all events of the timeline."""
        return self._rendered("events", data, events=event_rows(data, None))

    def _rendered(self, template: str, data: StatusInput, **values: Any) -> bytes:
        """Return a page of the node, which refreshes itself."""
        html = self._template(f"{template}.html").render(data=data, at=data.at, host=printable(data.host), **values)
        return html.encode(errors="replace")

    def client(self, data: StatusInput, name: str) -> bytes | None:
        """Return the page of the client with this id; None if it is not connected and no shown incident names it."""
        known = clients.known_of(data, name)
        return None if known is None else self._rendered("client", data, name=name, **known)

    def links(self) -> bytes:
        """Return the page for visitors who may not read names: links, and how to get access."""
        return self.text("cuda-mps-exporter", _NO_ACCESS)

    def text(self, title: str, markdown: str) -> bytes:
        """Return a page with a text, such as a runbook."""
        return self._template("base.html").render(title=title, content=_html(markdown.split("\n"))).encode()


def sentence(document: StatusDocument) -> str:
    """Return the most urgent problem, or that there is none."""
    if document.findings:
        return f"{_capitalized(document.findings[0].text)}."
    if document.daemons:
        but = ", but the sharing of GPUs has warnings" if sharing_warnings(document) else ""
        return f"No problem is known{but}."
    return "No MPS control daemon is known, and none is expected."


def _capitalized(words: str) -> str:
    return words[0].upper() + words[1:]


def _joined(words: str) -> str:
    """Return a text in which no line ends between a PID and the name of its process."""
    # A link remains one.
    return type(words)(re.sub(r"\bPID (\d+)( \()?", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), words))


def _html(lines: Sequence[str]) -> Markup:
    """Return a runbook as HTML: headings, paragraphs, lists, tables, and code with a button that copies it.

    It knows only what the runbooks use of Markdown. Everything else is text, which is escaped.
    """
    parts = []
    for kind, blocks in groupby(_blocks(lines), key=lambda block: block[0]):
        html = Markup("\n").join(block for _, block in blocks)
        parts.append(Markup("<{0}>{1}</{0}>").format(kind, html) if kind else html)
    return Markup("\n").join(parts)


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, Markup]]:
    """Yield the blocks, each with the element in which it is together with others like it."""
    at = 0
    while at < len(lines):
        begin, at = at, at + 1
        first = lines[begin]
        if item := _ITEM.match(first):
            # An item goes on in the lines that are indented below it.
            margin = " " * len(item[0])
            while at < len(lines) and (not lines[at] or lines[at].startswith(margin)):
                at += 1
            inner = _html([first.removeprefix(item[0]), *(line.removeprefix(margin) for line in lines[begin + 1 : at])])
            yield "ul" if item[1] == "-" else "ol", Markup("<li>{}</li>").format(inner)
        elif first:
            while at < len(lines) and lines[at] and not _ITEM.match(lines[at]):
                at += 1
            yield "", _block(lines[begin:at])


def _block(lines: Sequence[str]) -> Markup:
    first = lines[0]
    if first.startswith("#"):
        marks, _, heading = first.partition(" ")
        return Markup("<h{0}>{1}</h{0}>").format(len(marks), heading)
    if first.startswith("    "):
        return _COMMAND.format("\n".join(line[4:] for line in lines))
    if first.startswith("|"):
        rows = ([_inline(cell) for cell in line.strip("| ").split(" | ")] for line in lines if line[1] != "-")
        cells = Markup("").join(Markup("<tr><td>") + Markup("<td>").join(row) for row in rows)
        return Markup('<div class="wide"><table>{}</table></div>').format(cells)
    return Markup("<p>{}</p>").format(_inline("\n".join(lines)))


def _inline(text: str) -> Markup:
    """Return a text with code, bold and emphasized words, and links to other runbooks."""
    html, begin = Markup(), 0
    for match in _INLINE.finditer(text):
        code, bold, emphasized, label, path = match.groups()
        html += escape(text[begin : match.start()])
        if label:
            html += Markup('<a href="/runbooks/{}">{}</a>').format(path, label)
        elif code:
            html += Markup("<code>{}</code>").format(code)
        else:
            html += Markup("<{0}>{1}</{0}>").format("b" if bold else "em", _inline(bold or emphasized))
        begin = match.end()
    return html + escape(text[begin:])
