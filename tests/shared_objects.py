"""Shared objects, built by gcc."""

import subprocess
from pathlib import Path

from tests.tools import needed

DOORS = ("cuLaunchKernel", "cuCtxSynchronize_v2", "cuGraphLaunch")
"""What a stand-in for libcuda exports here, beside much else."""

SOURCE = """
    int cuLaunchKernel(void) { return 1; }
    int cuCtxSynchronize_v2(void) { return 2; }
    int cuGraphLaunch(void) { return 3; }
    static int cuStreamSynchronize(void) { return 4; }
    int (*kept)(void) = cuStreamSynchronize;
    int cuEventRecord = 5;
    extern int cuMemcpy(void) __attribute__((weak));
    int (*wanted(void))(void) { return cuMemcpy; }
""" + "".join(f"int other_{number}(void) {{ return {number}; }}\n" for number in range(300))
"""A function that is not exported, one that is another's, and a variable, are none of its doors."""


def shared_object(path: Path, *flags: str, source: str = SOURCE) -> Path:
    """Build one. Where gcc is missing, the test is skipped."""
    command = [needed("gcc"), "-shared", "-fPIC", "-O1", "-x", "c", "-", *flags, "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return path
