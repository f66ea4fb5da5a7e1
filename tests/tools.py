"""Programs that tests need and a machine may lack."""

import os
import shutil
from typing import NoReturn

import pytest


def not_here(reason: str) -> NoReturn:
    """Skip, loudly, what this machine cannot test; fail where nothing may be skipped."""
    if os.environ.get("CUDA_MPS_EXPORTER_NOTHING_SKIPPED") == "1":
        pytest.fail(f"nothing may be skipped here, but {reason}")
    pytest.skip(f"NOT RUN: {reason}")


def needed(program: str) -> str:
    """The path of a program that the test cannot do without."""
    path = shutil.which(program)
    if path is None:
        not_here(f"{program} is not installed")
    return path
