"""What the exporter alone needs stays with it."""

import subprocess
import sys

SCRIPT = """
import subprocess
from exporter.collectors.child import keep_capabilities_from_children
assert keep_capabilities_from_children()
print(subprocess.run(["grep", "CapAmb", "/proc/self/status"], capture_output=True, text=True, check=True).stdout)
"""


def test_children_get_no_ambient_capabilities() -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout

    assert int(told.split()[1], 16) == 0
