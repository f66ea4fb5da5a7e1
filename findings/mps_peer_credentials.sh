#!/usr/bin/env bash
# Software: CUDA MPS of driver 580.159.04, NVIDIA H200, Linux 6.18, CPython 3.12. Needs a GPU with MPS, and root.
# Guess: a client connects to the control daemon, which passes the accepted connection to the server. So at the server's
#   end, SO_PEERCRED names the client's process, and at the client's end what listened: the daemon.
# Behaviour: the daemon makes both ends of each connection between client and server, and passes one to each. SO_PEERCRED
#   names the daemon at both ends, for the client's life and after its exit. `ss -p` and lsof, which compare inodes, still
#   find both processes. Another socket identifies the client: libcuda listens at an abstract name
#   with the client's PID, and whatever inherits that socket shows the client's PID by SO_PEERCRED.
# Output seen:
#   connections between client and server: 2
#   at the server's end, SO_PEERCRED is the daemon: True, the client: False
#   at the client's end, SO_PEERCRED is the daemon: True, the server: False
#   the client listens at cuda-uvmfd-NAMESPACE-PID, by SO_PEERCRED the client: True
set -euo pipefail
command -v nvidia-cuda-mps-control >/dev/null && nvidia-smi -L >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || exit 77
folder=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log
mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
trap 'echo quit | nvidia-cuda-mps-control >/dev/null; rm -rf "$folder"' EXIT
nvidia-cuda-mps-control -d
cat >"$folder/client.py" <<'PY'
import ctypes
import sys

cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("ready", flush=True)
sys.stdin.read()
PY
cat >"$folder/observe.py" <<'PY'
import ctypes
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

libc = ctypes.CDLL(None)
pipe = subprocess.PIPE


def sockets(pid):
    pidfd = os.pidfd_open(pid)
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(link).startswith("socket:"):
            with socket.socket(fileno=libc.syscall(438, pidfd, int(link.name), 0)) as copy:
                peer = struct.unpack("=iII", copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    yield copy.getsockname(), None, peer
                else:
                    yield copy.getsockname(), copy.getpeername(), peer


client = subprocess.Popen([sys.executable, sys.argv[1]], stdin=pipe, stdout=pipe, text=True)
client.stdout.readline()
control = subprocess.run(
    ["nvidia-cuda-mps-control"], input="get_server_list", capture_output=True, text=True, check=True
)
server = int(control.stdout)
daemon = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
of_client, of_server = list(sockets(client.pid)), list(sockets(server))
pairs = [(mine, theirs) for mine in of_client for theirs in of_server if mine[1] and mine[:2] == theirs[1::-1]]
print("connections between client and server:", len(pairs))
at_server, at_client = {theirs[2] for _, theirs in pairs}, {mine[2] for mine, _ in pairs}
print(f"at the server's end, SO_PEERCRED is the daemon: {at_server == {daemon}}, the client: {client.pid in at_server}")
print(f"at the client's end, SO_PEERCRED is the daemon: {at_client == {daemon}}, the server: {server in at_client}")
name = f"\0cuda-uvmfd-{os.stat('/proc/self/ns/pid').st_ino}-{client.pid}".encode()
peers = [peer for own, end, peer in of_client if end is None and own.rstrip(b"\0") == name]
print("the client listens at cuda-uvmfd-NAMESPACE-PID, by SO_PEERCRED the client:", peers == [client.pid])
client.communicate()
PY
python3 "$folder/observe.py" "$folder/client.py" | tee "$folder/seen"
diff "$folder/seen" - <<'SEEN'
connections between client and server: 2
at the server's end, SO_PEERCRED is the daemon: True, the client: False
at the client's end, SO_PEERCRED is the daemon: True, the server: False
the client listens at cuda-uvmfd-NAMESPACE-PID, by SO_PEERCRED the client: True
SEEN
