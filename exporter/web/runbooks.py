"""What to do about each alert, as pages: those of the version that is installed, so that a page at night leads somewhere."""

from collections.abc import Mapping
from http import HTTPStatus
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Self

from exporter.web.site import Answer, Request, Route, plain

RUNBOOKS = "/runbooks"

_TEXT = "text/plain; charset=utf-8"


class Runbooks:
    """The pages of a directory, read once: what is asked for is a name among them, and never a path."""

    def __init__(self, directory: Traversable) -> None:
        self._pages = {
            page.name: page.read_bytes()
            for page in sorted(directory.iterdir(), key=lambda page: page.name)
            if page.name.endswith(".md")
        }

    @classmethod
    def installed(cls) -> Self:
        """Those that came with this package."""
        return cls(resources.files("exporter") / "runbooks")

    @property
    def routes(self) -> Mapping[str, Route]:
        """The pages are open to all: they name nobody."""
        return {RUNBOOKS: Route(respond=self._list, title="Runbooks"), f"{RUNBOOKS}/*": Route(respond=self._page)}

    def _list(self, _request: Request) -> Answer:
        return plain(HTTPStatus.OK, self._named())

    def _page(self, request: Request) -> Answer:
        page = self._pages.get(request.page.rpartition("/")[2])
        if page is None:
            return plain(HTTPStatus.NOT_FOUND, f"no such runbook; there are:\n{self._named()}")
        return Answer(HTTPStatus.OK, page, _TEXT)

    def _named(self) -> str:
        return "\n".join(f"{RUNBOOKS}/{name}" for name in self._pages)
