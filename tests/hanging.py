"""A directory that hangs like that of a dead NFS server: a FUSE mount without a server (fuse(4))."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

MNT_DETACH = 2


@contextlib.contextmanager
def hangs(directory: Path) -> Iterator[None]:
    """Make every access to this directory hang. Raises OSError if the mount is not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"hangs", bytes(directory), b"fuse", ctypes.c_ulong(0), options):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(directory))
        yield
    finally:
        # Each hung access then fails.
        os.close(descriptor)
        libc.umount2(bytes(directory), MNT_DETACH)
