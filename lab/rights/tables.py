"""Tables in Markdown, in the file that GPU_RIGHTS_TABLE names."""

import os
import sys


def write(table: str) -> None:
    """Print a table, and append it to the file."""
    sys.stdout.write(table)
    name = os.environ.get("GPU_RIGHTS_TABLE")
    if name is not None:
        with open(name, "a") as file:
            file.write(f"{table}\n")
