"""The two protocols of MPS control daemons: their commands, and what they can do.

No other module decides by a protocol's number. Protocol 2 was
measured on R580. `parse/protocol3.py` has the sources of protocol 3.
"""

from collections.abc import Mapping

from exporter.model.server import Server
from exporter.model.settings import PROTOCOL_VERSION
from exporter.model.values import frozen

LimitCommands = tuple[str, str, str]
"""What sets a memory limit of a `device`, a thread percentage, and a priority, with a place for the `value`."""

_SET_PRIORITY = "set_default_client_priority {value}"  # It also applies to running servers (R580).


@frozen
class Dialect:
    """Commands of a protocol, with a place for a `server`, and its abilities. The defaults are those of protocol 2."""

    number: int = 2
    supported: bool = True  # Whether the exporter can query the daemon.
    list_servers: str = "get_server_list"
    list_clients: str = "get_client_list {server}"  # Those of the server, or of all servers.
    list_devices: str = "device_query --csv"
    list_partitions: str = ""
    list_namespaces: str = ""
    quit_now: str = "quit -t 3"  # It ends the clients too. Without `-t`, it waits until all of them exit.
    end_server: str = "shutdown_server {server}"
    forced: str = " -f"  # It ends a server although clients use it.
    recreated: str = ""
    """How the name of a server begins that the daemon creates again by itself. Others would lose their settings."""
    default_limits: LimitCommands | None = (
        "set_default_device_pinned_mem_limit {device} {value}",
        "set_default_active_thread_percentage {value}",
        _SET_PRIORITY,
    )
    """What sets the limits of future servers; None if no command does."""
    server_limits: LimitCommands = (
        "set_device_pinned_mem_limit {server} {device} {value}",
        "set_active_thread_percentage {server} {value}",
        _SET_PRIORITY,
    )
    named_servers: bool = False
    """Whether commands contain a server's name instead of its PID. It is also the name of its directories."""
    answers_in_tables: bool = False  # Whether each reply is a table of all servers.
    limits_by_namespace: bool = False
    """Whether limits are those of a server's default namespace. They replace a client's own percentage, the memory
    limit is for all devices, and no limit can be set while a client uses the namespace."""
    servers_by_user: bool = False
    """Whether each user has a server, which /proc shows and which may evict clients. Otherwise, users take turns."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables with which a daemon starts with this protocol."""
        return {} if self.number == PROTOCOL_2.number else {PROTOCOL_VERSION: str(self.number)}

    def command_to_end(self, server: Server, *, forced: bool) -> str | None:
        """Return what ends a server; None if the daemon would not create it again."""
        handle = self._handle(server)
        command = self.end_server.format(server=handle) + self.forced * forced
        return command if handle and handle.startswith(self.recreated) else None

    def limit_commands(self, server: Server) -> LimitCommands:
        """Return what sets the limits of a server."""
        memory, threads, priority = (each.replace("{server}", self._handle(server)) for each in self.server_limits)
        return memory, threads, priority

    def _handle(self, server: Server) -> str:
        return (server.name or "") if self.named_servers else str(server.pid)


PROTOCOL_2 = Dialect()
PROTOCOL_3 = Dialect(
    number=3,
    # The default format is a table that shortens PIDs ("316..."; driver 615).
    list_servers="server list --format=csv",
    list_clients="client list --all --format=csv",
    list_devices="device list --format=csv",
    list_partitions="sm-partition list --all --format=csv",
    list_namespaces="namespace list --format=csv",
    quit_now="-q",
    end_server="server delete {server}",
    forced=" --force",
    recreated="uid_",  # The daemon creates `uid_UID` for a user who connects to no named server (guide, release 615).
    default_limits=None,
    server_limits=(
        "server set {server} --pinned-memory-limit={value}",
        "server set {server} --active-thread-percentage={value}",
        "server set {server} --client-priority={value}",
    ),
    named_servers=True,
    answers_in_tables=True,
    limits_by_namespace=True,
    servers_by_user=True,
)
_DIALECTS = {None: PROTOCOL_2, PROTOCOL_2.number: PROTOCOL_2, PROTOCOL_3.number: PROTOCOL_3}


def dialect_of(protocol: int | None) -> Dialect:
    """Return the dialect of a protocol: 2 if the number is not known (None), unsupported for other numbers."""
    return _DIALECTS.get(protocol) or Dialect(number=protocol or 0, supported=False, servers_by_user=True)


MULTI_USER = frozenset(("-M", "-multiuser-server", "--multiuser-server", "-m", "--multiuser"))
"""Options of a daemon with one server for all users; the last two with protocol 3 (NVIDIA's MPS guide)."""

STATIC_PARTITIONING = frozenset(("-S", "--static-partitioning"))
"""Options of a daemon with static SM partitions, with protocol 2."""

MODULES = frozenset(("server", "client", "namespace", "device", "sm-partition"))
"""First words of the commands of protocol 3."""


def is_given_as_arguments(command: str) -> bool:
    """Return whether a command is given as arguments of the program, as are its flags, and not in its input."""
    return command.startswith("-") or command.partition(" ")[0] in MODULES
