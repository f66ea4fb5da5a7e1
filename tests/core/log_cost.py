"""What one command writes into the daemon's log (measured, R580): four lines, and every line of the reply."""

from exporter.parse.control_reply import DEFAULT_PINNED_MEMORY, VERSION_FLAG
from tests.builders import stamped

NO_DEFAULT = "No default pinned memory limit set for the device!"


def log_cost(command: str, stdout: str) -> int:
    """Bytes of control.log that a command and its reply cost."""
    if command == VERSION_FLAG:
        return 0
    said = stdout.splitlines()
    if command.startswith(DEFAULT_PINNED_MEMORY) and not said:
        said = [NO_DEFAULT]
    lines = ("Accepting connection...", "NEW UI", f"Cmd:{command}", *said, "UI closed")
    return sum(len(stamped(line)) + 1 for line in lines)
