"""Programs that tests need and a machine may lack."""

import os
import shutil

import pytest


def needed(program: str) -> str:
    """The path of a program. Where it is missing the test is skipped, or fails if nothing may be skipped."""
    path = shutil.which(program)
    if path is not None:
        return path
    if os.environ.get("CUDA_MPS_EXPORTER_NOTHING_SKIPPED") == "1":
        pytest.fail(f"{program} is not installed, and nothing may be skipped")
    pytest.skip(f"not run: {program} is not installed")
