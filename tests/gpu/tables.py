"""Tables for people to read, one after another in the file that GPU_RIGHTS_TABLE names."""

import os
import sys


def keep(table: str) -> None:
    """Print it, and add it to what the file holds already."""
    sys.stdout.write(table)
    name = os.environ.get("GPU_RIGHTS_TABLE")
    if name is not None:
        with open(name, "a") as file:
            file.write(f"{table}\n")
