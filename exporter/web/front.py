"""The page at `/`: the node at a glance for those who may read names, links alone for others; and nothing foreign."""

from collections.abc import Callable, Mapping
from functools import cached_property
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING

from exporter.page import Sight
from exporter.page.files import script, style
from exporter.web.access import may_see_private
from exporter.web.answer import Answer, Request, Route
from exporter.web.lately import Lately

if TYPE_CHECKING:
    from exporter.page.page import Page

SCRIPT, STYLE = "/page.js", "/page.css"

_HEADERS = MappingProxyType(
    {
        "Cache-Control": "no-store",
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
            " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
    }
)


class Front:
    """The page, and the files that it needs."""

    def __init__(self, sight: Callable[[], Sight], links: Mapping[str, str], monotonic: Callable[[], float]) -> None:
        """`sight` is what is to be seen of the node now, `links` are the other pages' paths by their titles."""
        self._titled = links
        self._node = Lately(lambda: self._page.node(sight()), monotonic)

    @cached_property
    def _page(self) -> "Page":
        """Load the templates. Most nodes are only scraped, and hold no memory for them."""
        from exporter.page.page import Page

        return Page(self._titled)

    def answer(self, request: Request) -> Answer:
        """What this visitor may see."""
        shown = self._node.page() if may_see_private(request.visitor) else self._page.links()
        return _answer(shown, "text/html")


def files() -> Mapping[str, Route]:
    """The files by path; they are the same for all, and name nobody."""
    return {SCRIPT: _file(script(), "text/javascript"), STYLE: _file(style(), "text/css")}


def _file(body: bytes, kind: str) -> Route:
    answer = _answer(body, kind)
    return Route(respond=lambda _request: answer)


def _answer(body: bytes, kind: str) -> Answer:
    return Answer(HTTPStatus.OK, body, f"{kind}; charset=utf-8", headers=_HEADERS)
