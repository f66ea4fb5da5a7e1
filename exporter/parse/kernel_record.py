r"""Records of the kernel's log, as /dev/kmsg gives them: `prefix,sequence,microseconds,flags;text`.

Control characters, backslashes and whatever is not ASCII stand escaped in the text (`\x0a`), so that a record's first
line is all of its text; further lines, which begin with a space, are its dictionary (Linux,
Documentation/ABI/testing/dev-kmsg).
"""

import re
from dataclasses import dataclass

_RECORD = re.compile(r"([0-9]{1,10}),([0-9]{1,20}),([0-9]{1,20}),[^;\n]{0,200};([^\n]*)")
_KERNEL = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record. `microseconds` are of a clock that stands still while the machine sleeps: for ordering alone."""

    priority: int
    facility: int
    sequence: int
    microseconds: int
    message: str

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel wrote it: whoever else writes to /dev/kmsg is given another facility."""
        return self.facility == _KERNEL


def record(text: str) -> Record | None:
    """Read one record; None where it has not even the form of one."""
    found = _RECORD.match(text)
    if found is None:
        return None
    prefix, sequence, microseconds = map(int, found.groups()[:3])
    return Record(
        priority=prefix & 7,
        facility=prefix >> 3,
        sequence=sequence,
        microseconds=microseconds,
        message=found[4],
    )
