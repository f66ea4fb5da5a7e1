"""Clients that say nothing, or little, or do not read, keep nobody else out."""

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exporter.web import MOST_REQUESTS
from exporter.web.handler import SILENCE_SECONDS, Handler
from exporter.web.places import Places
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
            eventually(lambda: _answered(web))
        finally:
            enough.set()
            dripping.join()


def _answered(web: Web) -> None:
    try:
        assert web.get().status == 200
    except ConnectionError as error:
        raise AssertionError("turned away") from error


@pytest.mark.usefixtures("collector")
def test_the_silent_are_hung_up_on(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "timeout", SILENCE_SECONDS / 10)
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
    assert len(web.get().body) > 5_000_000
    with crowd(web, 3 * MOST_REQUESTS, b"GET /metrics HTTP/1.1\r\n\r\n"):
        for _ in range(3):
            eventually(lambda: _answered(web))


@pytest.mark.usefixtures("collector")
def test_many_scrapes_at_once_are_all_answered(web: Web) -> None:
    statuses: list[int] = []
    scrapers = [threading.Thread(target=lambda: statuses.append(web.get().status)) for _ in range(30)]
    for scraper in scrapers:
        scraper.start()
    for scraper in scrapers:
        scraper.join()

    assert statuses == [200] * 30


# -- the places themselves -----------------------------------------------------------------------------------------


@pytest.fixture
def connections() -> Iterator[list[socket.socket]]:
    """The server's ends of some connections."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(end) for _ in range(4) for end in socket.socketpair()][::2]


def hung_up(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_whoever_has_kept_the_server_waiting_the_longest_leaves(connections: list[socket.socket]) -> None:
    first, second, third, _ = connections
    places = Places(2)
    one, two = places.take(first), places.take(second)
    assert one
    assert two
    with places.at_work(one):
        pass

    assert places.take(third)
    assert [hung_up(each) for each in connections[:3]] == [False, True, False]


def test_nobody_is_sent_away_while_the_server_is_at_work_for_him(connections: list[socket.socket]) -> None:
    first, second, *_ = connections
    places = Places(1)
    place = places.take(first)
    assert place
    with places.at_work(place):
        assert places.take(second) is None
        assert not hung_up(first)

    assert places.take(second)
    assert hung_up(first)


def test_who_is_sent_away_between_two_sockets_is_told_with_the_second(connections: list[socket.socket]) -> None:
    first, second, other, _ = connections
    places = Places(1)
    place = places.take(first)
    assert place
    places.exchange(place, other)
    assert places.take(second)
    assert [hung_up(first), hung_up(other)] == [False, True]

    with pytest.raises(ConnectionAbortedError):
        places.exchange(place, first)


def test_who_was_sent_away_takes_no_place_again(connections: list[socket.socket]) -> None:
    first, second, third, fourth = connections
    places = Places(1)
    place, newcomer = places.take(first), places.take(second)
    assert place
    assert newcomer
    with places.at_work(place), places.at_work(newcomer):
        pass
    assert places.take(third)

    assert hung_up(second)
    assert places.take(fourth)
    assert hung_up(third)


def test_a_place_that_is_given_back_is_free(connections: list[socket.socket]) -> None:
    first, second, *_ = connections
    places = Places(1)
    place = places.take(first)
    assert place
    with places.at_work(place):
        pass
    places.give_back(place)

    assert places.take(second)
    assert not hung_up(first)
