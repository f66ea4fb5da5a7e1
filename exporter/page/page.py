"""The HTML page. All values are escaped."""

import re
from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from exporter import __version__
from exporter.page.cards import collectors, daemons, failure_domains, faults, gpus, headline, watchdog
from exporter.page.plots import Hour, plots
from exporter.page.timeline import timeline
from exporter.report.status_view import StatusInput, status_view
from exporter.report.text import SIMULATED, local_time

REFRESH_SECONDS = 5


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
        environment.filters.update(joined=_joined, with_code=_with_code)
        mark = SIMULATED if simulated else ""
        environment.globals.update(version=__version__, links=links, refresh=REFRESH_SECONDS, simulated=mark)
        self._node = environment.get_template("node.html")
        self._links = environment.get_template("links.html")

    def node(self, data: StatusInput) -> bytes:
        """Return the page of a node."""
        view = status_view(data)
        hour = Hour(view)
        html = self._node.render(
            host=view.host,
            now=local_time(view.at),
            headline=headline(view),
            gpus=gpus(view),
            daemons=daemons(view),
            domains=failure_domains(view),
            faults=faults(view),
            plots=plots(view, hour),
            timeline=timeline(view, hour),
            watchdog=watchdog(view),
            collectors=collectors(view),
        )
        return html.encode(errors="replace")

    def links(self) -> bytes:
        """Return the page for visitors who may not read names: links, and how to get access."""
        return self._links.render().encode(errors="replace")


def _with_code(text: str) -> Markup:
    """Return an escaped text in which words between backticks are code."""
    parts = text.split("`")
    marked = (
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )
    return Markup("").join(marked) if len(parts) % 2 else escape(text)


def _joined(text: str) -> str:
    """Return a text in which no line ends between a PID and the name of its process."""
    return re.sub(r"\bPID (\d+)( \()?", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
