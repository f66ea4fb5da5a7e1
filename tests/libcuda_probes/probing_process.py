"""An exporter of which only its watcher is there, to be killed: it is told of a library, and where doors lie in it."""

import json
import sys

from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import LibcudaProbes

from .process_work import SMS, boot_ns


def main() -> None:
    """Watch, and say so; then let go of it where stdin has a line, and say that, and wait."""
    watcher = LibcudaProbes(Kernel(), boot_ns, SMS)
    watcher.attach(sys.argv[1], json.loads(sys.argv[2]))
    watcher.begin()
    for said in ("watching", "closed"):
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        watcher.close()


if __name__ == "__main__":
    main()
