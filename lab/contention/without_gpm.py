"""An NVML without GPM, as of a GPU before Hopper: a library of the same name, which the loader finds first."""

import ctypes
import os
import subprocess
from pathlib import Path

NAME = "libnvidia-ml.so.1"
CODE = """
int nvmlGpmQueryDeviceSupport(void *device, void *support) { return 3; } /* NVML_ERROR_NOT_SUPPORTED */
int nvmlGpmSampleGet(void *device, void *sample) { return 3; }
int nvmlGpmMigSampleGet(void *device, unsigned instance, void *sample) { return 3; }
int nvmlGpmMetricsGet(void *metrics) { return 3; }
"""


def variables(directory: Path) -> dict[str, str]:
    """Build it in a new directory, and return the environment of a process that loads it.

    The library needs another one without a SONAME, which the loader finds by its path. After the link, this path is a
    link to the driver's library, which has the other functions.
    """
    directory.mkdir()
    others = directory / "driver.so"
    gcc = ["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-x", "c"]
    subprocess.run([*gcc, "/dev/null", "-o", str(others)], check=True)
    command = [*gcc, "-", "-x", "none", str(others), "-o", str(directory / NAME)]
    subprocess.run(command, input=CODE, text=True, check=True)
    others.unlink()
    others.symlink_to(drivers_library())
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(directory), os.environ.get("LD_LIBRARY_PATH")]))}


def drivers_library() -> Path:
    """Return the path of the driver's NVML."""
    ctypes.CDLL(NAME)
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split(maxsplit=5)[-1]) for line in lines if NAME.partition(".")[0] in line)
