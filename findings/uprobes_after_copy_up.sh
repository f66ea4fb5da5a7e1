#!/usr/bin/env bash
# Software: Linux, overlayfs and the uprobe PMU of perf_event_open(2) (seen with 6.18, x86-64). No other software is used.
# Guess: a library that a process of a container has mapped is identified by the device and inode in /proc/PID/maps. A uprobe on
#   a file with these numbers counts the calls of that process. If a path could be another file by now, /proc/PID/map_files is
#   the mapped one.
# Behaviour: if the library's mode or owner changes in the running container, overlayfs copies it to the upper layer, and the
#   process continues in the lower file. All numbers stay the same: of stat(2), of the process' maps, and of the maps of a
#   process that maps the file now. A uprobe by the path, and by /proc/PID/map_files too, goes to the new copy. No error is
#   returned, and no call of the running process is counted. The path in the lower layer still reaches it. So a chmod in a
#   container blinds each tracer that attaches later, and no comparison of device and inode shows it.
# Output seen:
#   before the chmod, 1000 calls: by path 1000
#   after it, the same device and inode: stat True, maps of the process True, maps of another process True
#   after it, 1000 calls: by path 0, by /proc/PID/map_files 0, by the lower file 1000
set -euo pipefail
[ "$(uname -m)" = x86_64 ] && [ "$(id -u)" = 0 ] || { echo "needs root on x86-64"; exit 77; }
[ -r /sys/bus/event_source/devices/uprobe/type ] || { echo "needs a kernel with the uprobe PMU"; exit 77; }
printf '%s\n' 6.8 "$(uname -r)" | sort -VC || { echo "needs Linux 6.8: before, maps show the numbers below overlayfs"; exit 77; }
command -v gcc nm >/dev/null || { echo "needs gcc and nm"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
echo 'int called(int number) { return number + 1; }' >library.c
gcc -shared -fPIC -o library.so library.c
cat >caller.py <<'PY'
import ctypes
import sys

library = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
for _ in sys.stdin:
    for number in range(1000):
        library.called(number)
    print("done", flush=True)
PY
cat >observe.py <<'PY'
import ctypes
import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

PERF_EVENT_OPEN, ATTRIBUTE_BYTES, CLOSE_ON_EXEC = 298, 112, 8
libc = ctypes.CDLL(None, use_errno=True)
kind = int(Path("/sys/bus/event_source/devices/uprobe/type").read_text())
offset, merged, lower = int(sys.argv[1], 16), str(Path("merged/library.so").resolve()), "all/lower/library.so"


def add_probe(path, pid):
    name = ctypes.create_string_buffer(path.encode())
    fields = struct.pack("=IIQQQQQIIQQ", kind, ATTRIBUTE_BYTES, 0, 0, 0, 0, 0, 0, 0, ctypes.addressof(name), offset)
    event = libc.syscall(PERF_EVENT_OPEN, fields.ljust(ATTRIBUTE_BYTES, b"\0"), pid, -1, -1, CLOSE_ON_EXEC)
    if event < 0:
        print("needs a kernel that permits uprobes")
        sys.exit(77)
    return event


def mapped(pid):
    """Return the range of addresses of the library's code, and its device and inode."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith(merged)]
    return next((line[0], *line[3:5]) for line in lines if "x" in line[1] or pid == "self")


def numbers():
    file = os.stat(merged)
    return file.st_dev, file.st_ino


pipe = subprocess.PIPE
caller = subprocess.Popen([sys.executable, "caller.py", merged], stdin=pipe, stdout=pipe, text=True)
caller.stdout.readline()


def counts(*paths):
    events = [add_probe(path, caller.pid) for path in paths]
    caller.stdin.write("\n")
    caller.stdin.flush()
    caller.stdout.readline()
    found = [int.from_bytes(os.read(event, 8), sys.byteorder) for event in events]
    for event in events:
        os.close(event)
    return found


print("before the chmod, 1000 calls: by path {}".format(*counts(merged)))
address, *before = mapped(caller.pid)
numbers_before = numbers()
os.chmod(merged, 0o700)
with open(merged, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
    other = list(mapped("self")[1:])
print(
    f"after it, the same device and inode: stat {numbers() == numbers_before}, "
    f"maps of the process {list(mapped(caller.pid)[1:]) == before}, maps of another process {other == before}"
)
files = counts(merged, f"/proc/{caller.pid}/map_files/{address}", lower)
print("after it, 1000 calls: by path {}, by /proc/PID/map_files {}, by the lower file {}".format(*files))
caller.communicate()
PY
cat >mounts.sh <<'SH2'
set -euo pipefail
mkdir all merged
mount -t tmpfs tmpfs all
mkdir all/lower all/upper all/work
cp library.so all/lower
mount -t overlay -o lowerdir=all/lower,upperdir=all/upper,workdir=all/work overlay merged || { echo "needs overlayfs"; exit 77; }
python3 observe.py "$1"
SH2
unshare -m bash mounts.sh "$(nm -D library.so | awk '$3 == "called" { print $1 }')" | tee seen
diff seen - <<'SEEN'
before the chmod, 1000 calls: by path 1000
after it, the same device and inode: stat True, maps of the process True, maps of another process True
after it, 1000 calls: by path 0, by /proc/PID/map_files 0, by the lower file 1000
SEEN
