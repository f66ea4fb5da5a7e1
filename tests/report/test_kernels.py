"""What runs: the kernels of each client in the status document, and in the text of `status`."""

import re
from dataclasses import replace

import pytest

from exporter.model.kernels import ClientKernels, KernelUse
from exporter.model.node import Node
from exporter.report.document import ClientStatus
from exporter.report.node_status import document_of, status_document
from exporter.report.status_text import clients_by_pid, status_lines
from exporter.report.text import kernel_name, text_of, text_width
from exporter.usage.last_minute import KERNELS_STALE_SECONDS
from exporter.view import StatusInput
from tests.builders import flight, split, three_clients
from tests.kernels import client, use, with_kernels
from tests.status import as_json

GEMM = use("gemm<128>", 0.62, raw="_Z4gemmILi128EEvv")
BUSY = client(600, GEMM, use("softmax", 0.21), use("bias", 0.1))


def shown(present: Node, pid: int = 600) -> ClientStatus:
    return clients_by_pid(document_of(present))[pid]


def table(present: Node, width: int | None = None, viewer: int | None = 0) -> str:
    """Return the text of `status` from the table of the first GPU's clients on."""
    used = split(present, {600: flight(0.4), 601: flight(0.1)})
    document = status_document(StatusInput(node=used, at=used.at, viewer=viewer))
    lines = status_lines(document, width)
    assert width is None or all(text_width(line.text) <= width for line in lines if re.match(" *[0-9]+ ", line.text))
    return text_of(lines).partition("sharing of GPU 0")[2]


def test_a_client_has_its_kernels_with_their_whole_names() -> None:
    present = with_kernels(three_clients(), BUSY)

    found = as_json(document_of(present))["daemons"][0]["servers"][0]["clients"][0]
    assert found["streams"] == 2
    assert found["kernels_problem"] is None
    assert found["kernels"][0] == {
        "name": {"raw": "_Z4gemmILi128EEvv", "short": "gemm<128>"},
        "nodes": [],
        "is_graph": False,
        "launches_per_second": 1200.0,
        "flight_ratio": 0.62,
        "width": 64,
    }
    assert [each["name"]["short"] for each in found["kernels"]] == ["gemm<128>", "softmax", "bias"]
    assert (shown(present, 601).kernels, shown(present, 601).streams) == ((), None)


@pytest.mark.parametrize(
    ("clients", "age"),
    [
        ((), 0.0),
        ((BUSY,), KERNELS_STALE_SECONDS + 1),
        ((BUSY,), -1.0),
        ((replace(BUSY, first_ns=5),), 0.0),
        ((replace(BUSY, pid=9),), 0.0),
    ],
    ids=["probes off", "stale", "of the future", "before the process began", "of another process"],
)
def test_kernels_that_are_not_those_of_the_client_now_are_unknown(
    clients: tuple[ClientKernels, ...], age: float
) -> None:
    found = shown(with_kernels(three_clients(), *clients, age=age))

    assert (found.kernels, found.kernels_problem, found.streams) == ((), None, None)
    assert "KERNELS" not in table(with_kernels(three_clients(), *clients, age=age))


@pytest.mark.parametrize(
    ("kernels", "problem"),
    [
        (client(600, use(None), use("softmax")), "before the exporter began"),
        (client(600, use(None), names_lost=3), "because too many came at once"),
        (client(600, names_lost=1), "because too many came at once"),
        (client(600, use("softmax"), names_lost=3), None),
        (client(600, use(None, nodes=("gemm",))), None),
    ],
)
def test_a_kernel_without_a_name_is_unknown_for_a_reason(kernels: ClientKernels, problem: str | None) -> None:
    present = with_kernels(three_clients(), kernels)
    found, text = shown(present).kernels_problem, table(present)

    assert (problem or "") in (found or "")
    assert (found is None) == (problem is None)
    assert ("kernels of PID 600: some names are unknown" in text) == (problem is not None)
    assert ("unknown 50 %" in text) == (problem is not None and bool(kernels.most))


def test_a_graph_is_named_by_its_first_kernels() -> None:
    graph = use(None, nodes=tuple(f"node{number}" for number in range(50)))

    assert kernel_name(graph).startswith("graph of node0, node1, ")
    assert kernel_name(replace(graph, nodes=())) == "graph"
    assert "graph of node0, node1, node2, n… 50 %" in table(with_kernels(three_clients(), client(600, graph)))


@pytest.mark.parametrize("width", [80, 100, None])
def test_status_shows_the_first_kernels_of_each_client_within_the_width(width: int | None) -> None:
    text = table(with_kernels(three_clients(), BUSY), width)

    assert re.search(r"^ *600 .*gemm<128>", text, re.MULTILINE)
    assert "gemm<128> 62 %, softmax 21 %" in text or width == 80
    assert "bias" not in text


@pytest.mark.parametrize(("kernels", "more"), [(use("gemm"), 0), (use(None), 1)])
def test_status_has_at_most_a_line_more_for_kernels(kernels: KernelUse, more: int) -> None:
    without, present = three_clients(), with_kernels(three_clients(), client(600, kernels), client(601, kernels))

    assert len(table(present, 100).splitlines()) == len(table(without, 100).splitlines()) + more


def test_a_hostile_name_is_short_and_printable() -> None:
    evil = "\x1b[31m\n" + "x" * 10_000
    present = with_kernels(three_clients(), client(600, use(evil, raw=evil), use(None, nodes=(evil,) * 3)))

    for width in (80, 100, 240, None):
        text = table(present, width)
        assert "\x1b" not in text
        assert "x" * 33 not in text
    kernel, graph = as_json(document_of(present))["daemons"][0]["servers"][0]["clients"][0]["kernels"]
    for name in (kernel["name"], *graph["nodes"]):
        assert all(text.isprintable() and len(text) <= 4096 for text in name.values())


def test_status_states_that_kernels_are_not_shown() -> None:
    present = with_kernels(three_clients(), BUSY, client(601, use("decode")))

    text = table(present, viewer=1002)
    assert re.search(r"^ *600 .*not shown", text, re.MULTILINE)
    assert re.search(r"^ *601 .*decode 50 %", text, re.MULTILINE)
    assert "kernels of PID 600: not shown: only root and the owner of the client see them; run with sudo" in text
    assert "not shown" not in table(present)
