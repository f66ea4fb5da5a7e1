"""The connection slots of the web server."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

from exporter.web.pages import MAX_REQUEST_BYTES

_END = re.compile(rb"\n\r?\n")


class Slot:
    """The slot of one connection, with what the client has sent, and what is left to send to it."""

    def __init__(self, connection: socket.socket, peer: tuple[Any, ...]) -> None:
        self.connection = connection
        self.peer = peer
        self.head = bytearray()
        self.is_whole = False
        """Whether the head of the request is complete, too long, or no HTTP, such as the first message of TLS."""
        self.rest: list[memoryview] = []
        self.event = 0
        """What the thread that receives requests waits for; 0: nothing."""
        self.expires = 0.0

    def add(self, received: bytes) -> None:
        """Add what was received; ConnectionAbortedError if that is the end."""
        if not received:
            raise ConnectionAbortedError("no whole request")
        searched = max(0, len(self.head) - 2)
        self.head += received
        line = self.head.find(b"\n")
        no_http = line >= 0 and self.head.find(b"HTTP/", 0, line) < 0
        self.is_whole = no_http or len(self.head) > MAX_REQUEST_BYTES or _END.search(self.head, searched) is not None


class ConnectionSlots:
    """A fixed number of connection slots, so that clients cannot create threads without bound.

    If all slots are in use, a new connection replaces the one for which the server has waited longest. The server
    waits for a connection until the request is complete, and again while the client reads the answer.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._slots: dict[Slot, bool] = {}
        """Whether the server waits for the slot's client. The slots that have waited longest come first."""

    def take(self, connection: socket.socket, peer: tuple[Any, ...] = ()) -> Slot | None:
        """Return a slot for a new connection; None if the server works on a request in each slot."""
        with self._lock:
            if len(self._slots) >= self._limit:
                longest = next((slot for slot, waits in self._slots.items() if waits), None)
                if longest is None:
                    return None
                del self._slots[longest]
                with contextlib.suppress(OSError):
                    # SSLSocket.shutdown() would discard the TLS state that the connection's own thread still uses.
                    socket.socket.shutdown(longest.connection, socket.SHUT_RDWR)
            slot = Slot(connection, peer)
            self._slots[slot] = True
            return slot

    def replace_socket(self, slot: Slot, connection: socket.socket) -> None:
        """Use another socket for the connection, such as its TLS socket; OSError if the slot was taken away."""
        with self._lock:
            slot.connection = connection
            if slot not in self._slots:
                raise ConnectionAbortedError("a newer connection took the slot")

    def release(self, slot: Slot) -> None:
        """Free the slot of a connection that has ended."""
        with self._lock:
            self._slots.pop(slot, None)

    @contextlib.contextmanager
    def working(self, slot: Slot) -> Iterator[None]:
        """Protect a slot while the server itself works on the request."""
        self._set(slot, waits=False)
        try:
            yield
        finally:
            self._set(slot, waits=True)

    def _set(self, slot: Slot, *, waits: bool) -> None:
        """Make the slot the last one, unless it was taken away."""
        with self._lock:
            if self._slots.pop(slot, None) is not None:
                self._slots[slot] = waits
