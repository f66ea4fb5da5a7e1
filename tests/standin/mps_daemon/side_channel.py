"""Commands of a test: a socket `standin` in the pipe directory that reads one line and answers with one.

    connect PID UID DEVICES ARGV0
                                 a process becomes a client (DEVICES: the daemon's ordinals, separated by commas);
                                 `ps` shows ARGV0, or that of the process if it is empty
    attach DEVICES               the process at the other end becomes a client of user 0; it disconnects when every
                                 process that has this connection has ended, as with the real daemon
    disconnect PID               it exits
    kill PID                     it dies during a kernel, which is a fault for clients that share a GPU with it
    fault PID memory|trap        a fatal fault; for a memory fault, the log names the client
    limits PID                   returns a client's limits: percentage, and memory by device, as 40.0 0=2G
    outcome PID                  returns pending, active, refused or gone
    session                      returns the PID of the process with the session, or 0
    server                       returns PID;STATE;READY_AT;PERCENTAGE;MEMORY;CLIENTS of its server, or none
    slow SECONDS                 delays every reply
    deaf on|off                  commands succeed with empty replies
    say control|server TEXT      writes a line into a log

The answer is `ok ...`, or `error: ...`.
"""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from . import sockets
from .loop import Loop
from .model import Arrival, Client, Limits, Outcome
from .server import Server

if TYPE_CHECKING:
    from .control import ControlDaemon


NAME = "standin"


class SideChannelError(Exception):
    """The request of the test is not possible now."""


class SideChannel:
    """The side channel of a daemon."""

    def __init__(self, daemon: "ControlDaemon", loop: Loop) -> None:
        self._daemon = daemon
        self._loop = loop

    def listen(self, directory: Path) -> None:
        """Listen at the socket `standin`."""
        listener = sockets.listen(directory, NAME)
        self._loop.watch(listener.fileno(), lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        request = connection.recv(sockets.LARGEST_MESSAGE).decode()
        if request.startswith("attach "):
            self._attach(connection, request.removeprefix("attach "))
            return
        with connection:
            try:
                connection.send(self._execute(request).encode())
            except OSError:
                return

    def _attach(self, connection: socket.socket, devices: str) -> None:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, sockets.PEER.size)
        arrival = Arrival(sockets.PEER.unpack(data)[0], 0, tuple(map(int, devices.split(","))), "")
        # The daemon makes both ends of a client's connection (measured, R580).
        own, of_client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with connection, of_client:
            socket.send_fds(connection, [b"ok"], [of_client.fileno()])
        self._loop.later(0, lambda: self._daemon.arrive(arrival, own))

    def _execute(self, request: str) -> str:
        try:
            answer = self._answer(*request.partition(" ")[::2])
            self._daemon.log.flush()
            return f"ok {answer}"
        except (KeyError, ValueError, SideChannelError) as problem:
            return f"error: {request!r}: {problem!r}"

    def _answer(self, verb: str, rest: str) -> object:
        daemon = self._daemon
        match verb:
            case "connect":
                self._connect(rest)
            case "disconnect":
                self._end(rest, Server.disconnect)
            case "kill":
                self._end(rest, Server.die_during_kernel)
            case "fault":
                cause, kind = rest.split()
                if kind not in ("memory", "trap"):
                    raise SideChannelError("a fault is of memory or a trap")
                server, client = self._client(cause)
                server.fault(client.pid, client.devices, client if kind == "memory" else None)
            case "limits":
                limits = self._client(rest)[1].limits
                return " ".join((str(limits.active_thread_percentage), *_memory(limits)))
            case "outcome":
                return daemon.outcomes[int(rest)]
            case "session":
                return daemon.sessions.holder()
            case "server":
                return self._server()
            case "slow":
                daemon.sessions.reply_seconds = float(rest)
            case "deaf":
                daemon.sessions.deaf = rest == "on"
            case "say":
                self._say(*rest.partition(" ")[::2])
            case _:
                raise SideChannelError("no such request")
        return ""

    def _connect(self, rest: str) -> None:
        """Connect a client after the reply, because a stopped server blocks the daemon and must not block the test."""
        pid, uid, devices, command = (*rest.split(" ", 3), "")[:4]
        arrival = Arrival(int(pid), int(uid), tuple(int(device) for device in devices.split(",")), command)
        if not all(0 <= device < len(self._daemon.settings.gpus) for device in arrival.devices):
            raise SideChannelError("no such device")
        self._loop.later(0, lambda: self._daemon.arrive(arrival))

    def _end(self, pid: str, how: Callable[[Server, Client], None]) -> None:
        if self._daemon.outcomes.get(int(pid)) not in (Outcome.PENDING, Outcome.ACTIVE):
            raise SideChannelError("no such client")
        self._daemon.depart(int(pid), how)

    def _client(self, pid: str) -> tuple[Server, Client]:
        server = self._daemon.server
        if server is None or int(pid) not in server.clients:
            raise SideChannelError("no such client")
        return server, server.clients[int(pid)]

    def _server(self) -> str:
        """Return the server's state without a query of its process, which could be stopped."""
        server = self._daemon.server
        if server is None:
            return "none"
        memory, clients = ",".join(_memory(server.limits)), ",".join(map(str, server.clients))
        state, percentage = server.state, server.limits.active_thread_percentage
        return f"{server.pid};{state};{server.ready_at:.3f};{percentage};{memory};{clients}"

    def _say(self, log: str, text: str) -> None:
        if log == "control":
            self._daemon.write(text)
        elif self._daemon.server is not None:
            self._daemon.server.write(text)
        else:
            raise SideChannelError("there is no server")


def _memory(limits: Limits) -> list[str]:
    return [f"{device}={limit}" for device, limit in sorted(limits.pinned_memory.items())]
