"""The HTML page: the template of a status document. All values are escaped."""

import re
from collections.abc import Mapping
from inspect import isfunction

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from exporter import __version__
from exporter.page import cards
from exporter.page.plots import Hour, plots
from exporter.page.timeline import timeline
from exporter.parse.printable import printable
from exporter.report import incident_text, status_text, text
from exporter.report.document import StatusDocument
from exporter.report.node_status import MOST_PAST, StatusInput, status_document
from exporter.report.problem import Severity
from exporter.report.status_text import counts_text, gpu_numbers, has_domains
from exporter.report.text import SIMULATED

REFRESH_SECONDS = 5

_LIMITS = {"MOST_BRIDGES": 4, "MOST_CHIPS": 6, "MOST_NAMED": 8, "MOST_PAST": MOST_PAST, "MOST_SUSPECTS": 5}
"""How many entries of a kind the page names; it counts the others."""

_SERVER_SEVERITIES = {"active": Severity.WELL, "fault": Severity.CRITICAL, None: Severity.UNKNOWN}


class Page:
    """Renders the page of a node, and a page of links for visitors without access. Safe for several threads."""

    def __init__(self, links: Mapping[str, str], *, simulated: bool = False) -> None:
        """`links` are the paths of other pages by their titles. The pages of a `simulated` node state it."""
        environment = Environment(
            loader=PackageLoader("exporter.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        modules = (cards, incident_text, status_text, text)
        named = {name: each for module in modules for name, each in vars(module).items() if isfunction(each)}
        environment.filters.update(named, printable=printable, joined=_joined, with_code=_with_code)
        mark = SIMULATED if simulated else ""
        environment.globals.update(named, version=__version__, links=links, refresh=REFRESH_SECONDS, simulated=mark)
        environment.globals.update(_LIMITS, SERVER_SEVERITIES=_SERVER_SEVERITIES)
        self._node = environment.get_template("node.html")
        self._links = environment.get_template("links.html")

    def node(self, data: StatusInput) -> bytes:
        """Return the page of a node."""
        document, hour = status_document(data), Hour(data)
        html = self._node.render(
            document=document,
            word=_capitalized(document.severity.words),
            sentence=sentence(document),
            numbers=gpu_numbers(document),
            has_domains=has_domains(document),
            hues={},
            plots=plots(data, hour),
            timeline=timeline(data, hour),
        )
        return html.encode(errors="replace")

    def links(self) -> bytes:
        """Return the page for visitors who may not read names: links, and how to get access."""
        return self._links.render().encode(errors="replace")


def sentence(document: StatusDocument) -> str:
    """Return the most urgent problem, or else what is here."""
    if document.findings:
        return f"{_capitalized(document.findings[0].text)}."
    if document.daemons:
        return f"{_capitalized(counts_text(document))}."
    return "No MPS control daemon runs here, and none is expected."


def _capitalized(words: str) -> str:
    return words[0].upper() + words[1:]


def _with_code(words: str) -> Markup:
    """Return an escaped text in which words between backticks are code."""
    parts = words.split("`")
    marked = (
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )
    return Markup("").join(marked) if len(parts) % 2 else escape(words)


def _joined(words: str) -> str:
    """Return a text in which no line ends between a PID and the name of its process."""
    return re.sub(r"\bPID (\d+)( \()?", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), words)
