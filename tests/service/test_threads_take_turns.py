"""No thread of the service delays the others for long."""

import subprocess
import sys

FULL_COLLECTIONS = """
import gc, sys
from exporter.commands.serve import pause_threads_less

if sys.argv[1:] == ["less"]:
    pause_threads_less()
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
kept = [[] for _ in range(200_000)]
print(len(full), len(gc.get_objects(generation=2)), sys.getswitchinterval())
"""


def measured(*arguments: str) -> list[float]:
    """Return steps of full garbage collections, objects that one looks at, and the switch interval in seconds."""
    done = subprocess.run([sys.executable, "-c", FULL_COLLECTIONS, *arguments], capture_output=True, check=True)
    return [float(word) for word in done.stdout.split()]


def test_full_collections_are_rare_and_skip_modules_and_threads_take_turns_often() -> None:
    full, objects, seconds = measured("less")
    more, with_modules, longer = measured()

    assert full < more or sys.version_info >= (3, 14)  # that version collects in steps
    assert objects < with_modules - 20_000
    assert seconds < longer
