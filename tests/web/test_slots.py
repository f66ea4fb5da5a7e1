"""Silent and slow clients do not block other clients."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from http import HTTPStatus

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exporter.web.pages import Answer, Request, plain
from exporter.web.slots import ConnectionSlots, Slot
from tests.clocks import HandClock
from tests.eventually import eventually, until
from tests.web.serving import Web, read_all, serving

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
def test_a_client_that_sends_nothing_takes_no_slot_from_earlier_ones(web: Web) -> None:
    with web.connect() as connection, crowd(web, DEFAULT_MAX_REQUESTS, b""):
        assert web.get().status == 200
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b" 200 OK" in read_all(connection)


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
        refused = eventually(lambda: _answered_ones(pages, DEFAULT_MAX_REQUESTS // 2))
        for page in refused:
            head, _, body = read_all(page).partition(b"\r\n\r\n")
            assert (head.split()[1], b"\r\nRetry-After: 1" in head, body) == (b"503", True, b"")
        with crowd(web, DEFAULT_MAX_REQUESTS, b""):
            assert [web.get().status for _ in range(3)] == [200] * 3
        assert len(made) == 1
        continues.set()

        answers = [read_all(page) for page in pages if page not in refused]
        assert [b" 200 OK" in each for each in answers] == [True] * (DEFAULT_MAX_REQUESTS // 2)


def _answered_ones(pages: list[socket.socket], wanted: int) -> list[socket.socket]:
    answered, _, _ = select.select(pages, [], [], 0)
    assert len(answered) == wanted
    return answered


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_request_is_whole_at_its_empty_line_however_it_arrives(end: bytes, web: Web) -> None:
    head = end.join((b"GET /-/healthy HTTP/1.1", b"Host: localhost", b"", b""))
    for first in range(1, len(head)):
        with web.connect() as connection:
            slot = Slot(connection, ())
            slot.add(head[:first])
            assert not slot.is_whole
            slot.add(head[first:])
            assert slot.is_whole
            connection.sendall(head[:first])
            connection.sendall(head[first:])
            assert read_all(connection).endswith(b"\r\n\r\nhealthy\n")


@pytest.mark.usefixtures("collector")
def test_closes_a_silent_connection_after_the_timeout(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.web.server.IDLE_SECONDS", IDLE_SECONDS / 10)
    with web.connect() as connection:
        assert read_all(connection) == b""


class Large(Collector):
    """A gauge whose text fits into no buffer."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauge."""
        family = GaugeMetricFamily("answer", "The answer.", labels=["n"])
        for n in range(100_000):
            family.add_metric([f"{n:050}"], n)
        return [family]


def test_a_client_that_reads_slowly_gets_the_whole_answer() -> None:
    clock = HandClock()
    with serving(clock=clock) as web:
        web.exposition.publish(Large())
        body, received = web.get().body, bytearray()
        web.server._listeners[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        with web.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            while chunk := connection.recv(1 << 16):
                received += chunk
                clock.time += 2 * IDLE_SECONDS * len(chunk) / len(body)

    assert received.endswith(body)


def test_answers_beside_clients_that_do_not_read(web: Web) -> None:
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


@pytest.mark.usefixtures("collector")
def test_a_slot_is_free_before_its_descriptor_is(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `take` could shut down what another thread has opened with the same descriptor."""
    slots, taken_when_closed = web.server._slots, list[bool]()

    def close(connection: socket.socket) -> None:
        if connection.getsockname()[1] == web.server.port:
            taken_when_closed.append(any(slot.connection is connection for slot in slots._slots))
        really_close(connection)

    really_close = socket.socket.close
    monkeypatch.setattr(socket.socket, "close", close)
    assert web.get().status == 200
    assert web.get("/events").status == 200
    until(lambda: taken_when_closed == [False, False])


def test_a_thread_that_cannot_start_ends_its_connection_alone(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(DEFAULT_MAX_REQUESTS + 1):
            assert web.raw(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
    assert web.get("/events").status == 200


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
    slot, _ = slots.take(connection)
    assert slot is not None
    slot.has_thread = True
    return slot


def test_closes_the_connection_that_the_server_waits_for_longest(connections: list[socket.socket]) -> None:
    first, second, third, _ = connections
    slots = ConnectionSlots(2)
    one, _ = taken(slots, first), taken(slots, second)
    slots.protect(one)
    slots.wait_for(one)

    assert taken(slots, third)
    assert [is_closed(each) for each in connections[:3]] == [False, True, False]


def test_returns_the_replaced_slot_which_its_caller_ends_if_no_thread_has_it(connections: list[socket.socket]) -> None:
    first, second, *_ = connections
    slots = ConnectionSlots(1)
    taken(slots, first).has_thread = False
    _, replaced = slots.take(second)
    assert replaced is not None
    assert (replaced.connection, is_closed(first)) == (first, False)


def test_keeps_a_connection_while_the_server_works_on_its_request(connections: list[socket.socket]) -> None:
    first, second, *_ = connections
    slots = ConnectionSlots(1)
    slot = taken(slots, first)
    assert slots.protect(slot) == 1
    assert slots.take(second) == (None, None)
    assert not is_closed(first)
    slots.wait_for(slot)

    assert taken(slots, second)
    assert is_closed(first)


def test_replace_socket_fails_if_the_slot_was_taken_away(connections: list[socket.socket]) -> None:
    first, second, other, _ = connections
    slots = ConnectionSlots(1)
    slot = taken(slots, first)
    slots.replace_socket(slot, other)
    assert taken(slots, second)
    assert [is_closed(first), is_closed(other)] == [False, True]

    with pytest.raises(ConnectionAbortedError):
        slots.replace_socket(slot, first)


def test_a_closed_connection_takes_no_slot_again(connections: list[socket.socket]) -> None:
    first, second, third, fourth = connections
    slots = ConnectionSlots(1)
    slots.wait_for(taken(slots, first))
    slot, newcomer = taken(slots, second), taken(slots, third)
    for change in (slots.protect, slots.wait_for):
        with pytest.raises(ConnectionAbortedError):
            change(slot)
    assert slots.protect(newcomer) == 1
    slots.wait_for(newcomer)

    assert [is_closed(first), is_closed(second)] == [True, True]
    assert taken(slots, fourth)
    assert is_closed(third)


def test_a_released_slot_is_free(connections: list[socket.socket]) -> None:
    first, second, *_ = connections
    slots = ConnectionSlots(1)
    slot = taken(slots, first)
    slots.protect(slot)
    slots.release(slot)

    assert taken(slots, second)
    assert not is_closed(first)
