"""The wheel is complete: once installed, it serves without the checkout."""

import os
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import __version__
from tests.eventually import PATIENCE_SECONDS
from tests.exporter_process import Exporter

pytestmark = pytest.mark.systems

ROOT = Path(__file__).parents[2]
SHARED = ["alerts", "dashboards", "deploy/helm", "systemd"]


def _files(folder: Path) -> set[str]:
    """Return the relative paths of all files below a folder. Links are followed."""
    walked = os.walk(folder, followlinks=True)
    files = (Path(where) / name for where, _, names in walked for name in names if not where.endswith("__pycache__"))
    return {str(each.relative_to(ROOT)) for each in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built without network."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel. It shares the dependencies of this one, but not the checkout."""
    directory = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=PATIENCE_SECONDS)
    pip = [sys.executable, "-m", "pip", f"--python={directory}", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "-q", "--no-deps", "--no-index", "--no-compile", wheel], check=True, timeout=PATIENCE_SECONDS)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
    lenders = [path for path in sys.path if path.endswith("-packages")]
    (own / "lent.pth").write_text("\n".join(lenders))
    return directory


@pytest.fixture(scope="module")
def demo(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """The demo of the installed program."""
    become = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    command = [str(installed / "bin" / "cuda-mps-exporter"), "demo", "--web.listen-address=127.0.0.1:0"]
    log = tmp_path_factory.mktemp("demo") / "log"
    program = Exporter(["-c", become, *command, "--log.format=json"], {"PYTHONSAFEPATH": "1"}, log)
    try:
        program.shows(1, "cuda_mps_exporter_build_info")
        yield program
    finally:
        program.stop()


def test_contains_every_file_of_the_program(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert _files(ROOT / "exporter") <= names


@pytest.mark.parametrize("folder", SHARED)
def test_contains_the_other_files_of_an_installation(installed: Path, folder: str) -> None:
    there = installed / "share" / "cuda-mps-exporter" / folder
    found = {str(each.relative_to(there)) for each in there.rglob("*") if each.is_file()}
    wanted = {str(Path(each).relative_to(folder)) for each in _files(ROOT / folder)}

    assert wanted
    assert found >= wanted


def test_runs_from_the_installation_and_shows_its_version(installed: Path) -> None:
    said = subprocess.run([installed / "bin" / "cuda-mps-exporter", "--version"], capture_output=True, text=True)
    where = [installed / "bin" / "python", "-P", "-c", "import exporter; print(exporter.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=installed)

    assert __version__ in said.stdout
    assert Path(found.stdout.strip()).is_relative_to(installed)


@pytest.mark.parametrize("page", ["/", "/metrics", "/-/healthy", "/status"])
def test_serves_its_pages(demo: Exporter, page: str) -> None:
    address = demo.address().removesuffix("/metrics") + page
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as response:
        assert response.status == 200


def test_serves_the_metrics_of_the_node(demo: Exporter) -> None:
    assert demo.value("cuda_mps_daemon_up") is not None
    assert demo.value("cuda_mps_exporter_build_info", version=__version__) == 1


def test_writes_alerts_and_dashboards_of_a_site(installed: Path, tmp_path: Path) -> None:
    share = installed / "share" / "cuda-mps-exporter"
    command = [installed / "bin" / "python3", "-m", "dashboards", f"--output={tmp_path}", "--job=gpu-nodes"]
    subprocess.run(command, cwd=share, check=True, timeout=PATIENCE_SECONDS)
    assert 'up{job="gpu-nodes"}' in (tmp_path / "alerts" / "cuda-mps.rules.yml").read_text()
