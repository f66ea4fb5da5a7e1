#!/usr/bin/env bash
# Software: Linux (seen with 6.18), fuser of psmisc 23.6, lsof 4.95.0, ss of iproute2 6.1.0 (Debian 12), psutil 7.2.2 (PyPI). Needs gcc
#   and root.
# Guess: a process of state Z (ps: <defunct>) has ended. It holds no file, no socket and no lock, and waits for its parent only. If
#   root asks fuser, lsof or `ss -p` who holds a file or listens at a socket, a living holder is named.
# Behaviour: the state, fd and environ of /proc/PID are those of the main thread. If that has ended (pthread_exit(3) in main) and another
#   thread goes on, the process is shown as Z, although it holds all that it had. fd is empty and environ unreadable; the true ones
#   are in /proc/PID/task/TID. So fuser, lsof and ss name no process; lsof lists the files if it is given -K and the PID. psutil
#   reports a zombie with 0 descriptors, without an error. "No process uses the device" is false, and so is "the client has ended".
#   `Threads` of /proc/PID/status tells the two kinds of Z apart. A killed process of which one thread stays in state D, as in a
#   driver that hangs, looks the same (tried by hand with the freezer of cgroup v1). Ending its parent does not help.
# Output seen:
#   main thread runs: ps S, Threads 2; in fuser True, lsof True, lsof -K -p True, ss True; psutil: sleeping, fd True, environ True
#   main thread ended: ps Z, Threads 2; in fuser False, lsof False, lsof -K -p True, ss False; psutil: zombie, fd False, environ False
#   it answers at its socket: True; in /proc/PID/task/TID: fd True, environ True
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 77; }
command -v gcc ss >/dev/null || { echo "needs gcc and iproute2"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt-get downloads as a user of its own
apt-get download -q psmisc='23.6-1*' lsof='4.95.0-1*' libtirpc3 >/dev/null 2>&1
for package in ./*.deb; do dpkg -x "$package" root; done
python3 -m venv venv
venv/bin/pip install -q psutil==7.2.2 2>/dev/null
cat >server.c <<'C'
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
static int listening;
static void *serve(void *unused) {
    for (;;) {
        int client = accept(listening, NULL, NULL);
        if (write(client, "here", 4) != 4) return unused;
        close(client);
    }
}
int main(int count, char **words) {
    struct sockaddr_un address = {AF_UNIX, "socket"};
    pthread_t thread;
    int file = open("file", O_RDWR);
    listening = socket(AF_UNIX, SOCK_STREAM, 0);
    if (file < 0 || bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 4)) return 1;
    pthread_create(&thread, NULL, serve, NULL);
    puts("ready");
    fflush(stdout);
    if (count > 1 && !strcmp(words[1], "ended")) pthread_exit(NULL);
    return pthread_join(thread, NULL);
}
C
gcc -pthread -o server server.c
cat >observe.py <<'PY'
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

root = Path("root").resolve()
environment = {
    "PATH": f"{root}/bin:{root}/usr/bin:" + os.environ["PATH"],
    "LD_LIBRARY_PATH": f"{root}/usr/lib/{os.uname().machine}-linux-gnu",
}


def names(pid, *command, then=""):
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return re.search(rf"\b{pid}\b.*{then}$", done.stdout, re.MULTILINE) is not None


def succeeds(method):
    try:
        return bool(method())
    except psutil.ZombieProcess:
        return False


state = sys.argv[1]
Path("file").touch()
Path("socket").unlink(missing_ok=True)
server = subprocess.Popen(["./server", state], stdout=subprocess.PIPE, env={"OWNER": "team"})
try:
    server.stdout.readline()
    time.sleep(0.5)
    pid, process = server.pid, psutil.Process(server.pid)
    ps = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    listed = subprocess.run(["ss", "-xlp"], capture_output=True, text=True, check=True).stdout
    print(
        f"main thread {state}: ps {ps}, Threads {process.num_threads()}; in fuser {names(pid, 'fuser', 'file')}, "
        f"lsof {names(pid, 'lsof', '-t', 'file')}, lsof -K -p {names(pid, 'lsof', '-K', '-p', str(pid), then='/file')}, "
        f"ss {f'pid={pid},' in listed}; psutil: {process.status()}, fd {succeeds(process.num_fds)}, environ {succeeds(process.environ)}"
    )
    if state == "ended":
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("socket")
            answers = connection.recv(4) == b"here"
        threads = [path for path in Path(f"/proc/{pid}/task").iterdir() if path.name != str(pid)]
        descriptors = any((path / "fd").iterdir() for path in threads)
        environ = any(b"OWNER=team" in (path / "environ").read_bytes() for path in threads)
        print(f"it answers at its socket: {answers}; in /proc/PID/task/TID: fd {descriptors}, environ {environ}")
finally:
    server.kill()
    server.wait()
PY
uname -r
{ venv/bin/python observe.py runs; venv/bin/python observe.py ended; } | tee seen
diff seen - <<'SEEN'
main thread runs: ps S, Threads 2; in fuser True, lsof True, lsof -K -p True, ss True; psutil: sleeping, fd True, environ True
main thread ended: ps Z, Threads 2; in fuser False, lsof False, lsof -K -p True, ss False; psutil: zombie, fd False, environ False
it answers at its socket: True; in /proc/PID/task/TID: fd True, environ True
SEEN
