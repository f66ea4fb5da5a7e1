"""The stand-ins, and real processes, for the tests that need them: each ended with its test."""

import contextlib
import importlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests import program
from tests.collectors.nvml_program import built_here
from tests.eventually import eventually, until
from tests.exporter_process import SERVE, Exporter, Serve, control_processes, fast_command
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import NvmlStandIn, without_driver
from tests.tools import not_here

NOTHING_SKIPPED = os.environ.get("CUDA_MPS_EXPORTER_NOTHING_SKIPPED") == "1"

Starter = Callable[..., "subprocess.Popen[bytes]"]


def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis neither check how fast the machine is nor store what failed in another run."""
    unchecked = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile("hermetic", deadline=None, database=None, suppress_health_check=unchecked)
    settings.load_profile("hermetic")
    if (worker := getattr(config, "workerinput", None)) is not None:
        _compile_part(config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def _compile_part(config: pytest.Config, worker: int, workers: int) -> None:
    """Import each n-th test file. Otherwise each worker compiles all of them, all in the same order."""
    root = config.rootpath
    folders = [path for path in map(root.joinpath, config.args) if path.is_dir()]
    files = sorted({file for folder in folders for file in folder.rglob("test_*.py")})
    for file in files[worker::workers]:
        with contextlib.suppress(Exception):  # collection imports it again, and reports the error
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where nothing may be skipped, a test that does not run has failed."""
    report = yield
    if NOTHING_SKIPPED and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped here: {report.longrepr}"
    return report


SERVICES = ("tests/service/", "tests/test_end_to_end.py", "tests/modes/", "tests/chaos/", "tests/test_benchmarks.py")
ALONE = (*SERVICES, "tests/alerts/test_resolution.py")
SCENES = ("tests/demo/test_rehearsals.py", "tests/paging/test_scenes.py")
SLOW_FILES = ("baseline", "demo", "failure_plan", "node", "pasted_commands", "random_observations")
SLOW_SYSTEMS = ("batch_systems", "benchmarks", "chaos", "packages", "paging", "rehearsals", "scenes", "shortages")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with slow files: with one that is left for the end, one worker would be alone."""
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in (*SLOW_FILES, *SLOW_SYSTEMS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker: its tests share what is made once. Those of ALONE share nothing.

    The files about the scenes of the demo share their series.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(SCENES):
                return SCENES[0]
            return nodeid if nodeid.startswith(ALONE) else super()._split_scope(nodeid)  # type: ignore[no-any-return]

    config.option.loadscopereorder = False  # SLOW_FILES are first
    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process sends its log to a stream that ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def _default_signals() -> Iterator[None]:
    """Handle signals as in a foreground process: a background job ignores SIGINT, `nohup` SIGHUP, as do children."""
    defaults: dict[int, Any] = {signal.SIGINT: signal.default_int_handler} | dict.fromkeys(
        (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGWINCH), signal.SIG_DFL
    )
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _colours_as_usual() -> Iterator[None]:
    """Whatever is asked of programs where the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _isolated_from_the_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the programs that tests start away from the machine's daemons, GPUs, logs, configuration and state.

    A test that needs one of these sets it to its own.
    """
    own = tmp_path_factory.mktemp("machine")
    (own / "config.toml").touch()
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("CUDA_", "STANDIN_", "LISTEN_")) and name != "CUDA_MPS_EXPORTER_NOTHING_SKIPPED":
                patch.delenv(name)
        patch.delenv("NOTIFY_SOCKET", raising=False)
        variables = {
            "CUDA_MPS_EXPORTER_CONFIG_FILE": str(own / "config.toml"),
            **program.variable(
                discovery=False,
                journal=False,
                kmsg=own / "kmsg",
                pods=own / "pods",
                lock_directory=own / "locks",
            ),
            "RUNTIME_DIRECTORY": str(own / "run"),
            "STATE_DIRECTORY": str(own / "state"),
        }
        for name, value in (variables | without_driver(own)).items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[MpsStandIn]:
    """A stand-in daemon, not started yet."""
    with MpsStandIn(tmp_path) as standin:
        yield standin


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The programs that tests start need not compile themselves anew each time, and leave nothing in the tree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        own = tmp_path_factory.getbasetemp()
        # All workers of a run share the directory above their own.
        shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
        patch.setenv("PYTHONPYCACHEPREFIX", str(shared / "compiled"))
        yield


@pytest.fixture(scope="session")
def nvml_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the libraries of stand-in drivers are, each built once."""
    return tmp_path_factory.mktemp("nvml")


@pytest.fixture
def nvml(tmp_path: Path, nvml_libraries: Path) -> NvmlStandIn:
    """A stand-in driver, which sees no GPU yet."""
    return built_here(NvmlStandIn(tmp_path, libraries=nvml_libraries))


@pytest.fixture
def environment(mps: MpsStandIn, nvml: NvmlStandIn, tmp_path: Path) -> dict[str, str]:
    """Variables with which the exporter finds the stand-ins."""
    own = {"RUNTIME_DIRECTORY": str(tmp_path / "run"), "STATE_DIRECTORY": str(tmp_path / "state")}
    return mps.environment() | nvml.environment() | own


@pytest.fixture
def serve(mps: MpsStandIn, environment: dict[str, str], tmp_path: Path) -> Iterator[Serve]:
    """Start exporters. At the end, assert that each exits with 0 and leaves no process behind."""
    started: list[Exporter] = []

    def start(*, overrides: Mapping[str, Any] | None = None, fast: bool = False, **variables: str) -> Exporter:
        arguments = fast_command("serve") if fast else program.command(*SERVE, **(overrides or {}))
        started.append(Exporter(arguments, environment | variables, tmp_path / f"exporter{len(started)}.log"))
        started[-1].address()
        return started[-1]

    yield start
    try:
        for exporter in started:
            assert exporter.process.poll() is not None or exporter.stop() == 0
            assert not exporter.events("source_raised")
        until(lambda: not control_processes(mps))
    finally:
        for exporter in started:
            exporter.process.kill()
        for process in control_processes(mps):
            with contextlib.suppress(psutil.NoSuchProcess):  # it can have ended since
                process.kill()


def _has_executed(pid: int) -> None:
    """Assert that the command of a process is complete: Popen returns before the kernel sets name and environment."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    state, environment_end = fields[0], fields[48]
    assert state == "Z" or environment_end != "0"


@pytest.fixture
def start() -> Iterator[Starter]:
    """Starts real processes: `sleep`, or another command."""
    started: list[subprocess.Popen[bytes]] = []

    def starter(arguments: Sequence[str | bytes] = ("sleep", "600"), **options: object) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(arguments, **options))  # type: ignore[call-overload]
        eventually(lambda: _has_executed(started[-1].pid))
        return started[-1]

    yield starter
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """No child of the test's own process, running or zombie, outlives the test."""
    before = set(psutil.Process().children(recursive=True))
    yield

    def all_have_ended() -> None:
        left = set(psutil.Process().children(recursive=True)) - before
        assert not left, f"left behind: {left}"

    eventually(all_have_ended)


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A directory that other users may write to; pytest's own are for their owner alone."""
    if os.geteuid() != 0:
        not_here("only root can start a process as another user")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o777)
        yield path
