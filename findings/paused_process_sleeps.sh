#!/usr/bin/env bash
# Software: Linux, freezers of cgroup v1 and v2 (seen with 6.18), ps of procps 4.0.2 (Debian 12), psutil 7.2.2 (PyPI). Needs root, and a
#   kernel with both freezers.
# Guess: `podman pause`, `docker pause` and `systemctl freeze` stop processes as SIGSTOP does, so ps and psutil show a paused process as
#   stopped (T), or in both cgroup versions as D. SIGKILL acts on a paused process in both, or in neither.
# Behaviour: with cgroup v2 a paused process has state S and psutil says "sleeping", also one that was computing. It looks like an idle
#   process, and the wait channel does not name the freezer. SIGKILL ends it. With cgroup v1 it has state D, as if a driver hung, and
#   SIGKILL waits until it is thawed. Neither is T, and SIGCONT continues neither. So a monitor that looks for T reports a paused
#   daemon as hung (v2), or as stuck in the driver (v1). Only the cgroup shows it: `frozen` of cgroup.events, and freezer.state.
# Output seen:
#   SIGSTOP: ps T, psutil stopped
#   cgroup v2: ps S, psutil sleeping, wait channel of a freezer False; after SIGCONT ps S; SIGKILL ends it True
#   cgroup v1: ps D, psutil disk-sleep, wait channel of a freezer True; after SIGCONT ps D; SIGKILL ends it False
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q psutil==7.2.2 2>/dev/null
cat >observe.py <<'PY'
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

GROUP = f"paused-{os.getpid()}"


def computing():
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def ps(process):
    return subprocess.run(["ps", "-o", "s=", "-p", str(process.pid)], capture_output=True, text=True).stdout.strip()


def show(name, process):
    print(f"{name}: ps {ps(process)}, psutil {psutil.Process(process.pid).status()}", end="")


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def pause(name, group, control, words, is_frozen):
    group.mkdir()
    process = computing()
    try:
        (group / "cgroup.procs").write_text(str(process.pid))
        (group / control).write_text(words[0])
        wait_for(is_frozen)
        show(name, process)
        channel = Path(f"/proc/{process.pid}/wchan").read_text()
        print(f", wait channel of a freezer {'refrigerator' in channel or 'freez' in channel}", end="")
        process.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        print(f"; after SIGCONT ps {ps(process)}", end="")
        process.kill()
        time.sleep(2)
        print(f"; SIGKILL ends it {process.poll() is not None}", flush=True)
    finally:
        process.kill()
        (group / control).write_text(words[1])
        process.wait()
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


process = computing()
process.send_signal(signal.SIGSTOP)
wait_for(lambda: ps(process) == "T")
show("SIGSTOP", process)
print()
process.kill()
process.wait()
two, one = Path("v2", GROUP), Path("v1", GROUP)
pause("cgroup v2", two, "cgroup.freeze", "10", lambda: "frozen 1" in (two / "cgroup.events").read_text())
pause("cgroup v1", one, "freezer.state", ("FROZEN", "THAWED"), lambda: (one / "freezer.state").read_text() == "FROZEN\n")
PY
cat >mount.sh <<'SH2'
set -euo pipefail
mkdir v1 v2
mount -t cgroup2 none v2
mount -t cgroup -o freezer none v1
venv/bin/python observe.py
SH2
unshare --mount sh -c 'mkdir try && mount -t cgroup2 none try && mount -t cgroup -o freezer none try' 2>/dev/null ||
    { echo "needs a kernel with the freezers of cgroup v1 and v2"; exit 77; }
unshare --mount bash mount.sh | tee seen
diff seen - <<'SEEN'
SIGSTOP: ps T, psutil stopped
cgroup v2: ps S, psutil sleeping, wait channel of a freezer False; after SIGCONT ps S; SIGKILL ends it True
cgroup v1: ps D, psutil disk-sleep, wait channel of a freezer True; after SIGCONT ps D; SIGKILL ends it False
SEEN
