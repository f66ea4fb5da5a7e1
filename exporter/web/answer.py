"""What is asked of a page, what it answers, and who may see it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType

from exporter.web.access import Visitor

_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A GET, as far as it matters."""

    path: str
    accept: str = ""
    accept_encoding: str = ""
    visitor: Visitor = field(default_factory=Visitor)

    @property
    def page(self) -> str:
        """The path without the query."""
        return self.path.partition("?")[0]

    @property
    def query(self) -> str:
        """What stands behind the question mark."""
        return self.path.partition("?")[2]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    gzipped: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def plain(status: HTTPStatus, text: str) -> Answer:
    """One line of text."""
    return Answer(status, f"{text}\n".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A page; a private one is answered to this machine's own and to the authenticated.

    `title` is what the landing page calls it, if that leads to it; `problem` says how the page tells what is wrong.
    """

    respond: Callable[[Request], Answer]
    private: bool = False
    title: str = ""
    problem: Callable[[HTTPStatus, str], Answer] = plain


NO_ROUTES: Mapping[str, Route] = MappingProxyType({})
