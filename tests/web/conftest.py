"""Fixtures with a web server."""

from collections.abc import Iterator

import pytest

from exporter.web.server import WebServer
from tests.web.serving import Counting, Stage, Web, staged


@pytest.fixture(scope="session")
def stage() -> Iterator[tuple[Stage, WebServer]]:
    """One server for all tests that need no other."""
    with staged() as served:
        yield served


@pytest.fixture
def web(stage: tuple[Stage, WebServer]) -> Web:
    """The server before the first collection."""
    on, server = stage
    web = Web(server)
    on.site = web.site()
    return web


@pytest.fixture
def collector(web: Web) -> Counting:
    """A published snapshot."""
    collector = Counting()
    web.exposition.publish(collector)
    return collector
