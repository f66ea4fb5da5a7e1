"""Tells systemd how the service is, over its notify socket (sd_notify(3))."""

import contextlib
import socket
from collections.abc import Callable, MutableMapping


class Notifier:
    """Speaks to the service manager; says nothing where there is none."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Takes the socket out of the environment: no child is to speak for the service."""
        path = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path

    def ready(self) -> None:
        """The first cycle is complete, or a reload."""
        self._send("READY=1")

    def reloading(self, monotonic: float) -> None:
        """The configuration is read anew, from this time of CLOCK_MONOTONIC on; `ready` when that is done."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={monotonic * 1e6:.0f}")

    def alive(self, status: Callable[[], str]) -> None:
        """Another cycle is complete; `status` makes a line for a person, if the service manager listens."""
        if self._address:
            self._send("WATCHDOG=1", f"STATUS={status()}")

    def stopping(self) -> None:
        """The service ends."""
        self._send("STOPPING=1")

    def _send(self, *fields: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel,
        ):
            # A manager that does not listen must hold nobody up.
            channel.setblocking(False)
            channel.sendto("\n".join(fields).encode(), self._address)
