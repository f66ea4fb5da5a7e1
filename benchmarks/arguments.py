"""Command line arguments of the scripts."""

import argparse
from pathlib import Path


def parser(script: str, purpose: str, *, gpus: int, clients: int) -> argparse.ArgumentParser:
    """Return a parser with the arguments of all scripts and this script's defaults."""
    found = argparse.ArgumentParser(prog=f"python -m benchmarks.{script}", description=purpose)
    found.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    found.add_argument("--gpus", type=int, default=gpus, help="GPUs of the stand-in node (default: %(default)s)")
    found.add_argument("--clients", type=int, default=clients, help="clients on each GPU (default: %(default)s)")
    found.add_argument(
        "--real", action="store_true", help="on this machine's GPU, with MPS and nvcc, instead of stand-ins; as root"
    )
    found.add_argument(
        "--flag", action="append", default=[], metavar="FLAG", help="one more of the exporter's own; can be given again"
    )
    return found
