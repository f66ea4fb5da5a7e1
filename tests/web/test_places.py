"""Clients that say nothing, or little, or do not read, keep nobody else out."""

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exporter.web import MOST_REQUESTS
from tests.eventually import eventually
from tests.web.serving import Web, read_all


@contextlib.contextmanager
def crowd(web: Web, size: int, say: bytes) -> Iterator[list[socket.socket]]:
    """Connections that never finish a request."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(web.connect()) for _ in range(size)]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(say)
        yield connections


@pytest.mark.parametrize("say", [b"", b"G", b"GET /metrics HTTP/1.1\r\nX: "], ids=["nothing", "a_letter", "a_header"])
@pytest.mark.parametrize("size", [MOST_REQUESTS // 2, MOST_REQUESTS, 3 * MOST_REQUESTS])
@pytest.mark.usefixtures("collector")
def test_the_silent_do_not_keep_a_scrape_out(web: Web, size: int, say: bytes) -> None:
    with crowd(web, size, say):
        assert [web.get().status for _ in range(3)] == [200] * 3


@pytest.mark.usefixtures("collector")
def test_the_slow_do_not_keep_a_scrape_out(web: Web) -> None:
    """A byte now and then is no silence, and never the end of a request either."""
    enough = threading.Event()

    def drip(connections: list[socket.socket]) -> None:
        while not enough.wait(0.1):
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(b"x")

    with crowd(web, MOST_REQUESTS, b"GET /metrics HTTP/1.1\r\nX: ") as connections:
        dripping = threading.Thread(target=drip, args=(connections,))
        dripping.start()
        try:
            eventually(lambda: _answered(web), within=15)
        finally:
            enough.set()
            dripping.join()


def _answered(web: Web) -> None:
    try:
        assert web.get().status == 200
    except ConnectionError as error:
        raise AssertionError("turned away") from error


@pytest.mark.usefixtures("collector")
def test_the_silent_are_hung_up_on(web: Web) -> None:
    with web.connect() as connection:
        assert read_all(connection) == b""


def test_who_does_not_read_the_answer_holds_nobody_up(web: Web) -> None:
    class Large(Collector):
        def collect(self) -> Iterable[Metric]:
            family = GaugeMetricFamily("answer", "The answer.", labels=["n"])
            for n in range(100_000):
                family.add_metric([f"{n:050}"], n)
            return [family]

    web.exposition.publish(Large())
    with crowd(web, 10, b"GET /metrics HTTP/1.1\r\n\r\n"):
        assert web.get("/-/healthy").status == 200
        assert web.get().status == 200


@pytest.mark.usefixtures("collector")
def test_many_scrapes_at_once_are_all_answered(web: Web) -> None:
    statuses: list[int] = []
    scrapers = [threading.Thread(target=lambda: statuses.append(web.get().status)) for _ in range(30)]
    for scraper in scrapers:
        scraper.start()
    for scraper in scrapers:
        scraper.join()

    assert statuses == [200] * 30
