"""Shared objects, built by gcc."""

import subprocess
from pathlib import Path

from tests.tools import needed

EXPORTED = ("cuLaunchKernel", "cuCtxSynchronize_v2", "cuGraphLaunch")
"""Functions of libcuda that the object exports, among others."""

SOURCE = """
    int cuLaunchKernel(void) { return 1; }
    int cuCtxSynchronize_v2(void) { return 2; }
    int cuGraphLaunch(void) { return 3; }
    static int cuStreamSynchronize(void) { return 4; }
    int (*pointer)(void) = cuStreamSynchronize;
    int cuEventRecord = 5;
    extern int cuMemcpy(void) __attribute__((weak));
    int (*wanted(void))(void) { return cuMemcpy; }
""" + "".join(f"int other_{number}(void) {{ return {number}; }}\n" for number in range(300))
"""A function that is not exported, a function of another library, and a variable are no probe points."""


def shared_object(path: Path, *flags: str, source: str = SOURCE) -> Path:
    """Build a shared object. If gcc is missing, the test is skipped."""
    command = [needed("gcc"), "-shared", "-fPIC", "-O1", "-x", "c", "-", *flags, "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return path
