"""Reads who listens already where the exporter is to."""

from collections.abc import Iterator
from pathlib import Path

from exporter.config import Config
from exporter.doctor.facts import Holder, Watcher
from exporter.parse.proc import TcpListener, tcp_listeners
from exporter.sources.proc import Proc

_MOST_BYTES = 1 << 22


def read_holders(config: Config, watcher: Watcher, proc: Proc) -> tuple[tuple[Holder, ...], str | None]:
    """Who holds the addresses, and what kept that from being seen; systemd may hold them for the service."""
    wanted = [] if config.systemd_socket else [each for each in config.listen if each[1]]
    if not wanted:
        return (), None
    tables = _tables(config.constants.procfs)
    if tables is None:
        return (), "the table of sockets (/proc/net/tcp) cannot be read"
    there = [listener for table in tables for listener in tcp_listeners(table)]
    holders = tuple(_holders(wanted, there, watcher, _inodes(watcher, proc)))
    if holders and watcher.unanswering is not None:
        return (), "a service seems to run, and cannot be asked whether it is that which listens there"
    return holders, None


def _tables(proc: Path) -> tuple[str, ...] | None:
    """Return the tables of TCP sockets of this process's network namespace; None if they cannot be read."""
    tables: list[str] = []
    for name in ("tcp", "tcp6"):
        try:
            with (proc / "self" / "net" / name).open("rb") as file:
                tables.append(file.read(_MOST_BYTES).decode(errors="replace"))
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return tuple(tables) or None


def _holders(
    wanted: list[tuple[str, int]], there: list[TcpListener], watcher: Watcher, ours: frozenset[int] | None
) -> Iterator[Holder]:
    for host, port in wanted:
        holder = next((each for each in there if each.conflicts_with(host, port)), None)
        if holder is not None:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            mine = holder.uid == watcher.uid if ours is None else holder.inode in ours
            yield Holder(address=address, uid=holder.uid, is_service=watcher.is_service and mine)


def _inodes(watcher: Watcher, proc: Proc) -> frozenset[int] | None:
    """The sockets that the service has; None where that may not be seen, so that its user must do."""
    named = (path for path in proc.open_files(watcher.pid) if path.startswith("socket:["))
    inodes = frozenset(int(path[8:-1]) for path in named if path[8:-1].isdecimal())
    return inodes or None
