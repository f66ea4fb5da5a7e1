"""Programs that tests need and a machine may lack."""

import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest


def not_here(reason: str) -> NoReturn:
    """Skip, loudly, what this machine cannot test."""
    pytest.skip(f"NOT RUN: {reason}")


def needed(program: str) -> str:
    """The path of a program that the test cannot do without."""
    path = shutil.which(program)
    if path is None:
        not_here(f"{program} is not installed")
    return path


def promtool(*arguments: str | Path) -> None:
    """Run promtool, and assert that it finds no error."""
    done = subprocess.run([needed("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
