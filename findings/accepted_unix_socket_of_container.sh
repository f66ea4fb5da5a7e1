#!/usr/bin/env bash
# Software: Linux, Unix stream sockets and network namespaces (seen with 6.18), ss and ip of iproute2 6.1.0, lsns of util-linux 2.38.1
#   (Debian 12). Needs root.
# Guess: a daemon of the node listens at a path that is mounted into a container. The socket that accept(2) returns is the daemon's, so
#   `ss -xp` and /proc/net/unix on the node, in the daemon's own network namespace, list each connection of it. When the last process
#   of the container has ended, the kernel destroys the container's network namespace.
# Behaviour: the accepted socket belongs to the network namespace of the process that connected, so the node's tables show only the
#   listening socket. "No connections" on the node is false for each client in a container with a network of its own. `nsenter --net`
#   into the client's namespace shows the connection, with the daemon's PID. The accepted socket also keeps that namespace: until the
#   daemon closes it, the network interfaces of the ended container remain, and no list of namespaces has it. So a hung daemon that
#   uses no network keeps them. SIOCGSKNS of the socket finds the namespace.
# Output seen:
#   on the node: listening socket in ss True; accepted connection in ss False, in /proc/net/unix False
#   in the client's namespace: accepted connection in ss True, with the daemon's PID True; SIOCGSKNS is this namespace True
#   client ended: in lsns False; its network interface is gone False
#   daemon closed the connection: its network interface is gone True
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 77; }
command -v ss ip lsns unshare nsenter python3 >/dev/null || { echo "needs iproute2, util-linux and Python"; exit 77; }
unshare --net sh -c 'ip link add end type veth peer name other' 2>/dev/null || { echo "needs veth"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >observe.py <<'PY'
import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

SIOCGSKNS = 0x894C
CLIENT = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


path = str(Path("control").resolve())
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
pipe = subprocess.PIPE
client = subprocess.Popen(["unshare", "--net", sys.executable, "-c", CLIENT, path], stdin=pipe, stdout=pipe)
client.stdout.readline()
accepted, _ = listener.accept()
number, listening = (f" {os.fstat(each.fileno()).st_ino} " for each in (accepted, listener))
output("ip", "link", "add", "node", "type", "veth", "peer", "name", "container", "netns", str(client.pid))
node = output("ss", "-xap")
print(
    f"on the node: listening socket in ss {listening in node}; accepted connection in ss {number in node}, "
    f"in /proc/net/unix {number in Path('/proc/net/unix').read_text()}"
)
namespace = os.stat(f"/proc/{client.pid}/ns/net").st_ino
table = output("nsenter", f"--net=/proc/{client.pid}/ns/net", "ss", "-xap")
lines = [line for line in table.splitlines() if f"{path}{number}" in line]
found = fcntl.ioctl(accepted, SIOCGSKNS)
print(
    f"in the client's namespace: accepted connection in ss {len(lines) == 1}, with the daemon's PID "
    f"{any(f'pid={os.getpid()},' in line for line in lines)}; SIOCGSKNS is this namespace {os.fstat(found).st_ino == namespace}"
)
os.close(found)
client.communicate()


def gone(seconds):
    deadline = time.monotonic() + seconds
    while "node:" in Path("/proc/self/net/dev").read_text():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


namespaces = output("lsns", "--noheadings", "--type", "net", "--output", "NS")
print(f"client ended: in lsns {str(namespace) in namespaces}; its network interface is gone {gone(3)}")
accepted.close()
print(f"daemon closed the connection: its network interface is gone {gone(30)}")
PY
uname -r
unshare --net python3 observe.py | tee seen
diff seen - <<'SEEN'
on the node: listening socket in ss True; accepted connection in ss False, in /proc/net/unix False
in the client's namespace: accepted connection in ss True, with the daemon's PID True; SIOCGSKNS is this namespace True
client ended: in lsns False; its network interface is gone False
daemon closed the connection: its network interface is gone True
SEEN
