"""What the kernel writes of a process that it killed for want of memory.

Wording: `__oom_kill_process` in mm/oom_kill.c, Linux 5.0 and later. Which memory was short stands before it; the name
behind the PID is what that process chose, and nothing is read of it.
"""

import re

KILLED = re.compile(
    r"(?:Out of memory(?: \(oom_kill_allocating_task\))?|Memory cgroup out of memory): Killed process ([0-9]{1,10}) \("
)


def killed(message: str) -> int | None:
    """The PID of the process that was killed; None where the message is of nothing such."""
    found = KILLED.match(message)
    return None if found is None else int(found[1])
