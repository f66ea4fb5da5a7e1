#!/usr/bin/env bash
# Software: Linux with time namespaces (seen with 6.18), procps 4.0.2 and util-linux 2.38.1 (Debian 12). Needs root.
# Guess: field 22 of /proc/PID/stat is the process' start time in ticks since boot: the same number for each reader, as the PID is
#   if they share a PID namespace. A kernel record's timestamp is on the same clock, so both can be compared.
# Behaviour: the kernel adds the boot-time offset of the reader's time namespace to start times, and to `btime` and /proc/uptime,
#   but not to the timestamps of /dev/kmsg. So two readers that compare PID and start time take one process for two. In the
#   namespace, an Xid that came after a process' start is before it, by the offset. `ps` is right there; `dmesg -T` is wrong by
#   the offset, with no warning. CRIU and the `timeOffsets` of an OCI runtime make such namespaces. proc(5) and
#   time_namespaces(7) do not mention start times.
# Output seen:
#   one process, two readers: start times 100000 s apart, by ps the same time of day True
#   newest kernel record: the same timestamp True, by dmesg -T 100000 s apart
#   it came after the start: reader outside True, reader in the namespace False
set -euo pipefail
[ "$(id -u)" = 0 ] && [ -r /dev/kmsg ] && unshare --time --boottime 100000 true 2>/dev/null ||
    { echo "needs root, /dev/kmsg and time namespaces"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >read.py <<'PY'
import json
import os
import subprocess
import sys
from datetime import datetime

pid = sys.argv[1]
with open(f"/proc/{pid}/stat") as file:
    start = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
ps = subprocess.run(["ps", "-o", "lstart=", "-p", pid], capture_output=True, text=True, check=True).stdout.strip()
by_ps = datetime.strptime(ps, "%a %b %d %H:%M:%S %Y").timestamp()
kmsg = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
number, record = -1, 0.0
try:
    while True:
        fields = os.read(kmsg, 8192).split(b";")[0].split(b",")
        number, record = int(fields[1]), int(fields[2]) / 1e6
except BlockingIOError:
    pass
lines = subprocess.run(["dmesg", "--time-format", "iso"], capture_output=True, text=True, check=True).stdout.splitlines()
newest = datetime.fromisoformat(lines[-1].split()[0].replace(",", ".")).timestamp()
print(json.dumps({"start": start, "ps": by_ps, "number": number, "record": record, "dmesg": newest}))
PY
cat >observe.py <<'PY'
import json
import os
import subprocess
import sys
import time

# PID 1 started before the newest record.
pid, namespace = "1", ("unshare", "--time", "--boottime", "100000", "--monotonic", "100000")


def read(*prefix):
    command = (*prefix, sys.executable, "read.py", pid)
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


for _ in range(20):  # until no new record came between the two
    outside, inside = read(), read(*namespace)
    if outside["number"] == inside["number"]:
        break
    time.sleep(0.5)
print(
    f"one process, two readers: start times {round(inside['start'] - outside['start'])} s apart, "
    f"by ps the same time of day {abs(inside['ps'] - outside['ps']) < 3}"
)
print(
    f"newest kernel record: the same timestamp {inside['record'] == outside['record']}, "
    f"by dmesg -T {round((outside['dmesg'] - inside['dmesg']) / 10) * 10} s apart"
)
print(
    f"it came after the start: reader outside {outside['record'] > outside['start']}, "
    f"reader in the namespace {inside['record'] > inside['start']}"
)
PY
LC_ALL=C python3 observe.py | tee seen
diff seen - <<'SEEN'
one process, two readers: start times 100000 s apart, by ps the same time of day True
newest kernel record: the same timestamp True, by dmesg -T 100000 s apart
it came after the start: reader outside True, reader in the namespace False
SEEN
