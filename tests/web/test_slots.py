"""Silent and slow clients do not block other clients."""

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator
from http import HTTPStatus

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exporter.web.pages import Answer, Request, plain
from exporter.web.slots import ConnectionSlots, Slot
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
def test_no_thread_waits_for_a_client(web: Web) -> None:
    with crowd(web, DEFAULT_MAX_REQUESTS // 2, b"GET /metrics HTTP/1.1\r\nX: "):
        assert web.get().status == 200
        eventually(_no_request_has_a_thread)


def _no_request_has_a_thread() -> None:
    assert all(thread.name != "request" for thread in threading.enumerate())


@pytest.mark.usefixtures("collector")
def test_scrapes_wait_for_no_page_and_pages_are_rendered_one_by_one_in_half_of_the_slots(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, continues, made = threading.Semaphore(0), threading.Event(), list[str]()

    def render(request: Request) -> Answer:
        made.append(request.path)
        began.release()
        continues.wait(60)
        return plain(HTTPStatus.OK, request.path)

    web.get()  # The first scrape in a format takes as long as a page.
    monkeypatch.setattr(web.replaceable.site, "answer", render)
    with contextlib.ExitStack() as stack:
        stack.callback(continues.set)
        pages = [stack.enter_context(web.connect()) for _ in range(DEFAULT_MAX_REQUESTS)]
        for number, page in enumerate(pages):
            page.sendall(b"GET /events?%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number)
        assert began.acquire(timeout=60)
        refused = list[socket.socket]()
        eventually(lambda: _add_closed(pages, refused, DEFAULT_MAX_REQUESTS // 2))
        assert [web.get().status for _ in range(3)] == [200] * 3
        assert len(made) == 1
        continues.set()

        answers = [read_all(page) for page in pages if page not in refused]
        assert [b" 200 OK" in each for each in answers] == [True] * (DEFAULT_MAX_REQUESTS // 2)


def _add_closed(pages: list[socket.socket], closed: list[socket.socket], wanted: int) -> None:
    closed[:] = [page for page in pages if is_closed(page)]
    for page in pages:
        page.settimeout(60)
    assert len(closed) == wanted


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_request_is_whole_at_its_empty_line_however_it_arrives(end: bytes, web: Web) -> None:
    head = end.join((b"GET /-/healthy HTTP/1.1", b"Host: localhost", b"", b""))
    for first in range(1, len(head)):
        with web.connect() as connection:
            connection.sendall(head[:first])
            connection.sendall(head[first:])
            assert read_all(connection).endswith(b"\r\n\r\nhealthy\n")


@pytest.mark.usefixtures("collector")
def test_closes_a_silent_connection_after_the_timeout(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.web.server.IDLE_SECONDS", IDLE_SECONDS / 10)
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
    assert web.get().body == web.get().body
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
