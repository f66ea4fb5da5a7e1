"""The places for connections: a fixed number, so that clients cannot pile up threads, and never all for the idle."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class Place:
    """One connection's place."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection


class Places:
    """Who is served. When all places are taken, whoever has kept the server waiting the longest leaves for a newcomer.

    A client keeps the server waiting while it has not asked in full, and while it does not read its answer.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken: set[Place] = set()
        self._waited_for: dict[Place, None] = {}

    def take(self, connection: socket.socket) -> Place | None:
        """A place for a newcomer; None if the server is at work for all that have one."""
        with self._lock:
            if len(self._taken) >= self._most and not self._send_away_the_longest():
                return None
            place = Place(connection)
            self._taken.add(place)
            self._waited_for[place] = None
            return place

    def exchange(self, place: Place, connection: socket.socket) -> None:
        """The connection's socket is another one from now on; OSError if it was sent away meanwhile."""
        with self._lock:
            place.connection = connection
            if place not in self._taken:
                raise ConnectionAbortedError("sent away")

    def give_back(self, place: Place) -> None:
        """The connection has ended."""
        with self._lock:
            self._taken.discard(place)
            self._waited_for.pop(place, None)

    @contextlib.contextmanager
    def at_work(self, place: Place) -> Iterator[None]:
        """While the server itself is at work for a client, the client keeps its place."""
        with self._lock:
            self._waited_for.pop(place, None)
        try:
            yield
        finally:
            with self._lock:
                if place in self._taken:
                    self._waited_for[place] = None

    def _send_away_the_longest(self) -> bool:
        longest = next(iter(self._waited_for), None)
        if longest is None:
            return False
        self._waited_for.pop(longest)
        self._taken.discard(longest)
        with contextlib.suppress(OSError):
            # Not the TLS socket's own method, which would forget its keys under the hands of the thread that uses it.
            socket.socket.shutdown(longest.connection, socket.SHUT_RDWR)
        return True
