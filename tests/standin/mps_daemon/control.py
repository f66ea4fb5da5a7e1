"""The control daemon: its files, its users, the start and end of its server, and control.log."""

import fcntl
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from . import launch, wording
from .commands import Commands
from .logs import Kind, LogFifo, LogFiles, TruthFile
from .loop import Loop, ProcessWatch
from .model import Arrival, Client, Limits, Outcome, State
from .names import BINARY_VERSION, pid_file, take_comm
from .protocol3 import Commands3, server_name
from .server import Server
from .sessions import Respond, Sessions
from .settings import Settings
from .side_channel import SideChannel

FIRST_BACKOFF_MS = 200
SERVER_START_SECONDS = 0.1

ERRORS = "standin.errors"
"""File in the pipe directory for errors of the stand-in itself."""


TRUTH = "standin.truth"


class ControlDaemon:
    """A control daemon with at most one server. Each user has a server of their own, one after another."""

    def __init__(self, settings: Settings, loop: Loop, foreground: bool) -> None:
        self.settings = settings
        self.limits = Limits(active_thread_percentage=settings.active_thread_percentage)
        self.server: Server | None = None
        self.outcomes: dict[int, Outcome] = {}
        self._loop = loop
        self.log = LogFifo(
            settings.pipe_directory / "log",
            LogFiles(None if foreground else settings.log_directory),
            partial(wording.line, settings.driver),
        )
        self._truth = TruthFile(settings.pipe_directory / TRUTH)
        self._pending: list[Arrival] = []
        self._processes = ProcessWatch(loop)
        self._shutting_down = False
        self._leaving_server_asked = False
        self._finish_quit: Callable[[], None] | None = None
        commands = Commands3(self) if settings.protocol == 3 else Commands(self)
        execute = wording.executed_by(settings.driver, commands.execute)
        self.sessions = Sessions(loop, self.write, self.log.flush, execute, settings.asked_by)

    # -- start and end ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the files, replace those of an earlier daemon, and listen."""
        directory = self.settings.pipe_directory
        wording.write_branch(directory, self.settings.driver)
        for name in ("control", "control_privileged"):
            self.sessions.listen(directory, name)
        SideChannel(self, self._loop).listen(directory)
        self.write(f"Starting control daemon using socket {directory}/control")
        word = "env " if self.settings.protocol == 2 else ""
        self.write(f"To connect CUDA applications to this daemon, set {word}CUDA_MPS_PIPE_DIRECTORY={directory}")
        self.write(f"CUDA MPS Control binary version: {BINARY_VERSION}")
        Path(pid_file(directory)).write_text(f"{os.getpid()}\n")
        self._open_to_all("control", "control_lock", Path(pid_file(directory)).name)

    def _open_to_all(self, *names: str) -> None:
        """Set the modes of the real files. They do not decide which users the daemon obeys."""
        for name in names:
            (self.settings.pipe_directory / name).chmod(0o666)

    def quit(self, timeout: int | None, respond: Respond) -> None:
        """End after the server: at once if it has no clients, by force after the timeout."""
        self._finish_quit = lambda: respond("")
        if timeout is not None:
            self.write(f"quit command issued with timeout of {timeout}")
            self._loop.later(timeout, self._force_quit)
        if self.server is None:
            self._exit()
        else:
            self.shut_down_server()

    def _force_quit(self) -> None:
        if self.server is not None and self.server.state is not State.LEAVING:
            self.shut_down_server(force=True)

    def _exit(self) -> None:
        self.write("Exit with status 0")
        directory = self.settings.pipe_directory
        self.log.remove()
        Path(pid_file(directory)).unlink(missing_ok=True)
        if self._finish_quit is not None:
            self._finish_quit()
        self._loop.later(self.sessions.reply_seconds, self._loop.stop)

    def write(self, text: str) -> None:
        """Write a line of control.log."""
        self.log.write(Kind.CONTROL, os.getpid(), text)

    # -- the server ------------------------------------------------------------------------------------------------

    def start_server(self, uid: int) -> None:
        """Start a server for a user."""
        process = launch.ServerProcess(self.log.fileno(), self.settings.pipe_directory)
        if self.settings.protocol == 3:
            self.log.files.server_directory = server_name(uid)
        self.log.write(Kind.CONTROL, process.pid, f"Starting new server {process.pid} for user {uid}")
        server = Server(process, uid, self.limits.copy(), self.settings, self.log, self._truth, self._loop)
        self.server = server
        self._processes.watch(process.pid, self._server_ended)
        self.write("Accepting connection...")
        self._loop.later(SERVER_START_SECONDS, lambda: self._server_ready(server))

    def _server_ready(self, server: Server) -> None:
        if server is not self.server or not server.process.answers():
            return
        server.become_ready()
        self.write(f"NEW SERVER {server.pid}: Ready")
        waiting, self._pending = self._pending, []
        for arrival in waiting:
            if arrival.uid == server.uid:
                self._admit(server, arrival)
            else:
                self._pending.append(arrival)
        if self._pending:
            self.shut_down_server()

    def _server_ended(self) -> None:
        """Handle the server's exit or kill, which have the same log line in the real daemon."""
        server, self.server = self.server, None
        self._shutting_down = self._leaving_server_asked = False
        if server is None:
            return
        server.process.reap()
        server.state = State.LEAVING
        self.write(f"Server {server.pid} exited with status 0")
        for pid in server.clients:
            self._forget(pid)
        if self._finish_quit is not None:
            self._exit()
        elif self._pending:
            self.start_server(self._pending[0].uid)

    def shut_down_server(self, force: bool = False) -> None:
        """Request the server's exit. While it has clients, repeat after twice the time."""
        if force or not self._shutting_down:
            self._shutting_down = True
            self._try_shutting_down(FIRST_BACKOFF_MS, first=True, force=force)

    def _try_shutting_down(self, wait_ms: int, first: bool = False, force: bool = False) -> None:
        server = self.server
        if server is None or server.state is State.LEAVING or not self._shutting_down:
            return
        server.process.answers()
        self.write(f"Try shutting down server {server.pid}, backoff is {'disabled' if first else 'enabled'}")
        if server.may_exit():
            self._loop.later(self.settings.server_leaves_seconds, server.process.dismiss)
            return
        self.write(f"Server {server.pid} has {server.worker_threads} active worker threads. Server will not shutdown.")
        if force:
            self.write(f"Force shutting down server {server.pid}")
            self._truth.add("forced", server.pid)
            self._shutting_down = False  # The next try would find the server before its end is noticed.
            server.process.kill()
            return
        self.write(f"Control will try shutting down server {server.pid} again in at most {wait_ms}ms")
        self._loop.later(wait_ms / 1000, partial(self._try_shutting_down_again, server, wait_ms * 2))

    def _try_shutting_down_again(self, server: Server, wait_ms: int) -> None:
        if server is self.server:
            self._try_shutting_down(wait_ms)

    def exiting_server_reports_fault(self) -> bool:
        """Return whether a server that just exited is reported in FAULT, which the first query gets."""
        first_time, self._leaving_server_asked = not self._leaving_server_asked, True
        return first_time

    # -- clients ---------------------------------------------------------------------------------------------------

    def arrive(self, arrival: Arrival, connection: socket.socket | None = None) -> None:
        """Handle a new client: connect it to the server, or start a server first.

        It ends with its process, or if it has a connection, with the last process that has this one.
        """
        if self.settings.several_users:
            # All clients appear as those of root (NVIDIA's MPS guide).
            arrival = replace(arrival, uid=0)
        if connection is None:
            self._processes.watch(arrival.pid, lambda: self.depart(arrival.pid))
        else:
            self._loop.watch(connection.fileno(), partial(self._connection_closed, arrival.pid, connection))
        for text in ("Accepting connection...", "User did not send valid credentials", "Accepting connection..."):
            self.write(text)
        server = self.server
        if server is not None and server.uid == arrival.uid and server.state in (State.ACTIVE, State.FAULT):
            self.write(f"NEW CLIENT {arrival.pid} from user {arrival.uid}: Server already exists")
            self._admit(server, arrival)
            return
        self.write(
            f"NEW CLIENT {arrival.pid} from user {arrival.uid}: Server is not ready, push client to pending list"
        )
        self.outcomes[arrival.pid] = Outcome.PENDING
        self._pending.append(arrival)
        if server is None:
            self.start_server(arrival.uid)
        elif server.state in (State.ACTIVE, State.FAULT):
            self.shut_down_server()

    def _admit(self, server: Server, arrival: Arrival) -> None:
        """Make the connection and one context for each device."""
        server.process.answers()
        client = server.connect(arrival)
        for device in arrival.devices if client is not None else ():
            self.write("Accepting connection...")
            self.write(f"NEW CLIENT {arrival.pid} from user {arrival.uid}: Server already exists")
            if client is not None and not server.make_context(client, device):
                client = None
                break
        self.outcomes[arrival.pid] = Outcome.REFUSED if client is None else Outcome.ACTIVE
        if client is None:
            self._processes.unwatch(arrival.pid)

    def depart(self, pid: int, how: Callable[[Server, Client], None] = Server.disconnect) -> None:
        """Handle the end of a client or a waiting process."""
        self._pending = [arrival for arrival in self._pending if arrival.pid != pid]
        self._forget(pid)
        if self.server is not None and pid in self.server.clients:
            how(self.server, self.server.clients[pid])

    def _connection_closed(self, pid: int, connection: socket.socket) -> None:
        self._loop.unwatch(connection.fileno())
        connection.close()
        self.depart(pid)

    def _forget(self, pid: int) -> None:
        self._processes.unwatch(pid)
        self.outcomes[pid] = Outcome.GONE


def main(arguments: list[str]) -> int:
    """Run a daemon until `quit`."""
    take_comm()
    settings, foreground = Settings.from_environment(options=arguments), arguments[0] == "-f"
    settings.pipe_directory.mkdir(parents=True, exist_ok=True)
    lock = (settings.pipe_directory / "control_lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("An instance of this daemon is already running", flush=True)
        return 1
    loop = Loop()
    ControlDaemon(settings, loop, foreground).start()
    launch.report_ready(settings.pipe_directory / ERRORS)
    loop.run()
    return 0
