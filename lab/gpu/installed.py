"""The exporter in a directory that every user can read, with the packages that it needs, as any user."""

import importlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_address

from .child import Child
from .mps import interpreter
from .program import SOURCE
from .scrape import Scrape, fetch

AS_UNIT = Path(__file__).with_name("as_unit.py")

PACKAGES = ("jinja2", "markupsafe", "prometheus_client", "psutil", "pycxxfilt", "pynvml", "structlog", "tenacity")


def copy_exporter(directory: Path) -> None:
    """Copy it without packages, so that `python3 -m tests.program` runs it."""
    shutil.copytree(SOURCE / "exporter", directory / "exporter", ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "tests").mkdir()
    for name in ("__init__.py", "program.py"):
        shutil.copy(SOURCE / "tests" / name, directory / "tests")


def install(directory: Path) -> Path:
    """Copy it, unless it is there, and return the directory: the value of PYTHONPATH."""
    if not directory.exists():
        directory.mkdir()
        directory.chmod(0o755)
        copy_exporter(directory)
        for name in PACKAGES:
            _copy(name, directory)
    return directory


class InstalledExporter:
    """`serve` of a copy, and its other commands. `prefix` is a program that executes it, such as setpriv.

    Without `arguments`, it finds the daemons that it can see.
    """

    def __init__(self, program: Path, directory: Path, *arguments: str, uid: int, prefix: Sequence[str] = ()) -> None:
        directory.mkdir()
        os.chown(directory, uid, uid)
        self._address = free_address()
        self._prefix = (*prefix, interpreter(uid), "-m", "tests.program", "{}")
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(program),
            "PYTHONDONTWRITEBYTECODE": "1",
            "RUNTIME_DIRECTORY": str(directory),
            "STATE_DIRECTORY": str(directory),
            **{name: os.environ[name] for name in ("LD_LIBRARY_PATH", "GPU_TESTS_ROOT") if name in os.environ},
        }
        serve = ("serve", f"--web.listen-address={self._address}", "--client-min-age=0s", *arguments)
        self.child = Child([*self._prefix, *serve], output=directory / "exporter.log", environment=self._environment)

    def scrape(self) -> Scrape:
        """Return /metrics. AssertionError means that it does not answer yet."""
        if self.child.exit_code is not None:
            raise RuntimeError(self.evidence())
        try:
            return fetch(f"http://{self._address}/metrics")
        except OSError as problem:
            raise AssertionError(self.evidence()) from problem

    def command(self, *words: str) -> str:
        """Return the output of another command with the same rights, for any exit code."""
        done = subprocess.run(
            [*self._prefix, *words], env=self._environment, cwd="/", capture_output=True, text=True, timeout=60
        )
        return done.stdout + done.stderr

    def end(self) -> None:
        """End it as systemd would."""
        self.child.end()

    def evidence(self) -> str:
        """Return its log, for the report of a failed test."""
        return self.child.evidence()


def with_rights_of_unit(uid: int) -> tuple[str, ...]:
    """Return the prefix for the user, capability and system call filter of the exporter's unit (as_unit.py)."""
    calls = os.environ.get("GPU_SYSTEM_CALLS")
    numbers = "[]" if calls is None else Path(calls).read_text()
    return (interpreter(uid), str(AS_UNIT), str(uid), numbers)


def without_rights(uid: int) -> tuple[str, ...]:
    """Return the prefix for an ordinary user."""
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--bounding-set=-all", "--")


def _copy(package: str, to: Path) -> None:
    """Copy a package or a module."""
    found = Path(str(importlib.import_module(package).__file__))
    if found.name == "__init__.py":
        shutil.copytree(found.parent, to / package, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(found, to)
