"""What the kernel keeps for a process of BPF, and whether it keeps it still."""

import ctypes
import errno
import os
import platform
import re
import struct
from pathlib import Path

from .bpf_permission import BPF

_BY_ID = {"prog": 13, "map": 14, "link": 30}


def kept(pid: int) -> set[tuple[str, int]]:
    """The programs, maps and links that a process holds, each with the number by which the kernel knows it."""
    found = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        told = re.findall(r"^(prog|map|link)_id:\s+(\d+)$", file.read_text(), re.MULTILINE)
        # A link tells of its program too, and a program of no map.
        found.update((kind, int(number)) for kind, number in told)
    return found


def is_there(kind: str, number: int) -> bool:
    """Whether the kernel has it, whoever holds it."""
    asked = struct.pack("<III", number, 0, 0)
    answer = ctypes.CDLL(None, use_errno=True).syscall(BPF[platform.machine()], _BY_ID[kind], asked, len(asked))
    if answer >= 0:
        os.close(answer)
        return True
    assert ctypes.get_errno() == errno.ENOENT, os.strerror(ctypes.get_errno())
    return False
