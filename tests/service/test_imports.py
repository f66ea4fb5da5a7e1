"""What a command imports before it answers: `status` is typed in an emergency, and must not wait for modules."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.model.node import Node
from exporter.web.server import ServiceSocket
from tests import program
from tests.builders import DAEMON, blocked_recovery
from tests.exporter_process import SERVE, Exporter, run
from tests.incidents.values import blocked
from tests.status import incident_json, status_json

REPORT = """
import sys
from exporter.cli import main
try:
    main(sys.argv[1:])
finally:
    print("\\0" + " ".join(sys.modules))
"""

SERVICE_ALONE = {"pynvml", "psutil", "prometheus_client", "jinja2", "sqlite3", "tenacity", "structlog", "http", "ssl"}
"""The packages that the service needs."""

OURS = {
    "exporter.state",
    "exporter.model.observation",
    "exporter.collectors",
    "exporter.store.database",
    "exporter.web",
}
"""Our own packages that take long to import."""


def imported(directory: Path, *arguments: str) -> tuple[str, set[str]]:
    """Run a command in a process of its own: what it prints, and the modules that it had imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={"RUNTIME_DIRECTORY": str(directory), "CUDA_MPS_EXPORTER_CONFIG_FILE": ""},
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    printed, _, modules = done.stdout.rpartition("\0")
    return printed, set(modules.split())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Path]:
    """The runtime directory of a stand-in for the service, which answers every command that asks it."""
    node: Node = blocked_recovery()
    commands = {
        "status": lambda: {"status": status_json(node)},
        "incidents": lambda **_: {"incidents": [incident_json(blocked())]},
        "pause": lambda: {"message": "paused"},
        "resume": lambda: {"message": "resumed"},
    }
    answering = ServiceSocket(tmp_path, lambda _: commands)
    answering.open()
    yield tmp_path
    answering.close()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]], ids=" ".join)
def test_the_version_and_the_list_of_commands_need_no_configuration(arguments: Sequence[str], tmp_path: Path) -> None:
    printed, modules = imported(tmp_path, *arguments)

    assert "cuda-mps-exporter" in printed
    # argparse of Python 3.14 imports dataclasses for its colours.
    by_argparse = {"dataclasses"} if sys.version_info >= (3, 14) else set()
    found = modules & (SERVICE_ALONE | OURS | {"exporter.config", "dataclasses", "json", "socket"})
    assert found - by_argparse == set()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["status"], DAEMON),
        (["status", "--json"], '"daemons"'),
        (["incidents"], DAEMON),
        (["pause"], "paused"),
        (["resume"], "resumed"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_client_command_imports_no_module_of_the_service(
    arguments: Sequence[str], expected: str, service: Path
) -> None:
    printed, modules = imported(service, *arguments)

    assert expected in printed
    assert modules & (SERVICE_ALONE | OURS) == set()


def test_replay_imports_neither_the_page_nor_the_database_nor_nvml(tmp_path: Path) -> None:
    recording = Path(__file__).parents[1] / "recordings" / "h200_three_clients.jsonl.gz"

    printed, modules = imported(tmp_path, "replay", "--events", str(recording))

    assert '"event"' in printed
    assert modules & {"pynvml", "jinja2", "sqlite3", "exporter.web", "exporter.demo", "exporter.doctor"} == set()


def test_the_service_imports_only_modules_that_a_scraped_node_needs() -> None:
    """The page's templates, the demo and the probes of launches take memory that most nodes would hold for nothing."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, exporter.commands.serve; print(*sys.modules)"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )

    modules = set(done.stdout.split())
    unneeded = {
        "jinja2",
        "exporter.demo",
        "exporter.doctor",
        "exporter.page.page",
        "exporter.libcuda_probes.collector",
    }
    assert "exporter.service" in modules
    assert modules & unneeded == set()


def test_a_running_service_shows_its_state_after_an_upgrade_has_removed_its_files(tmp_path: Path) -> None:
    installed, runtime = tmp_path / "installed", {"RUNTIME_DIRECTORY": str(tmp_path)}
    shutil.copytree(Path(__file__).parents[2] / "exporter", installed / "exporter")
    path = f"import runpy, sys; sys.path.insert(0, {str(installed)!r})"
    start = f"{path}; runpy.run_module('tests.program', None, '__main__')"
    service = Exporter(["-c", start, *program.command(*SERVE)[2:]], runtime, tmp_path / "log")
    service.address()
    shutil.rmtree(installed)

    page, answer = service.text("/status"), run(runtime, "status")

    service.stop()
    assert "0 clients" in page
    assert "0 clients" in answer.stdout
    assert service.events("request_failed", "command_raised") == []


@pytest.mark.parametrize(
    "command", ["serve", "status", "incidents", "record", "replay", "doctor", "demo", "pause", "resume"]
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])

    assert ended.value.code == 0
    assert "[OPTION ...]" in capsys.readouterr().out
