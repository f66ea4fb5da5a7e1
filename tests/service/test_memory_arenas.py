"""The service's threads share one memory arena."""

import platform
import subprocess
import sys

import pytest

ARENAS = """
import ctypes, sys, threading
from exporter.commands.serve import use_few_arenas

if sys.argv[1:] == ["few"]:
    use_few_arenas()
libc = ctypes.CDLL(None)
together = threading.Barrier(4)

def allocate():
    together.wait()
    libc.malloc(1 << 16)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def arenas(*arguments: str) -> int:
    """How many arenas malloc has in a process with some threads."""
    done = subprocess.run([sys.executable, "-c", ARENAS, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
def test_all_threads_allocate_from_one_memory_arena() -> None:
    assert arenas("few") == 1
    assert arenas() > 1
