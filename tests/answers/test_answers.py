"""The answers by a real Prometheus, for a month whose answers are known."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from dashboards.report import main
from tests.answers.history import MONTH, write
from tests.dashboards.history import import_into
from tests.prometheus import Prometheus

pytestmark = pytest.mark.systems

ACCOUNTS = "4711|physics\n"
HOURS = 48
"""The series are recorded for two days."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus with the series."""
    directory = tmp_path_factory.mktemp("answers")
    write(directory / "samples")
    import_into(directory / "data", directory / "samples")
    (directory / "accounts").write_text(ACCOUNTS)
    with Prometheus(directory, {}, "--storage.tsdb.retention.time=100y") as prometheus:
        prometheus.get("query", query="1")  # waits until it answers
        yield f"http://{prometheus.address}"


def report(server: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> Mapping[str, Sequence[Sequence[str]]]:
    """Return the rows of each answer, without headings."""
    assert main(["--prometheus", server, "--month", MONTH, "--format", "csv", *arguments]) == 0
    rows: dict[str, list[Sequence[str]]] = {}
    for key, *cells in csv.reader(capsys.readouterr().out.splitlines()):
        if key != "answer":
            rows.setdefault(key, []).append(cells)
    return rows


def test_answers_are_those_of_the_series(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    (tmp_path / "accounts").write_text(ACCOUNTS)

    rows = report(server, capsys, "--accounts", str(tmp_path / "accounts"))

    recorded = f"{288 / (31 * 144 + 1) * 100:.10g}"
    for key, expected in {
        # Idle hours, their cost, GPU hours, use in %, its cost, unattributed in %, recorded in %.
        "idle_by_cluster": [
            ["b", "72", "72", "96", "25", "24", "", recorded],
            ["a", "30", "60", "48", "37.5", "36", "", recorded],
        ],
        # SM hours, cost, reserved SM hours, their cost, GB hours, kWh; hours of requested shares, also without clients.
        "cost_by_namespace": [
            ["b", "", "24", "24", "", "", "", "", "", ""],
            ["a", "web", "12", "24", "96", "192", "384", "4.8", "144", ""],
            ["a", "'=ml|x", "6", "12", "", "", "", "", "", ""],
            ["a", "lab", "0", "", "24", "48", "", "", "", ""],
            ["a", "idle", "0", "", "", "", "", "", "48", "48"],
        ],
        "cost_by_team": [
            ["", "30", "36", "", "", "", ""],
            ["search", "12", "24", "96", "192", "384", "4.8"],
            ["lab", "0", "", "24", "48", "", ""],
        ],
        "cost_by_user": [
            ["ann", "24", "24", "", "", "", ""],
            ["", "12", "24", "96", "192", "384", "4.8"],
            ["svc_ml", "6", "12", "", "", "", ""],
            ["eve", "0", "", "24", "48", "", ""],
        ],
        "cost_by_job": [["b", "4711", "ann", "24", "24", "", "", "", ""]],
        "cost_by_account": [["physics", "24", "24", "", "", "", ""]],
        "idle_by_node": [
            ["b", "n1:10677", "72", "72", "96", "25", "24"],
            ["a", "n1:10677", "30", "60", "48", "37.5", "36"],
        ],
        # Client hours; threads allowed, peak, recommended; memory limit, peak, recommended; replicas; risk.
        "sizes": [
            # 1.25 times 13 % is rounded up to 20 %: five clients. Memory would suffice for six.
            ["a", "web", "pod", "ranker", "96", "100", "13", "20", "", "10240", "12288", "5", "low"],
            ["a", "", "unit", "idle.service", f"{HOURS}", "", "0", "", "", "0", "", "", "low"],
            ["a", "'=ml|x", "pod", "trainer", "8", "", "90", "100", "", "1024", "1229", "1", "suspected"],
        ],
        "crashes": [["a", "'=ml|x", "trainer", "web", "ranker", "high", "6"]],
        "faults": [["a", "'=ml|x", "trainer", "2", "", ""], ["a", "web", "ranker", "0", "2", "6"]],
        "slo_by_cluster": [["a", "100", "2880", "", "", ""]],
        "slo_by_node": [
            ["b", "n1:10677", "0", "2880", "5760", "", ""],
            ["a", "n1:10677", "99.9", "288000", "", "288", ""],
        ],
        "operator": [["a", "n1:10677", f"{HOURS}", "", "", ""]],
        # Clients that fit, clients, memory used, SM time used in the last hour in %, bypassing processes.
        "room": [["a", "n1:10677", "7", "12", "", "37.5", ""]],
    }.items():
        with subtests.test(key=key):
            assert rows[key] == expected


def test_a_selector_chooses_a_cluster(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = report(server, capsys, "--selector", 'cluster="b"', "--answer", "cost_by_user")
    assert rows == {"cost_by_user": [["ann", "24", "24", "", "", "", ""]]}


def test_a_server_that_refuses_a_query_names_the_mistake(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prometheus", server, "--selector", "cluster=b"]) == 1
    problem = capsys.readouterr().err
    assert "parse error" in problem
    assert "check --selector" in problem
