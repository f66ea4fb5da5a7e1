"""The page of a client, and the pictures of the last ten minutes."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from struct import pack

import pytest

from exporter.history import Points
from exporter.model.incident import IncidentKind
from exporter.page.clients import OF_CLIENT, OF_GPU, known_of
from exporter.page.clients import lines as lines_of
from exporter.page.page import Page
from exporter.recent import POINT_SECONDS
from exporter.report.node_status import status_document
from exporter.view import StatusInput
from tests.builders import GPU, contended, three_clients
from tests.page.html_reader import Read, section
from tests.page.inputs import attributed, busy, fault, full, hostile, status_input

MOST_BYTES = 30_000


@pytest.fixture(scope="module")
def page() -> Page:
    return Page({"Metrics": "/metrics"})


def id_of(data: StatusInput, pid: int) -> str:
    document = status_document(data)
    servers = (server for daemon in document.daemons for server in daemon.servers)
    return next(each.client for server in servers for each in server.clients if each.pid == pid) or ""


def shown(page: Page, data: StatusInput, name: str) -> bytes:
    body = page.client(data, name)
    assert body is not None
    return body


def points(*values: Sequence[float]) -> Points:
    """Return the points of a client `x`, each with used SMs, memory and slowdown, the last one now."""
    first = int(busy().at // POINT_SECONDS) - len(values) + 1
    return tuple((first + number, {"x": pack("3f", *each)}) for number, each in enumerate(values))


def test_has_all_that_is_known_of_a_client(page: Page) -> None:
    body = shown(page, data := attributed(), id_of(data, 600))
    assert Read(body).tags.count("h1") == 2
    assert "PID\N{NO-BREAK SPACE}600\N{NO-BREAK SPACE}(train.py of alice)" in body.decode()
    for name, words in {
        "known": (
            "Command train.py PID 600 User alice UID 1001",
            f"ID in metrics {id_of(data, 600)}",
            "Server PID 513, active; 3 clients Daemon /tmp/nvidia-mps up",
            "Limits of the server 50 % of threads; 2 GiB on GPU 1",
            "2 other clients (failure domain A) PID 601 (vllm of bob) PID 602 (eval.py of alice)",
        ),
        "gpus": ("0 NVIDIA H200 1.5 GiB none known at most 50 % 48.0 ± 1.2 % (estimated)", "700 MiB at most 2 GiB"),
        "kernels": ("ampere_sgemm_128x64_tn 62 % 1200.0/s 64 SMs", "graph of softmax, bias"),
        "incidents": ("None in the last hour",),
    }.items():
        for each in words:
            assert each in section(body, name)


def test_only_the_client_itself_is_listed_for_its_page() -> None:
    data = full(gpus=2, clients=3)
    known = known_of(data, name := id_of(data, 1_000_001))
    assert known is not None
    listed = [each for of in known["document"].daemons for server in of.servers for each in server.clients]
    processes = [each.client for gpu in known["document"].gpus for each in gpu.processes]
    assert ([each.client for each in listed], processes, known["client_count"]) == ([name], [name], 3)
    assert known["client"] == next(
        each
        for daemon in status_document(data).daemons
        for server in daemon.servers
        for each in server.clients
        if each.client == name
    )


def test_kernels_are_for_those_who_may_see_them(page: Page) -> None:
    data = replace(attributed(), viewer=1002)
    assert "sgemm" not in shown(page, data, id_of(data, 600)).decode()
    assert "not shown: only root and the owner" in section(shown(page, data, id_of(data, 600)), "kernels")


def test_names_what_a_slowed_client_waits_for_and_who_uses_it(page: Page) -> None:
    data = status_input(contended(three_clients(), 601, 600))
    words = section(shown(page, data, id_of(data, 601)), "headline")
    assert "Slowed down On GPU 0, its work takes 4.9 times as long as on a quiet GPU" in words
    assert "it waits for memory bandwidth, of which PID 600 (train.py of alice) uses 89 %." in words
    assert f"/clients/{id_of(data, 600)}" in Read(shown(page, data, id_of(data, 601))).all_of("href")
    assert "Slowed down" not in section(shown(page, data, id_of(data, 600)), "headline")


def test_the_incidents_that_name_a_client_are_linked_also_after_it_has_exited(page: Page) -> None:
    data = fault()
    suspect, affected = (shown(page, data, name) for name in ("700-1", "601-1"))
    assert "Exited PID 700 (python3 of alice, job 42)" in section(suspect, "headline")
    assert "The client is a suspect." in section(suspect, "incidents")
    assert "The client is a suspect, is affected, delays recovery, or did." in section(affected, "incidents")
    assert "/incidents/513-2" in Read(suspect).all_of("href")
    death = replace(data.incidents[0], kind=IncidentKind.DAEMON_DIED, suspects=(), blocking={})
    present = replace(data.node, incidents={death.id: death})
    dead = shown(page, replace(data, node=present, incidents=(death,)), "601-1")
    assert "The client ended." in section(dead, "incidents")


def test_the_page_of_a_stalled_exporter_says_so(page: Page) -> None:
    data = replace(attributed(), stalled_seconds=95.0)
    body = shown(page, data, id_of(data, 600))
    assert "The exporter has been stalled for 1 min 35 s" in section(body, "headline")
    assert b'class="headline critical" aria-label' in body


def test_of_other_names_nothing_is_known(page: Page) -> None:
    data = attributed()
    assert GPU in data.recent[-1][1]
    for name in ("", "600", "600-0", GPU, "700-1", "../status", id_of(data, 600) + "0"):
        assert page.client(data, name) is None


def test_every_page_is_well_formed_small_and_has_names_as_text_only(page: Page, subtests: pytest.Subtests) -> None:
    for data in (busy(), attributed(), fault(), hostile(), full(gpus=2)):
        document = status_document(data)
        clients = [each for daemon in document.daemons for server in daemon.servers for each in server.clients][:8]
        affected = [each for incident in document.incidents for each in (*incident.affected, *incident.suspects)]
        for name in {each.client for each in (*clients, *affected) if each.client}:
            with subtests.test(name=name):
                body = shown(page, data, name)
                read = Read(body)
                assert len(body) < MOST_BYTES
                assert read.tags.count("script") == 1
                assert not set(read.tags) & {"form", "input", "iframe", "img", "style"}
                assert read.tags.count("caption") == read.tags.count("table")
                assert all(value.startswith(("/", "#", "data:,")) for value in read.all_of("href"))


def test_the_table_and_an_open_fault_link_to_the_pages_of_clients(page: Page) -> None:
    links = Read(page.node(fault())).all_of("href")
    assert {f"/clients/{id_of(fault(), 600)}", "/clients/601-1", "/clients/700-1"} <= set(links)
    for link in (each for each in links if each.startswith("/clients/")):
        assert page.client(fault(), link.rpartition("/")[2]) is not None


def test_each_gpu_has_a_picture(page: Page) -> None:
    found = section(page.node(attributed()), "gpus")
    assert "Last 10 minutes GPU 0 SMs used" in found
    assert found.count("Memory used 10 % now; between 10 % and 100 %") == 2
    assert "Last 10 minutes" not in section(page.node(busy()), "gpus")


def test_a_value_of_zero_is_drawn_and_an_unknown_one_is_not() -> None:
    data = replace(busy(), recent=points((0, nan, 1), (0, nan, nan), (nan, 0, nan), (0.5, 2048, 4)))
    sm, memory, slowdown = lines_of(data, "x", OF_CLIENT)
    assert sm.path == "M0 100V100m26 0V98h2V100m1 0V5h1V100"
    assert (memory.path, slowdown.path) == ("M0 100V100m28 0V98h1V5h1V100", "M0 100V100m26 0V76h1V100m2 0V5h1V100")
    assert [each.summary for each in (sm, memory, slowdown)] == [
        "50 % now; between 0 % and 50 %",
        "2 KiB now; between 0 bytes and 2 KiB",
        "4.0x now; between 1.0x and 4.0x",
    ]
    later = lines_of(replace(data, at=data.at + 3 * POINT_SECONDS), "x", OF_CLIENT)[0]
    assert (later.summary, later.path[-5:]) == ("unknown now; between 0 % and 50 %", "0V100")


def test_nothing_is_drawn_of_what_is_unknown() -> None:
    for found in (lines_of(busy(), "x", OF_CLIENT), lines_of(busy(), GPU, OF_GPU)):
        assert {(each.summary, each.path) for each in found} == {("unknown", "")}


def test_the_path_of_a_picture_is_as_wide_as_its_points() -> None:
    for line in lines_of(attributed(), GPU, OF_GPU):
        assert sum(map(int, re.findall(r"[hm](\d+)", line.path))) == 30
