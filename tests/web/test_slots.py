"""Silent and slow clients do not block other clients."""

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exporter.web.pages import Handler
from exporter.web.server import ConnectionSlots, Slot
from tests.eventually import eventually
from tests.web.serving import Web, read_all

# The tests state these values, so that they notice a change of the program's constants.
IDLE_SECONDS = 5.0
DEFAULT_MAX_REQUESTS = 40


@contextlib.contextmanager
def crowd(web: Web, size: int, say: bytes) -> Iterator[list[socket.socket]]:
    """Open connections that never complete a request."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(web.connect()) for _ in range(size)]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(say)
        yield connections


@pytest.mark.usefixtures("collector")
def test_answers_a_scrape_beside_silent_clients(web: Web, subtests: pytest.Subtests) -> None:
    for size in (DEFAULT_MAX_REQUESTS // 2, DEFAULT_MAX_REQUESTS, 3 * DEFAULT_MAX_REQUESTS):
        for say in (b"", b"G", b"GET /metrics HTTP/1.1\r\nX: "):
            with subtests.test(size=size, say=say), crowd(web, size, say):
                assert [web.get().status for _ in range(3)] == [200] * 3


@pytest.mark.usefixtures("collector")
def test_answers_a_scrape_beside_slow_clients(web: Web) -> None:
    """The client sends bytes, but never a complete request."""
    enough = threading.Event()

    def drip(connections: list[socket.socket]) -> None:
        while not enough.wait(0.1):
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(b"x")

    with crowd(web, DEFAULT_MAX_REQUESTS, b"GET /metrics HTTP/1.1\r\nX: ") as connections:
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
        raise AssertionError("refused") from error


@pytest.mark.usefixtures("collector")
def test_closes_a_silent_connection_after_the_timeout(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "timeout", IDLE_SECONDS / 10)
    with web.connect() as connection:
        assert read_all(connection) == b""


def test_answers_beside_clients_that_do_not_read(web: Web) -> None:
    class Large(Collector):
        def collect(self) -> Iterable[Metric]:
            family = GaugeMetricFamily("answer", "The answer.", labels=["n"])
            for n in range(100_000):
                family.add_metric([f"{n:050}"], n)
            return [family]

    web.exposition.publish(Large())
    assert len(web.get().body) > 5_000_000
    with crowd(web, 3 * DEFAULT_MAX_REQUESTS, b"GET /metrics HTTP/1.1\r\n\r\n"):
        for _ in range(3):
            eventually(lambda: _answered(web))


@pytest.mark.usefixtures("collector")
def test_answers_many_concurrent_scrapes(web: Web) -> None:
    statuses: list[int] = []
    scrapers = [threading.Thread(target=lambda: statuses.append(web.get().status)) for _ in range(30)]
    for scraper in scrapers:
        scraper.start()
    for scraper in scrapers:
        scraper.join()

    assert statuses == [200] * 30


# -- connection slots ---------------------------------------------------------------------------------------------


@pytest.fixture
def connections() -> Iterator[list[socket.socket]]:
    """The server ends of four connections."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(end) for _ in range(4) for end in socket.socketpair()][::2]


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def taken(slots: ConnectionSlots, connection: socket.socket) -> Slot:
    slot = slots.take(connection)
    assert slot is not None
    return slot


def test_closes_the_connection_that_the_server_waits_for_longest(connections: list[socket.socket]) -> None:
    first, second, third, _ = connections
    slots = ConnectionSlots(2)
    one, _ = taken(slots, first), taken(slots, second)
    with slots.working(one):
        pass

    assert slots.take(third)
    assert [is_closed(each) for each in connections[:3]] == [False, True, False]


def test_keeps_a_connection_while_the_server_works_on_its_request(connections: list[socket.socket]) -> None:
    first, second, *_ = connections
    slots = ConnectionSlots(1)
    with slots.working(taken(slots, first)):
        assert slots.take(second) is None
        assert not is_closed(first)

    assert slots.take(second)
    assert is_closed(first)


def test_replace_socket_fails_if_the_slot_was_taken_away(connections: list[socket.socket]) -> None:
    first, second, other, _ = connections
    slots = ConnectionSlots(1)
    slot = taken(slots, first)
    slots.replace_socket(slot, other)
    assert slots.take(second)
    assert [is_closed(first), is_closed(other)] == [False, True]

    with pytest.raises(ConnectionAbortedError):
        slots.replace_socket(slot, first)


def test_a_closed_connection_takes_no_slot_again(connections: list[socket.socket]) -> None:
    first, second, third, fourth = connections
    slots = ConnectionSlots(1)
    with slots.working(taken(slots, first)):
        pass
    slot, newcomer = taken(slots, second), taken(slots, third)
    with slots.working(slot), slots.working(newcomer):
        pass

    assert [is_closed(first), is_closed(second)] == [True, True]
    assert slots.take(fourth)
    assert is_closed(third)


def test_a_released_slot_is_free(connections: list[socket.socket]) -> None:
    first, second, *_ = connections
    slots = ConnectionSlots(1)
    slot = taken(slots, first)
    with slots.working(slot):
        pass
    slots.release(slot)

    assert slots.take(second)
    assert not is_closed(first)
