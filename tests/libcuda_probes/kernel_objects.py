"""BPF objects in the kernel: those of a process, and whether they still exist."""

import contextlib
import ctypes
import errno
import os
import platform
import re
import struct
from pathlib import Path

from .bpf_permission import BPF

_BY_ID = {"prog": 13, "map": 14, "link": 30}


def bpf_objects_of(pid: int) -> set[tuple[str, int]]:
    found = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        # The process opens and closes files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            ids = re.findall(r"^(prog|map|link)_id:\s+(\d+)$", file.read_text(), re.MULTILINE)
            # The file of a link names its program, too. The file of a program names no map.
            found.update((kind, int(number)) for kind, number in ids)
    return found


def exists(kind: str, number: int) -> bool:
    asked = struct.pack("<III", number, 0, 0)
    answer = ctypes.CDLL(None, use_errno=True).syscall(BPF[platform.machine()], _BY_ID[kind], asked, len(asked))
    if answer >= 0:
        os.close(answer)
        return True
    assert ctypes.get_errno() == errno.ENOENT, os.strerror(ctypes.get_errno())
    return False
