"""Tables in the replies of protocol 3 of `nvidia-cuda-mps-control` (R615).

Source: NVIDIA's MPS guide, release 615, and outputs of driver 615 that NVIDIA published. Not tried on hardware. A new
release may add columns and rows, so a table is read by the names in its header, and what is unknown is counted.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from exporter.model.dialect import PROTOCOL_3
from exporter.parse.control_reply import is_device_uuid

LIST_SERVERS = PROTOCOL_3.list_servers
LIST_CLIENTS = PROTOCOL_3.list_clients
LIST_NAMESPACES = PROTOCOL_3.list_namespaces
LIST_DEVICES = PROTOCOL_3.list_devices
LIST_PARTITIONS = PROTOCOL_3.list_partitions

DEFAULT_NAMESPACE = "default"  # The namespace that each server has. The limits of a server are those of this namespace.

MAX_ROWS = 4096  # Rows that are read of one table. NVIDIA's limit is 60 clients for each device.
_NAME = re.compile(r"[a-z0-9_]{1,64}")  # names of servers and namespaces, and of their directories (guide, release 615)
_PID = re.compile(r"[0-9]{1,9}")


class Columns(NamedTuple):
    """The documented columns of a table in their order. The text of the `free` one may contain commas."""

    names: tuple[str, ...]
    free: str | None = None
    aliases: Mapping[str, str] | None = None


_TABLES = {
    LIST_SERVERS: Columns(
        ("name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids"), "allowed-devices"
    ),
    # The guide's example has `namespace`, the program of driver 615 `MAWS NS`.
    LIST_CLIENTS: Columns(("pid", "server", "device", "namespace", "cmd"), "cmd", {"maws-ns": "namespace"}),
    LIST_NAMESPACES: Columns(
        (
            *("name", "server", "server-status", "pinned-memory-limit", "active-thread-percentage"),
            *("client-priority", "pipe-directory"),
        )
    ),
    LIST_DEVICES: Columns(
        ("ordinal", "server", "pci-id", "device-uuid", "name", "total-sms", "total-chunks", "attributes"), "attributes"
    ),
    LIST_PARTITIONS: Columns(
        ("server", "device", "name", "chunks", "sm-count", "include-remainder", "status", "visible-uuid")
    ),
}


class Table(NamedTuple):
    """The rows of a reply by documented column names, and how many columns and rows are unknown."""

    rows: tuple[Mapping[str, str], ...] = ()
    unknown_columns: int = 0
    unknown_rows: int = 0


def parse_table(command: str, stdout: str) -> Table | None:
    """Return the table in the reply to a command; None if the reply has no header, or another command was sent.

    An empty reply has no header, so that it never looks like a table without rows. A row with another number of cells
    is unknown.
    """
    columns = _TABLES.get(command)
    lines = (line for line in stdout.splitlines() if line.strip())
    header = next(lines, None)
    if columns is None or header is None:
        return None
    names = [_column(columns, cell) for cell in _cells(header)]
    known = [name for name in names if name in columns.names]
    if columns.names[0] not in known or len(known) < len(columns.names) / 2 or len(set(known)) < len(known):
        return None
    rows: list[Mapping[str, str]] = []
    unknown_rows = 0
    for number, line in enumerate(lines):
        cells = _joined(_cells(line), names, columns.free) if number < MAX_ROWS else []
        if len(cells) == len(names):
            rows.append({name: cell for name, cell in zip(names, cells, strict=True) if name in columns.names})
        else:
            unknown_rows += 1
    return Table(rows=tuple(rows), unknown_columns=len(names) - len(known), unknown_rows=unknown_rows)


def _column(columns: Columns, cell: str) -> str:
    name = re.sub(r"[\s_]+", "-", cell.strip().lower())
    return (columns.aliases or {}).get(name, name)


def _cells(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error:
        return []


def _joined(cells: list[str], names: Sequence[str], free: str | None) -> list[str]:
    """Return the cells of a row. Those that are too many belong to the column whose text may contain commas."""
    surplus = len(cells) - len(names)
    if surplus <= 0 or free not in names:
        return cells
    at = names.index(free)
    return [*cells[:at], ",".join(cells[at : at + surplus + 1]), *cells[at + surplus + 1 :]]


class ServerRow(NamedTuple):
    """A server. `pid` is None if it does not run, `status` the word of the daemon."""

    name: str
    pid: int | None
    uid: int | None
    status: str


class ClientRow(NamedTuple):
    """A client. `device` is a UUID or an ordinal; PID 0 is hidden. Its command line, the last cell, can forge rows."""

    pid: int
    server: str
    device: str
    namespace: str


class NamespaceRow(NamedTuple):
    """A namespace and its limits in the daemon's words."""

    name: str
    server: str
    pinned_memory_limit: str
    active_thread_percentage: str
    client_priority: str


def _filled(table: Table) -> Iterator[Mapping[str, str]]:
    """Yield the rows; a column that the table does not have is empty."""
    return (defaultdict(str, row) for row in table.rows)


def server_rows(table: Table) -> Iterator[ServerRow]:
    """Yield the servers of a table."""
    for row in _filled(table):
        if _NAME.fullmatch(row["name"]):
            pid, status = _number(row["pid"]) or None, row["status"].lower()
            yield ServerRow(name=row["name"], pid=pid, uid=_number(row["uid"]), status=status)


def client_rows(table: Table) -> Iterator[ClientRow]:
    """Yield the clients of a table. The program of driver 615 shows a namespace as `server/namespace (number)`."""
    for row in _filled(table):
        pid, name = _number(row["pid"]), row["namespace"].partition(" ")[0].rpartition("/")[2]
        namespace = name if _NAME.fullmatch(name) else DEFAULT_NAMESPACE
        if pid is not None and _NAME.fullmatch(row["server"]):
            yield ClientRow(pid=pid, server=row["server"], device=row["device"], namespace=namespace)


def namespace_rows(table: Table) -> Iterator[NamespaceRow]:
    """Yield the namespaces of a table."""
    for row in _filled(table):
        if _NAME.fullmatch(row["name"]) and _NAME.fullmatch(row["server"]):
            yield NamespaceRow(*(row[column.replace("_", "-")] for column in NamespaceRow._fields))


def devices_by_ordinal(table: Table) -> Mapping[int, str]:
    """Return the devices' UUIDs by ordinal; empty if two servers number them differently."""
    found: dict[int, str] = {}
    for row in _filled(table):
        ordinal, uuid = _number(row["ordinal"]), row["device-uuid"]
        if ordinal is None or not is_device_uuid(uuid):
            continue
        if found.setdefault(ordinal, uuid) != uuid:
            return {}
    return found


def _number(text: str) -> int | None:
    return int(text) if _PID.fullmatch(text) else None
