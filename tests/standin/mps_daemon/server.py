"""The MPS server: its clients, their faults, and every line of server.log."""

import time
from collections.abc import Iterable

from .launch import ServerProcess
from .logs import Kind, LogFifo, TruthFile
from .loop import Loop
from .model import Arrival, Client, Limits, State, bytes_of, failure_domain
from .names import BINARY_VERSION, GPU_NAME
from .settings import Settings

DISCONNECT_SECONDS = 0.015
"""Seconds from the end of a client's contexts to the end of its connection, after a normal exit."""

FAULT_AFTER_KILL_SECONDS = 0.15
"""Seconds from the death of a client during a kernel to the fault of the others."""

DISCONNECT_AFTER_FAULT_SECONDS = 0.05

FIRST_GARBAGE = "{PID: -1333654781, Context ID: 0}"
LATER_GARBAGE = "{PID: 4, Context ID: 669254896}"
"""Number in the real log before the next client's PID is known: uninitialized memory."""


class Server:
    """A server process, its clients, and its log."""

    def __init__(
        self,
        process: ServerProcess,
        uid: int,
        limits: Limits,
        settings: Settings,
        log: LogFifo,
        truth: TruthFile,
        loop: Loop,
    ) -> None:
        self.process = process
        self.pid = process.pid
        self.uid = uid
        self.limits = limits
        self.state = State.INITIALIZING
        self.ready_at = 0.0
        self.clients: dict[int, Client] = {}
        """The clients with CUDA contexts, by PID."""
        self._leaving_clients = 0
        self._settings = settings
        self._log = log
        self._truth = truth
        self._loop = loop
        self._stale_request = FIRST_GARBAGE
        self._device_contexts: set[int] = set()
        self._devices_in_reset: set[int] = set()
        self._last_number = 0
        for text in ("Startup", self._where_control_is(), "Initializing server process"):
            log.write(Kind.OTHER, self.pid, text)

    def write(self, text: str) -> None:
        """Write a line of server.log."""
        self._log.write(Kind.SERVER, self.pid, text)

    # -- start and end ---------------------------------------------------------------------------------------------

    def become_ready(self) -> None:
        """Make the contexts; clients can then connect."""
        self._make_device_contexts(range(len(self._settings.gpus)))
        self.write(f"Created anonymous shared memory region mps.shm.{self.uid}.{self.pid}")
        self.write(f"CUDA MPS Server for Linux/Unix. Binary version: {BINARY_VERSION}")
        self.write(f"Display Driver version: {self._settings.driver}")
        self.write(f"Active Threads Percentage set to {self.limits.active_thread_percentage}")
        for device, limit in reversed(self.limits.pinned_memory.items()):
            self._log_memory_limit(device, limit)
        self.write(f"Server Priority set to {self.limits.client_priority}")
        self.write("Server has started")
        self.ready_at = time.time()
        self.state = State.ACTIVE

    def may_exit(self) -> bool:
        """Handle a shutdown request: return whether the server exits, and log it."""
        self.write("Server has been notified to shutdown")
        if self.worker_threads:
            self.write(f"Server was unable to shutdown due to {self.worker_threads} active clients")
            return False
        self.write("Waiting for current clients to finish")
        self.write("Exiting")
        self._truth.add("left", self.pid)
        self.state = State.LEAVING
        return True

    @property
    def worker_threads(self) -> int:
        """The number of threads: one for each connection and each context."""
        return self._leaving_clients + sum(1 + len(client.contexts) for client in self.clients.values())

    # -- limits ----------------------------------------------------------------------------------------------------

    def limit_memory(self, device: int, limit: str) -> None:
        """Set the memory limit of later clients."""
        self.limits.pinned_memory[device] = limit
        self._log_memory_limit(device, limit)

    def prioritize(self, priority: int) -> None:
        """Set the priority."""
        self.limits.client_priority = priority
        self.write(f"Client Priority set to {priority}")

    def _log_memory_limit(self, device: int, limit: str) -> None:
        self.write(f"Device pinned memory limit for device {device} set to {bytes_of(limit):#x} bytes")

    # -- clients ---------------------------------------------------------------------------------------------------

    def connect(self, arrival: Arrival) -> Client | None:
        """Connect a process; None if the server refuses it during a fault."""
        self._last_number += 1
        client = Client(arrival.pid, self._last_number, limits=self.limits.copy(), command=arrival.command)
        self.write(f"Received new client request for {self._stale_request}")
        if self.state is State.FAULT:
            self.write(f"Server teardown in progress. Refusing to accept new client {client.label(0)}")
            self.write(f"Failed to accept client {client.label(0)} with status 807")
            self._stale_request = client.label(0)
            return None
        self._make_device_contexts(arrival.devices)
        self._serve(client, 0)
        return client

    def make_context(self, client: Client, device: int) -> bool:
        """Make a context of a client on a device; False if the server is full."""
        context = len(client.contexts) + 1
        self.write(f"Received new client request for {self._stale_request}")
        self._serve(client, context)
        self.write(f"Device {GPU_NAME} (uuid {self._settings.gpus[device]}) is associated")
        if client.pid not in self.clients and len(self.clients) >= self._settings.max_clients:
            self._refuse_one_too_many(client)
            return False
        client.contexts[context] = device
        self.clients[client.pid] = client
        self.write(f"Status of client {client.label(context)} is ACTIVE")
        return True

    def _serve(self, client: Client, context: int) -> None:
        self.write(f"Client {client.label(context)} connected")
        self.write(f"Creating worker thread for client {client.label(context)}")
        self._stale_request = client.label(context)

    def _refuse_one_too_many(self, client: Client) -> None:
        limit = self._settings.max_clients
        self.write(f"Failed to accept new client. Maximum number of clients ({limit}) reached.")
        self.write(f"Client process {client.pid} disconnected")
        self._close_connection_later(client, DISCONNECT_AFTER_FAULT_SECONDS)

    def disconnect(self, client: Client) -> None:
        """Handle the end of a client, also of one that a fault affected."""
        self._end_contexts(client)
        self._close_connection_later(client, DISCONNECT_SECONDS)

    def terminate(self, client: Client) -> None:
        """Handle `terminate_client`."""
        first = client.label(1)
        self.write(f"MPS server requesting client {first} to exit")
        self._lose_contact(client)
        self.write("Client termination succeeded.")
        self._finish_contexts(client)
        self._close_connection_later(client, DISCONNECT_SECONDS)

    def _end_contexts(self, client: Client) -> None:
        self._lose_contact(client)
        self._finish_contexts(client)

    def _lose_contact(self, client: Client) -> None:
        for context in reversed(client.contexts):
            self._lose(client, context)

    def _lose(self, client: Client, context: int) -> None:
        label = client.label(context)
        self.write(f"Server failed to recevie command with status 806, assuming client {label} exit")

    def _finish_contexts(self, client: Client) -> None:
        del self.clients[client.pid]
        self._truth.add("gone", self.pid, "client", client.pid)
        others = sum(len(other.contexts) for other in self.clients.values())
        for context in reversed(client.contexts):
            left = others + context - 1
            label = client.label(context)
            self.write(f"Client {label} exiting. Number of active client contexts is {left}.")
        self._reset_idle_devices()

    def _close_connection_later(self, client: Client, seconds: float) -> None:
        self._leaving_clients += 1
        self._loop.later(seconds, lambda: self._close_connection(client))

    def _close_connection(self, client: Client) -> None:
        if self.state is State.LEAVING:
            return
        self._leaving_clients -= 1
        self._stale_request = LATER_GARBAGE
        self._lose(client, 0)
        self.write(f"Client process {client.pid} disconnected")

    # -- faults ----------------------------------------------------------------------------------------------------

    def die_during_kernel(self, client: Client) -> None:
        """Handle the death of a client during a kernel: it exits first, then the fault affects the others.

        Its connection is closed only after the fault.
        """
        devices = client.devices
        self._end_contexts(client)
        self._close_connection_later(client, FAULT_AFTER_KILL_SECONDS + DISCONNECT_AFTER_FAULT_SECONDS)
        self._loop.later(FAULT_AFTER_KILL_SECONDS, lambda: self._fault_if_shared(client.pid, devices))

    def _fault_if_shared(self, cause: int, devices: frozenset[int]) -> None:
        victims, _ = failure_domain(list(self.clients.values()), devices)
        if victims and self.state is not State.LEAVING:
            self.fault(cause, devices, victims[0])

    def fault(self, cause: int, devices: frozenset[int], named: Client | None) -> None:
        """A fatal error on ``devices``: write all that the real server writes, which never names the cause.

        ``named`` is the client in the first line, some client with work on the GPU; None for a trap, which has no
        such line.
        """
        victims, reached = failure_domain(list(self.clients.values()), devices)
        kind = "trap" if named is None else "memory"
        self._truth.add("fault", self.pid, kind, cause, *(victim.pid for victim in victims))
        if named is not None:
            self.write(f"Client {{PID: {named.pid}, Context: 1}} encountered a fatal GPU error.")
        self.write("Server is handling a fatal GPU error.")
        for device in sorted(reached):
            self._tear_down_device(victims, device)
        for victim in victims:
            self._tear_down_process(victim)
        self.write("The following devices will be reset:")
        for device in sorted(reached):
            self.write(str(device))
        self.write("The following client process have a sticky error set:")
        for victim in victims:
            self.write(str(victim.pid))
        self._devices_in_reset |= reached
        self.state = State.FAULT

    def _tear_down_device(self, victims: list[Client], device: int) -> None:
        for victim in victims:
            for context, its_device in victim.contexts.items():
                if its_device == device:
                    self.write(f"Client {victim.label(context)} on device {device} to be torn down")

    def _tear_down_process(self, victim: Client) -> None:
        self.write(f"All clients belonging to error trigging process {victim.pid} will be torn down")
        for context in victim.contexts:
            self.write(f"Client {victim.label(context)} on the error-trigging process {victim.pid} to be torn down")

    def _reset_idle_devices(self) -> None:
        """Reset devices without affected clients. The last reset ends the fault."""
        in_use = {device for client in self.clients.values() for device in client.devices}
        for device in sorted(self._devices_in_reset - in_use):
            self.write(f"Destroy server context on device {device} ({GPU_NAME})")
            self._device_contexts.discard(device)
            self._devices_in_reset.discard(device)
        if self.state is State.FAULT and not self._devices_in_reset:
            self.state = State.ACTIVE

    def _make_device_contexts(self, devices: Iterable[int]) -> None:
        for device in devices:
            if device not in self._device_contexts:
                self.write(f"Creating server context on device {device} ({GPU_NAME})")
                self._device_contexts.add(device)

    def _where_control_is(self) -> str:
        return f"Connecting to control daemon on socket: {self._settings.pipe_directory}/control"
