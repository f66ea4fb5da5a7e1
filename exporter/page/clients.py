"""The page of a client, and pictures of the last ten minutes of clients and GPUs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import isnan
from typing import Any

from exporter.page.hour import Line, line
from exporter.page.tables import linked
from exporter.recent import values_of
from exporter.report.incident_text import client_text
from exporter.report.node_status import status_document
from exporter.report.process_status import client_status
from exporter.report.text import percent, pid_text, size_text
from exporter.view import StatusInput, View

OF_GPU = (("SMs used", 1.0, percent), ("Memory used", 1.0, percent))
OF_CLIENT = (("SMs used", 0.01, percent), ("Memory", 1, lambda b: size_text(int(b))), ("Slowdown", 2, "{:.1f}x".format))
"""Titles of plots, each with the least value that has the whole height, and how a value is written."""


def known_of(data: StatusInput, name: str) -> Mapping[str, Any] | None:
    """Return what the page of the client with this id shows; None if nothing is known of it.

    `incidents` has each with the parts that the client has in it. `client` is what is known now, else at the newest
    incident, and `daemon` and `server` are None if it is not connected. `named` returns the text of another client.
    The document lists no other client, because that would take most of the time.
    """
    document, connected = status_document(data, name), {each.pid: each for _, each in View(data.node).connected()}
    parts = ((incident, part) for incident in document.incidents for part in ("suspects", "affected", "blocking"))
    named = [(*found, each) for found in parts for each in getattr(*found) if each.client == name]
    servers = ((daemon, server) for daemon in document.daemons for server in daemon.servers)
    known: list[Any] = [(each, *found) for found in servers for each in found[1].clients if each.client == name]
    known += [(each, None, None) for _, _, each in named]
    if not known:
        return None

    def text(pid: int) -> str:
        if pid not in connected:
            return pid_text(pid)
        other = client_status(data.node, connected[pid])
        return linked(other, client_text(other))

    incidents = [(of, [part for _, part, _ in group]) for of, group in groupby(named, key=lambda found: found[0])]
    client, daemon, server = known[0]
    count = 0 if server is None else sum(each.server == server.pid for each in connected.values())
    known_now = {"client": client, "daemon": daemon, "server": server, "client_count": count}
    return {"document": document, "incidents": incidents, "named": text, **known_now}


def lines(data: StatusInput, name: str, plots: Iterable[tuple[str, float, Callable[[Any], str]]]) -> Sequence[Line]:
    """Return the last ten minutes of a client or GPU."""
    found = zip(plots, values_of(data.recent, name, data.at), strict=False)
    return [
        line(title, [None if isnan(each) else each for each in values], least, text)
        for (title, least, text), values in found
    ]
