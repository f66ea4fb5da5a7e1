"""Fixtures with a web server."""

from collections.abc import Iterator

import pytest

from tests.web.certificates import Authority
from tests.web.serving import Counting, Web, serving


@pytest.fixture(scope="session")
def served() -> Iterator[Web]:
    """One server for all tests that need no other."""
    with serving() as web:
        yield web


@pytest.fixture
def web(served: Web) -> Web:
    """The server before the first collection."""
    web = Web(served.server, served.replaceable)
    web.show()
    return web


@pytest.fixture
def collector(web: Web) -> Counting:
    """A published snapshot."""
    collector = Counting()
    web.exposition.publish(collector)
    return collector


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that clients trust."""
    return Authority(tmp_path_factory.mktemp("authority"))
