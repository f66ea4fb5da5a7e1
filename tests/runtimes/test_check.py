"""On a node of Slurm, the check of its page prints what the page shows."""

import re

import pytest

from tests.eventually import eventually
from tests.exporter_process import Exporter, on_the_gpu
from tests.runtimes.programs import Place, Slurm
from tests.runtimes.test_labels import exporter, place
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import NvmlStandIn
from tests.test_installation_pages import expected_output, is_shown

__all__ = ["exporter", "place"]

NAME = "/tmp/nvidia-mps"

pytestmark = [pytest.mark.systems, pytest.mark.timeout(180)]


def test_the_check_of_the_page_prints_what_the_page_shows(
    place: Place, exporter: Exporter, mps: MpsStandIn, nvml: NvmlStandIn
) -> None:
    _, expected = expected_output("slurm")
    job, pid = Slurm(place, "v2").submit()
    nvml.write([on_the_gpu({pid: 516}, mps)])
    mps.connect_and_wait(pid)

    def assert_shown() -> None:
        printed = exporter.text("/status").replace(str(mps.pipe_directory), NAME)
        printed = re.sub(rf" sleep +job {job} ", " train job 4711 ", printed)
        assert is_shown(printed, expected), printed

    eventually(assert_shown)
