"""The connection slots of the web server."""

import contextlib
import re
import socket
import threading
from typing import Any

from exporter.web.pages import MAX_REQUEST_BYTES, Handler

_END = re.compile(rb"\n\r?\n")


class Slot:
    """The slot of one connection, with what the client has sent, and what is left to send to it."""

    def __init__(self, connection: socket.socket, peer: tuple[Any, ...]) -> None:
        self.connection = connection
        self.peer = peer
        self.head = bytearray()
        self.is_whole = False
        """Whether the head of the request is complete, too long, or no HTTP, such as the first message of TLS."""
        self.handler: Handler | None = None
        self.rest: list[memoryview] = []
        self.has_thread = False
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

    def take(self, connection: socket.socket, peer: tuple[Any, ...] = ()) -> tuple[Slot | None, Slot | None]:
        """Return a slot for a new connection, and the one that it replaces.

        There is none if the server works on a request in each slot. If a thread has the replaced one, it gets an error.
        """
        with self._lock:
            longest = None
            if len(self._slots) >= self._limit:
                longest = next((slot for slot, waits in self._slots.items() if waits), None)
                if longest is None:
                    return None, None
                del self._slots[longest]
                if longest.has_thread:
                    with contextlib.suppress(OSError):
                        # SSLSocket.shutdown() would discard the TLS state that the connection's own thread still uses.
                        socket.socket.shutdown(longest.connection, socket.SHUT_RDWR)
            slot = Slot(connection, peer)
            self._slots[slot] = True
            return slot, longest

    def replace_socket(self, slot: Slot, connection: socket.socket) -> None:
        """Use another socket for the connection, such as its TLS socket; OSError if the slot was taken away."""
        with self._lock:
            slot.connection = connection
            self._set(slot, waits=True)

    def release(self, slot: Slot) -> None:
        """Free the slot of a connection that has ended."""
        with self._lock:
            self._slots.pop(slot, None)

    def protect(self, slot: Slot) -> int:
        """Protect a slot while the server works on its request, and count those; OSError if it was taken away."""
        with self._lock:
            self._set(slot, waits=False)
            return sum(not waits for waits in self._slots.values())

    def wait_for(self, slot: Slot) -> None:
        """Make the slot the last one for which the server waits; OSError if it was taken away."""
        with self._lock:
            self._set(slot, waits=True)

    def _set(self, slot: Slot, *, waits: bool) -> None:
        if self._slots.pop(slot, None) is None:
            raise ConnectionAbortedError("a newer connection took the slot")
        self._slots[slot] = waits
