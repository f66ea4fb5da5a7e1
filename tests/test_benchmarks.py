"""Every benchmark runs to its end, on a node so small that its figures mean nothing, and prints its table."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.control_log_growth import MOST_BYTES_A_DAY, bytes_by_command, measure, table
from benchmarks.measure import cpu, percentile, resident_mib
from benchmarks.report import Figure, report, upper_bound
from tests.builders import stamped

from .conftest import Starter
from .eventually import eventually
from .standin.mps import MpsStandIn
from .tools import needed

AT_ONCE = "--flag=--client-min-age=0"
SMALL = ("--gpus=2", "--clients=2", AT_ONCE)

SCRIPTS: dict[str, Sequence[str]] = {
    "scrape": (*SMALL, "--requests=20", "--case=at rest", "--case=clients come and go"),
    "cpu": (*SMALL, "--seconds=1", "--settle=0"),
    "memory": (*SMALL, "--churn=80"),
    "flood": (*SMALL, "--seconds=1", "--rate=2000", "--settle=1"),
    "isolation": ("--rounds=1", "--seconds=0.5", "--settle=0.2", "--burst=2000000"),
    "wake_up": ("--lines=5",),
    "start": ("--clients=2", AT_ONCE, "--times=1"),
    "crowded": ("--daemons=2", "--clients=2", "--seconds=0.5"),
    "page": ("--gpus=1", "--clients=2", "--times=2"),
    "fleet.live": ("--nodes=2", "--minutes=0.2", "--interval=5"),
    "fleet.backfill": ("--nodes=2", "--days=1", "--minutes=23", "--times=1", "--processes=1"),
    "throughput": ("--clients=2", AT_ONCE, "--pairs=2", "--seconds=0.2", "--settle=0"),
}

Run = Callable[..., tuple[int, str, dict[str, float]]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a script in this process: its exit code, what it prints, and the figures in its JSON by their names."""

    def to_its_end(script: str, *arguments: str) -> tuple[int, str, dict[str, float]]:
        file = tmp_path / "figures.json"
        code = importlib.import_module(f"benchmarks.{script}").main([*arguments, f"--json={file}"])
        figures = {each["name"]: each["value"] for each in json.loads(file.read_text())["figures"]}
        return code, capsys.readouterr().out, figures

    return to_its_end


@pytest.fixture(scope="module")
def another_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Another control daemon of the machine with a client, which no benchmark may measure."""
    with MpsStandIn(tmp_path_factory.mktemp("another")) as daemon:
        daemon.start()
        daemon.connect_and_wait(os.getpid())
        yield


@pytest.mark.systems
@pytest.mark.usefixtures("another_daemon", "nothing_left_behind")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_prints_its_table(script: str, run: Run) -> None:
    needed("gcc")

    code, printed, figures = run(script, *SCRIPTS[script])

    assert code in (0, 1)
    assert printed.splitlines()[0].startswith("# ")
    assert all(name in printed for name in figures)
    assert "reached" in printed or "FALLS SHORT" in printed


NVITOP = """#!{python}
import http.server, os, pathlib, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        state = pathlib.Path(os.environ["STANDIN_NVML_STATE"]).read_text()
        pids = [line.split()[2] for line in state.splitlines() if line.startswith("process ")]
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(f'process_gpu_memory{{{{pid="{{pid}}"}}}} 1\\n' for pid in pids).encode())

assert sys.argv[1] == "--port"
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""
"""What the script needs of nvitop-exporter, so that it runs where that is not installed."""


@pytest.mark.systems
@pytest.mark.usefixtures("another_daemon", "nothing_left_behind")
def test_compares_each_figure_with_nvitop(run: Run, tmp_path: Path) -> None:
    needed("gcc")
    theirs = tmp_path / "nvitop-exporter"
    theirs.write_text(NVITOP.format(python=sys.executable))
    theirs.chmod(0o755)

    _, _, figures = run("against_nvitop", *SMALL, "--seconds=1", "--settle=0", "--scrapes=5", f"--nvitop={theirs}")

    for compared in ("CPU", "scrape, median", "resident memory"):
        ours, others = figures[f"{compared}: ours"], figures[f"{compared}: nvitop-exporter's"]
        assert figures[f"{compared}: ours / theirs"] == ours / others > 0


def test_reports_a_missed_target_and_fails(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    figures = [Figure(name="good", value=1, most=1), Figure(name="bad", value=1.1, unit="ms", most=1)]

    assert (report("both", figures), report("one", figures[:1])) == (1, 0)
    printed = capsys.readouterr().out.splitlines()
    assert printed[3].split() == ["bad", "1.1", "ms", "at", "most", "1", "ms", "FALLS", "SHORT"]


def test_a_figure_without_a_target_cannot_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("told", [Figure(name="size", value=1e9, unit="bytes")]) == 0
    assert "reached" not in capsys.readouterr().out


def test_cpu_time_includes_children(start: Starter) -> None:
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])\nwhile True: pass"
    process = start([sys.executable, "-c", busy])

    def has_worked() -> None:
        assert cpu(process.pid).own > 0.1
        assert cpu(process.pid).children > 0

    eventually(has_worked)
    assert resident_mib(process.pid) > 1


def test_an_idle_process_uses_no_cpu_time(start: Starter) -> None:
    process = start()

    def rests() -> None:
        before = cpu(process.pid)
        assert cpu(process.pid).since(before).all == 0

    eventually(rests)


def test_the_upper_bound_lies_above_the_mean_by_students_t() -> None:
    assert upper_bound([1.0, 1.0, 1.0]) == 1.0
    assert upper_bound([0.0, 2.0]) == pytest.approx(1 + 6.314)
    assert upper_bound([-1.0, 0.0, 1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 1.0, -1.0]) == pytest.approx(
        1.833 * 0.8164966 / 10**0.5
    )


def test_a_percentile_is_exceeded_by_the_rest() -> None:
    assert percentile([*range(101)], 99) == 99


def session(*texts: str) -> str:
    return "".join(f"{stamped(text)}\n" for text in texts)


def test_every_byte_belongs_to_a_command() -> None:
    lists = session("Accepting connection...", "NEW UI", "Cmd:get_client_list 513", "600", "601", "UI closed")
    life = session("Accepting connection...", "NEW UI", "Cmd:get_server_list", "513", "UI closed")
    assert bytes_by_command(life + lists + life) == {
        "get_server_list": (2, 2 * len(life)),
        "get_client_list": (1, len(lists)),
    }


def test_an_idle_node_meets_the_limit() -> None:
    """Watched for six minutes of a fast clock, in which the full lists are asked for once."""
    figures = measure(clients=2, gpus=1, hours=0.1)
    assert {"get_server_list", "get_server_status", "get_client_list"} <= figures.keys()
    assert sum(times for times, _ in figures.values()) <= 86_400 / 30 + 240
    assert list(table(figures))[-1] == f"at most {MOST_BYTES_A_DAY}: pass"


def test_a_value_above_the_limit_fails() -> None:
    assert list(table({"ps": (2880, 1_000_001)}))[-1].endswith("falls short")
