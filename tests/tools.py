"""Programs that tests need and a machine may lack."""

import shutil
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
