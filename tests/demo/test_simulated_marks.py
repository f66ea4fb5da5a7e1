"""All output of the demo states that the node is simulated. That of a real node does not."""

import io
import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from prometheus_client import generate_latest

from exporter import log
from exporter.cli import parse_arguments
from exporter.clock import SystemClock
from exporter.demo.command import print_commands
from exporter.history import History
from exporter.metrics.catalogue import NodeCollector
from exporter.metrics.exposition import Exposition
from exporter.model.node import Node
from exporter.report.incident_status import incident_status
from exporter.report.node_status import document_of, summary_line
from exporter.report.status_text import headline
from exporter.report.text import SIMULATED
from exporter.view import StatusInput, View
from exporter.web.api import Api
from exporter.web.pages import Request, Site
from tests.builders import AT, three_clients
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.exporter_process import Exporter
from tests.incidents.values import blocked

BOTH = pytest.mark.parametrize("simulated", [True, False])


def node(simulated: bool) -> Node:
    return replace(three_clients(), simulated=simulated)


@BOTH
def test_status_states_it(simulated: bool) -> None:
    present = node(simulated)
    document = document_of(present)

    assert (SIMULATED in headline(document)[0].text) is simulated
    assert summary_line(View(present)).startswith(SIMULATED) is simulated
    assert document.simulated is simulated


@BOTH
def test_metrics_have_a_gauge(simulated: bool) -> None:
    text = generate_latest(NodeCollector(View(node(simulated)))).decode()
    assert ("cuda_mps_exporter_simulated 1.0" in text) is simulated


@BOTH
def test_log_records_state_it(simulated: bool) -> None:
    stream = io.StringIO()
    log.configure("info", "json", stream, simulated=simulated)
    structlog.get_logger().info("serving")
    assert json.loads(stream.getvalue()).get("simulated", False) is simulated


@BOTH
def test_both_landing_pages_have_a_banner(simulated: bool) -> None:
    def data() -> StatusInput:
        return StatusInput(node=node(simulated), at=AT, host="node1")

    site = Site(
        Exposition(SystemClock()),
        healthy=lambda: True,
        status=data,
        monotonic=lambda: 0.0,
        simulated=simulated,
    )

    for peer in ("127.0.0.1", ""):
        body = site.answer(Request(path="/", peer=peer, host="localhost")).body.decode()
        assert (SIMULATED.replace("`", "<code>", 1).replace("`", "</code>") in body) is simulated


@BOTH
@pytest.mark.parametrize("path", ["", "/one"])
def test_the_json_api_warns(simulated: bool, path: str) -> None:
    history = History()
    history.add(Node(incidents={"one": blocked(id="one")}), ())
    api = Api(history, status=str, incident=lambda _, each, __: incident_status(each, AT), simulated=simulated)
    route = api.routes["/api/v1/incidents/*" if path else "/api/v1/incidents"]

    envelope = json.loads(route.respond(Request(path=f"/api/v1/incidents{path}")).body)

    assert envelope.get("warnings", []) == ([SIMULATED] if simulated else [])


def printed_commands(text: str) -> Iterator[list[str]]:
    return (shlex.split(line) for line in text.splitlines() if line.startswith("  "))


def test_prints_commands_that_exist(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bin/a name", "demo"])
    print_commands("http://localhost:10677")

    *asking, replay = printed_commands(capsys.readouterr().out)
    assert asking == [
        ["curl", "-s", "http://localhost:10677/status"],
        ["curl", "-s", "http://localhost:10677/api/v1/incidents"],
    ]
    assert parse_arguments(replay[1:]).command == "replay"
    assert replay[0] == str(Path.cwd() / "bin/a name")


@pytest.mark.systems
def test_printed_commands_show_the_simulated_node(tmp_path: Path) -> None:
    output = tmp_path / "stdout"
    become = (
        f"import os, sys; os.dup2(os.open({str(output)!r}, os.O_CREAT | os.O_WRONLY), 1); os.execv(sys.executable, "
    )
    become += "[sys.executable, '-m', 'exporter', *sys.argv[1:]])"
    arguments = ["demo", "--calm", "--log.format=json", "--web.listen-address=127.0.0.1:0"]
    exporter = Exporter(["-c", become, *arguments], {}, tmp_path / "log")
    try:
        exporter.shows(1, "cuda_mps_exporter_simulated")
        commands = eventually(lambda: list(printed_commands(output.read_text())))
        root = Path(__file__).parents[2]
        for command in commands[:2]:
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            assert (done.returncode, SIMULATED in done.stdout) == (0, True), done.stderr
        assert all(each["simulated"] for each in exporter.records())
    finally:
        exporter.stop()
