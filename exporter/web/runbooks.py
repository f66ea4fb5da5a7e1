"""What to do about each alert, as pages: so that a link in a message at night leads to those of this very version."""

from collections.abc import Mapping
from http import HTTPStatus
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Self

from exporter.web.answer import Answer, Request, Route, plain

RUNBOOKS = "/runbooks"

_TEXT = "text/plain; charset=utf-8"


class Runbooks:
    """The pages of a directory, read once: what is asked for is a name among them, and never a path.

    Without the directory there are none: the exporter does not fail for want of what to read about it.
    """

    def __init__(self, directory: Traversable) -> None:
        self._pages = {
            page.name: page.read_bytes()
            for page in sorted(directory.iterdir() if directory.is_dir() else (), key=lambda page: page.name)
            if page.name.endswith(".md")
        }

    @classmethod
    def installed(cls) -> Self:
        """Those that came with this package."""
        return cls(resources.files("exporter") / "runbooks")

    @property
    def routes(self) -> Mapping[str, Route]:
        """The pages are open to all: they name nobody."""
        return {RUNBOOKS: Route(respond=self._list), f"{RUNBOOKS}/*": Route(respond=self._page)}

    def _list(self, _request: Request) -> Answer:
        return plain(HTTPStatus.OK, self._named())

    def _page(self, request: Request) -> Answer:
        page = self._pages.get(request.page.rpartition("/")[2])
        if page is None:
            return plain(HTTPStatus.NOT_FOUND, f"no such runbook; there are:\n{self._named()}")
        return Answer(HTTPStatus.OK, page, _TEXT)

    def _named(self) -> str:
        return "\n".join(f"{RUNBOOKS}/{name}" for name in self._pages)
