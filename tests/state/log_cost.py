"""What a command adds to the daemon's log (measured, R580): four lines, and every line of the reply."""

from exporter.parse.control_reply import DEFAULT_PINNED_MEMORY, VERSION_FLAG
from tests.builders import stamped

NO_DEFAULT = "No default pinned memory limit set for the device!"


def log_cost(command: str, stdout: str) -> int:
    """Return the bytes of control.log for a command and its reply."""
    if command == VERSION_FLAG:
        return 0
    lines = stdout.splitlines()
    if command.startswith(DEFAULT_PINNED_MEMORY) and not lines:
        lines = [NO_DEFAULT]
    written = ("Accepting connection...", "NEW UI", f"Cmd:{command}", *lines, "UI closed")
    return sum(len(stamped(line)) + 1 for line in written)
