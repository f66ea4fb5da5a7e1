"""The cells of the tables, for a status document with one value changed."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from exporter.page import tables
from exporter.report.document import StatusDocument
from exporter.report.node_status import status_document
from tests.builders import DAEMON, GPU, OTHER_GPU
from tests.kernels import use
from tests.page.inputs import attributed, busy, dead

BUSY = status_document(busy())
GIB = 1 << 30


def cells(found: tables.Table) -> list[dict[str, str]]:
    """Return the rows, with the cells by their headings. A bar is `[class x width ...]`."""

    def text(cell: str) -> str:
        bar = r'<rect class="([\w ]+)" x="([\d.]+)%" width="([\d.]+)%" height="100%"/>'
        cell = re.sub(r"<[^>]*>", "", re.sub(bar, r"[\1 \2 \3]", cell))
        return cell.replace("\N{NO-BREAK SPACE}", " ")

    return [dict(zip(found.headings, map(text, row.split("<td>")), strict=True)) for row in found.rows]


def daemon(**changed: Any) -> StatusDocument:
    return replace(BUSY, daemons=(replace(BUSY.daemons[0], **changed),))


def server(**changed: Any) -> StatusDocument:
    return daemon(servers=(replace(BUSY.daemons[0].servers[0], **changed),))


def gpu(**changed: Any) -> StatusDocument:
    return replace(BUSY, gpus=(replace(BUSY.gpus[0], **changed),))


@pytest.mark.parametrize(
    ("changed", "heading", "cell"),
    [
        ({"clients_limit": 48}, "Clients", "[client 0.0 6.2]3 of 48"),
        ({"clients_limit": 4}, "Clients", "[client 0.0 75.0]3 of 4"),
        ({"clients_limit": 3}, "Clients", "[client taken 0.0 100.0]3 of 3"),
        ({"clients_limit": 2}, "Clients", "[client taken 0.0 100.0]3 of 2"),
        ({"clients_limit": None}, "Clients", "3"),
        ({"clients_known": False}, "Clients", "unknown"),
        ({"state": None}, "State", "unknown"),
        ({"active_thread_ratio": None}, "Limits of its clients", ""),
        ({"active_thread_ratio": 1.0}, "Limits of its clients", "100 % of threads"),
        ({"active_thread_ratio": 0.125}, "Limits of its clients", "12.5 % of threads"),
        ({"low_priority": True}, "Limits of its clients", "priority below normal"),
        ({"pinned_memory_limit_bytes": {GPU: 2 * GIB}}, "Limits of its clients", "2 GiB on GPU 0"),
        (
            {"pinned_memory_limit_bytes": {GPU: 2 * GIB, OTHER_GPU: 2 * GIB}},
            "Limits of its clients",
            "2 GiB on GPUs 0 and 1",
        ),
        (
            {"pinned_memory_limit_bytes": {GPU: 2 * GIB, OTHER_GPU: GIB}},
            "Limits of its clients",
            "2 GiB on GPU 0; 1 GiB on GPU 1",
        ),
    ],
)
def test_the_row_of_a_server(changed: Mapping[str, Any], heading: str, cell: str) -> None:
    (row,) = cells(tables.servers(server(**changed)))
    assert row.get(heading, "") == cell


@pytest.mark.parametrize(
    ("state", "up", "shown"),
    [
        ("active", True, "well active"),
        ("fault", True, "critical fault"),
        ("recovering", True, "warning recovering"),
        (None, True, "unknown unknown"),
        ("fault", False, "unknown unknown; last fault"),
    ],
)
def test_the_state_of_a_server_has_a_colour(state: str | None, up: bool, shown: str) -> None:
    document = daemon(state="up" if up else "unresponsive", servers=(replace(BUSY.daemons[0].servers[0], state=state),))
    (row,) = tables.servers(document).rows
    assert '<b class="state {}">{}</b>'.format(*shown.split(" ", 1)) in row


@pytest.mark.parametrize(
    ("changed", "heading", "cell"),
    [
        ({"clients_known": True}, "Clients", "3"),
        ({"clients_known": False}, "Clients", "at least 3"),
        ({"expected": True, "unit": "a.service"}, "Started by", "a.service"),
        ({"expected": False, "owner": "alice"}, "Started by", "alice (not expected)"),
        ({"expected": False, "owner": ""}, "Started by", "(not expected)"),
        ({"refused": {"limit": 2, "fault": 0, "other": 1}}, "Refused", "2 (limit), 1 (other)"),
        ({"refused": {"limit": 0}}, "Refused", ""),
        ({"state_since": None}, "For", ""),
        ({"pid": None}, "PID", ""),
        ({"died": 0}, "Died", ""),
        ({"died": 1}, "Died", "1"),
        ({"active_thread_ratio": 1.0}, "Limits of a new server", ""),
        ({"active_thread_ratio": 0.5}, "Limits of a new server", "50 % of threads"),
        ({"static_partitions": True}, "Limits of a new server", "static SM partitions"),
    ],
)
def test_the_row_of_a_daemon(changed: Mapping[str, Any], heading: str, cell: str) -> None:
    (row,) = cells(tables.daemons(daemon(**changed)))
    assert row.get(heading, "") == cell


def client(document: StatusDocument, **changed: Any) -> dict[str, str]:
    """Return the row of the first client, which has these other values."""
    first, *others = document.daemons[0].servers[0].clients
    served = replace(document.daemons[0].servers[0], clients=(replace(first, **changed), *others))
    return cells(tables.clients(served, document, tables.uses_of(document)))[0]


def test_the_row_of_a_client() -> None:
    assert client(BUSY)["A fault also ends"] == "2 (A)"
    assert client(BUSY, failure_domain="Z")["A fault also ends"] == "no other"
    assert client(BUSY, failure_domain=None)["A fault also ends"] == ""
    assert "A fault also ends" not in client(replace(BUSY, failure_domains=()))
    assert client(BUSY, memory_used_bytes={OTHER_GPU: GIB, GPU: GIB}, gpus=(GPU,))["Memory"] == "2 GiB"
    assert client(BUSY, memory_used_bytes={OTHER_GPU: GIB}, gpus=(GPU,))["GPUs"] == "1"
    assert client(BUSY, memory_used_bytes={}, gpus=(GPU,))["GPUs"] == "0"
    assert client(BUSY, pid=-3)["PID"] == client(BUSY, pid=0)["PID"] == "?"
    assert client(BUSY, pid=1)["PID"] == "1"


def test_the_kernels_of_a_client() -> None:
    """The page of the client has the others."""
    heading, uses = "Kernels, time in flight", (use("ampere_sgemm_128x64_tn", 0.62), use("<b>", 0.2), use(None, 0.1))

    assert heading not in client(BUSY)
    assert client(BUSY, kernels=None, kernels_hidden=True)[heading] == "not shown"
    assert client(BUSY, kernels=uses, streams=3)[heading] == "ampere_sgemm_128x64… 62 %"


def test_a_client_on_two_gpus_has_the_sm_time_of_both() -> None:
    document = status_document(attributed())
    (pid,) = (each.pid for each in document.gpus[0].processes if each.pid == 600)
    second = replace(document.gpus[0].processes[0], pid=pid, sm_ratio=0.25, sm_error_ratio=None)
    both = replace(document, gpus=(document.gpus[0], replace(document.gpus[1], processes=(second,))))
    assert client(document)["SMs used"] == "48.0 ± 1.2 %"
    assert client(both)["SMs used"] == "48.0 ± 1.2 %; 25.0 %"


def test_the_parts_of_the_memory_of_a_gpu_follow_each_other() -> None:
    held = {"client": 30, "server": 5, "bypassing": 10, "other": 1}
    first = BUSY.gpus[0].processes[0]
    processes = tuple(
        replace(first, pid=pid, role=role, memory_used_bytes=amount) for pid, (role, amount) in enumerate(held.items())
    )
    for used, bar in [
        (60, "[client 0.0 30.0][bypassing 30.0 10.0][rest 40.0 20.0]"),
        (35, "[client 0.0 30.0][bypassing 30.0 10.0]"),
        (200, "[client 0.0 30.0][bypassing 30.0 10.0][rest 40.0 60.0]"),
    ]:
        (row,) = cells(tables.gpus(gpu(processes=processes, memory_used_bytes=used, memory_total_bytes=100)))
        assert row["Memory used"] == f"{bar}{used} bytes of 100 bytes"
        assert row["Clients"] == "1"


@pytest.mark.parametrize("changed", [{"memory_used_bytes": None}, {"memory_total_bytes": None}])
def test_memory_of_a_gpu_that_was_not_read_is_unknown(changed: Mapping[str, Any]) -> None:
    (row,) = cells(tables.gpus(gpu(**changed)))
    assert row["Memory used"] == "unknown"


def test_processes_without_mps_are_those_that_bypass_it_or_may_do_so() -> None:
    first = replace(BUSY.gpus[0].processes[0], sm_ratio=None, memory_used_bytes=None)
    roles = ("client", "server", "bypassing", "other")
    found = tables.without_mps(gpu(processes=[replace(first, role=role, pid=pid) for pid, role in enumerate(roles)]))
    assert [(row["PID"], row["State"]) for row in cells(found)] == [
        ("2", "bypasses MPS"),
        ("3", "without MPS, or unknown"),
    ]
    assert not {"Memory", "SMs used"} & set(found.headings)


def test_a_failure_domain_names_four_clients_that_join_its_gpus() -> None:
    first, *_ = BUSY.daemons[0].servers[0].clients
    on = [(GPU, OTHER_GPU)] * 6 + [(GPU,)] * 2
    several = tuple(replace(first, pid=700 + number, gpus=gpus) for number, gpus in enumerate(on))
    domain = replace(BUSY.failure_domains[0], clients=(*range(700, 708), 999), upper_bound=True)
    document = replace(server(clients=several), failure_domains=(domain,))
    (row,) = cells(tables.domains(document))
    assert row["Clients"] == "9; some may survive"
    named = ", ".join(f"train.py (PID {pid})" for pid in range(700, 704))
    assert row["Joined by"] == f"{named} and 2 more"
    alone = replace(server(clients=several[6:]), failure_domains=(replace(domain, upper_bound=False),))
    (row,) = cells(tables.domains(alone))
    assert (row["Clients"], row.get("Joined by", "")) == ("9", "")


def test_only_an_acting_watchdog_has_restarts_left() -> None:
    document = status_document(dead())
    watch = document.daemons[0].watchdog
    assert watch is not None
    for mode, shown in [("act", ("acts", "0")), ("observe", ("only observes", ""))]:
        changed = replace(document.daemons[0], watchdog=replace(watch, mode=mode, restarts_left=0))
        (row,) = cells(tables.watchdog(replace(document, daemons=(changed,))))
        assert (row["Mode"], row.get("Restarts left", "")) == shown
    discovered = replace(document, daemons=(replace(document.daemons[0], expected=False),))
    assert not tables.watchdog(discovered).rows
    assert not tables.watchdog(replace(document, watchdog=None)).rows


def test_a_collector_that_never_succeeded_says_so() -> None:
    first, *others = BUSY.collectors
    document = replace(daemon(logs=()), collectors=(replace(first, last_success_at=None, problem="no"), *others))
    (row, *rows) = cells(tables.collectors(document))
    assert (row["State"], row["Last success"], row["Problem"]) == ("fails", "never", "no")
    assert {(each["State"], each["Problem"]) for each in rows} == {("works", "")}
    log = cells(tables.collectors(BUSY))[-1]
    assert (log["Collector"], log["State"], log["Last success"], log["Took"]) == (
        f"server.log of {DAEMON}",
        "fails",
        "",
        "",
    )


def test_room_is_unknown_or_names_what_limits_it() -> None:
    (first, *_) = status_document(attributed()).gpus
    assert first.sharing is not None
    for known, shown in [
        ({"clients": None, "resource": None}, "unknown"),
        ({"clients": 0, "resource": "memory"}, "0 more, by memory"),
        ({"clients": 7, "resource": None}, "7 more"),
    ]:
        sharing = replace(first.sharing, headroom=replace(first.sharing.headroom, **known))
        (row,) = cells(tables.gpus(replace(BUSY, gpus=(replace(first, sharing=sharing),))))
        assert row["Room for"] == shown
