"""A process that only attaches probes, to be killed by a test. Its arguments are a library and function offsets."""

import json
import sys

from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import LibcudaProbes

from .process_work import SMS, boot_ns


def main() -> None:
    """Attach and print a line. After a line on stdin, close and print a line. Then wait."""
    probes = LibcudaProbes(Kernel(), boot_ns, SMS)
    probes.attach(sys.argv[1], json.loads(sys.argv[2]))
    probes.begin()
    for message in ("watching", "closed"):
        sys.stdout.write(f"{message}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        probes.close()


if __name__ == "__main__":
    main()
