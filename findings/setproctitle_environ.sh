#!/usr/bin/env bash
# Software: setproctitle 1.3.8, psutil 7.2.2 (PyPI), CPython 3.11, Linux.
# Guess: /proc/PID/environ has the environment that a process was started with. A program that changes its title at most
#   shortens the list, so that a variable that is missing there was not set.
# Behaviour: a title of 14 characters replaces the whole environment by zero bytes. The file has the same size, psutil
#   returns an empty dictionary and no error, and inside the process the variable still has its value. vLLM, Ray and
#   Gunicorn set titles so. A monitor then reads "not set", and assumes the default, of exactly these processes.
# Output seen:
#   before: variable /run/site/mps, empty False
#   after: variable None, empty True, same size True, only zero bytes True
#   in the process: /run/site/mps
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q setproctitle==1.3.8 psutil==7.2.2 2>/dev/null
cat >worker.py <<'PY'
import os
import sys

import setproctitle

print("started", flush=True)
sys.stdin.readline()
setproctitle.setproctitle("worker: step 1")
print(os.environ["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
sys.stdin.readline()
PY
cat >observe.py <<'PY'
import subprocess
import sys
from pathlib import Path

import psutil

environment = {"CUDA_MPS_PIPE_DIRECTORY": "/run/site/mps", "PATH": "/usr/bin"}
pipe = subprocess.PIPE
worker = subprocess.Popen([sys.executable, "worker.py"], env=environment, stdin=pipe, stdout=pipe, text=True)
worker.stdout.readline()
file = Path(f"/proc/{worker.pid}/environ")
before, size = psutil.Process(worker.pid).environ(), len(file.read_bytes())
print(f"before: variable {before.get('CUDA_MPS_PIPE_DIRECTORY')}, empty {not before}")
worker.stdin.write("\n")
worker.stdin.flush()
inside = worker.stdout.readline().strip()
after, raw = psutil.Process(worker.pid).environ(), file.read_bytes()
print(
    f"after: variable {after.get('CUDA_MPS_PIPE_DIRECTORY')}, empty {not after}, same size {len(raw) == size}, "
    f"only zero bytes {set(raw) == {0}}"
)
print(f"in the process: {inside}")
worker.communicate("\n")
PY
venv/bin/python observe.py | tee seen
diff seen - <<'SEEN'
before: variable /run/site/mps, empty False
after: variable None, empty True, same size True, only zero bytes True
in the process: /run/site/mps
SEEN
