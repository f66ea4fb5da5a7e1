#!/usr/bin/env bash
# Software: Linux, perf_event_open(2) with the uprobe PMU (seen with 6.18, x86-64, 2 cores). No other software is used.
# Guess: SIGKILL ends a process within milliseconds, and the kernel removes all of its uprobes with it: ten or a hundred make
#   no difference.
# Behaviour: The kernel closes the events one after the other, and each close waits for all CPUs, about 0.1 s. Until the last one
#   is closed, the process is not gone (no second SIGKILL helps), waitpid(2) waits, and the remaining probes slow their
#   programs down. A process with 280 probes ended 32 s after its SIGKILL. So the time to wait for a killed tracer, and its
#   cost for the targets, grow with the number of probes.
# Output seen:
#   10 probes: 1.0 s from SIGKILL to the end
#   100 probes: 9.1 s from SIGKILL to the end
#   more than 4 times as long
set -euo pipefail
[ "$(uname -m)" = x86_64 ] && [ "$(id -u)" = 0 ] || { echo "needs root on x86-64"; exit 77; }
[ -r /sys/bus/event_source/devices/uprobe/type ] || { echo "needs a kernel with the uprobe PMU"; exit 77; }
command -v gcc nm >/dev/null || { echo "needs gcc and nm"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >target.c <<'C'
__asm__(".text\n.globl nops\nnops:\n.rept 4096\nnop\n.endr\nret\n");
void nops(void);
int main(void) { nops(); return 0; }
C
gcc -no-pie -o target target.c
cat >observe.py <<'PY'
import ctypes
import os
import signal
import struct
import sys
import time
from pathlib import Path

PERF_EVENT_OPEN, ATTRIBUTE_BYTES, CLOSE_ON_EXEC = 298, 112, 8
libc = ctypes.CDLL(None, use_errno=True)
kind = int(Path("/sys/bus/event_source/devices/uprobe/type").read_text())
path = ctypes.create_string_buffer(str(Path("target").resolve()).encode())
# An address of a program without position-independent code is 0x400000 more than its offset in the file.
offset = int(sys.argv[1], 16) - 0x400000


def add_probe(number):
    """Open an event on a function of a program that no process runs."""
    fields = struct.pack("=IIQQQQQIIQQ", kind, ATTRIBUTE_BYTES, 0, 0, 0, 0, 0, 0, 0, ctypes.addressof(path), offset + 8 * number)
    if libc.syscall(PERF_EVENT_OPEN, fields.ljust(ATTRIBUTE_BYTES, b"\0"), -1, 0, -1, CLOSE_ON_EXEC) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def seconds_to_end(count):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for number in range(count):
                add_probe(number)
            os.write(writing, b"y")
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(writing)
    if os.read(reading, 1) != b"y":
        print("needs a kernel that permits uprobes")
        sys.exit(77)
    began = time.monotonic()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return time.monotonic() - began


few, many = seconds_to_end(10), seconds_to_end(100)
print(f"10 probes: {few:.1f} s from SIGKILL to the end")
print(f"100 probes: {many:.1f} s from SIGKILL to the end")
print("more than 4 times as long" if many > 4 * few else "less than 4 times as long")
sys.exit(0 if many > 4 * few and many > 0.5 else 1)
PY
python3 observe.py "$(nm target | awk '$3 == "nops" { print $1 }')"
