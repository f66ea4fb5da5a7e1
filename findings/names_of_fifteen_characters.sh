#!/usr/bin/env bash
# Software: ps of procps 4.0.2, killall of psmisc 23.6, pidof of sysvinit-utils 3.06 (Debian 12), Linux. Needs Debian 12 and
#   root, no GPU: copies of sleep have the names of the two MPS programs.
# Guess: the kernel keeps 15 characters of a name, and nvidia-cuda-mps-control and nvidia-cuda-mps-server have the same 15. Current tools
#   handle that: ps(1) says that the limit of -C is gone and that 15 characters may no longer match, and killall reads the whole
#   name. So `ps -C nvidia-cuda-mps-server` lists servers only, and `killall -0 nvidia-cuda-mps-control` shows whether a daemon runs.
# Behaviour: `ps -C` still compares the first 15 characters of what it is given. So `kill $(ps -C nvidia-cuda-mps-server -o pid=)` ends
#   the control daemon as well, and a check of a name that no process has succeeds. killall is right for running processes. For a process
#   without arguments in /proc it takes 15 characters: an ended server, which its parent has not waited for yet, counts as a running
#   daemon, unless -e is given. killall(1) names only swapped-out names as a reason. pidof is right in all cases.
# Output seen:
#   daemon and server live: ps -C of server daemon server, of a third name daemon server; killall of server server; pidof of server server
#   only a dead server: ps -C of daemon dead; killall of daemon dead, with -e nothing; pidof of daemon nothing
set -euo pipefail
[ "$(uname -m)" = x86_64 ] && [ "$(id -u)" = 0 ] || { echo "needs root on x86-64"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt-get downloads as a user of its own
apt-get download -q procps='2:4.0.2-3*' libproc2-0='2:4.0.2-3*' psmisc='23.6-1*' sysvinit-utils='3.06-4*' >/dev/null 2>&1
for package in ./*.deb; do dpkg -x "$package" root; done
cp /bin/sleep nvidia-cuda-mps-control
cp /bin/sleep nvidia-cuda-mps-server
cat >observe.py <<'PY'
import os
import re
import signal
import subprocess
import time

DAEMON, SERVER, THIRD = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-cuda-mps-other"
names = {}


def start(program, name):
    process = subprocess.Popen([f"./{program}", "60"])
    names[process.pid] = name
    while program[:15] != open(f"/proc/{process.pid}/comm").read().strip():
        time.sleep(0.01)
    return process


def found(*command):
    """Return the names of the started processes that a command shows by their PIDs."""
    shown = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment).stdout
    return " ".join(name for pid, name in sorted(names.items()) if re.search(rf"\b{pid}\b", shown)) or "nothing"


def ps(name):
    return found("root/bin/ps" if os.path.exists("root/bin/ps") else "root/usr/bin/ps", "-C", name, "-o", "pid=")


def killall(name, *options):
    # Signal 0 only shows which processes it would take. With -e, -v also shows those that it does not take.
    return found("sh", "-c", 'root/usr/bin/killall -0 -v "$@" 2>&1 | grep ^Killed', "sh", *options, name)


def pidof(name):
    return found("root/bin/pidof", name)


environment = {"LD_LIBRARY_PATH": os.path.abspath("root/usr/lib/x86_64-linux-gnu"), "LC_ALL": "C", "PATH": os.environ["PATH"]}
daemon, server = start(DAEMON, "daemon"), start(SERVER, "server")
print(f"daemon and server live: ps -C of server {ps(SERVER)}, of a third name {ps(THIRD)}; killall of server {killall(SERVER)}; "
      f"pidof of server {pidof(SERVER)}")
daemon.kill()
daemon.wait()
names = {server.pid: "dead"}
server.kill()
os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
print(f"only a dead server: ps -C of daemon {ps(DAEMON)}; killall of daemon {killall(DAEMON)}, with -e {killall(DAEMON, '-e')}; "
      f"pidof of daemon {pidof(DAEMON)}")
PY
# The tools see the processes of this PID namespace only.
unshare --pid --fork --kill-child --mount-proc python3 observe.py | tee seen
diff seen - <<'SEEN'
daemon and server live: ps -C of server daemon server, of a third name daemon server; killall of server server; pidof of server server
only a dead server: ps -C of daemon dead; killall of daemon dead, with -e nothing; pidof of daemon nothing
SEEN
