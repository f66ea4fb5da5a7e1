"""Random failures break no rule: the watchdog repairs what it should, and nothing else."""

import os
import subprocess
import sys

import pytest

from tests.chaos.terms import TERMS

pytestmark = pytest.mark.systems

STEPS = int(os.environ.get("CHAOS_STEPS", "120"))
"""Of both terms together; the long form is `python -m tests.chaos --steps 500 --terms …`."""
SEED = int(os.environ.get("CHAOS_SEED", "1"))
"""The same steps each time, unless set otherwise. Their timing differs in each run."""


@pytest.mark.parametrize("beside", [(), ("--forger",)], ids=["alone", "beside a forger"])
@pytest.mark.timeout(900)
def test_random_failures_break_no_rule(beside: tuple[str, ...]) -> None:
    """The steps are shared by both terms, which are tried at once."""
    command = [sys.executable, "-m", "tests.chaos", f"--steps={STEPS // len(TERMS)}", f"--seed={SEED}", *beside]
    runs = [
        subprocess.Popen([*command, f"--terms={name}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for name in TERMS
    ]
    outputs = [run.communicate()[0] for run in runs]
    for run, output in zip(runs, outputs, strict=True):
        assert run.returncode == 0, output
