#!/usr/bin/env bash
# Software: nvidia-ml-py 13.615.71; glibc of an x86-64 Linux (seen with 2.36); libraries from psutil 6.1.1 for i686 and aarch64.
# Guess: if the first libnvidia-ml.so.1 of the search path is for another machine, the loader refuses it and says so: for i686
#   and for aarch64 alike. nvidia-ml-py passes on which it was, or at least that a library was found and not usable.
# Behaviour: The loader names the file and the wrong class only for i686. It skips a 64-bit library for another machine, as if
#   it were not there, and reports that no such file exists. nvidia-ml-py says "Shared Library Not Found" for both. So with an
#   image for aarch64 on x86-64, or with its libraries mounted, all messages advise to install what is installed.
# Output seen:
#   i686: libnvidia-ml.so.1: wrong ELF class: ELFCLASS32
#   i686: nvidia-ml-py: NVML Shared Library Not Found
#   aarch64: libnvidia-ml.so.1: cannot open shared object file: No such file or directory
#   aarch64: nvidia-ml-py: NVML Shared Library Not Found
set -euo pipefail
[ "$(uname -m)" = x86_64 ] || { echo "needs x86-64"; exit 77; }
if ldconfig -p | grep -q libnvidia-ml.so.1; then echo "needs a machine without the NVIDIA driver"; exit 77; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q nvidia-ml-py==13.615.71
for machine in i686 aarch64; do
    venv/bin/pip download -q --no-deps --only-binary=:all: --python-version 3.11 --platform "manylinux2014_$machine" \
        --platform "manylinux_2_17_$machine" --platform "manylinux2010_$machine" -d "$machine" psutil==6.1.1
    python3 -m zipfile -e "$machine"/*.whl "$machine"
    cp "$machine"/psutil/*linux*.so "$machine/libnvidia-ml.so.1"
done
cat >observe.py <<'PY'
import ctypes
import sys

import pynvml

try:
    ctypes.CDLL("libnvidia-ml.so.1")
except OSError as error:
    print(f"{sys.argv[1]}: libnvidia-ml.so.1: {str(error).partition(': ')[2]}")
try:
    pynvml.nvmlInit()
except pynvml.NVMLError as error:
    print(f"{sys.argv[1]}: nvidia-ml-py: {error}")
PY
for machine in i686 aarch64; do LD_LIBRARY_PATH="$folder/$machine" venv/bin/python observe.py "$machine"; done | tee seen
diff seen - <<'SEEN'
i686: libnvidia-ml.so.1: wrong ELF class: ELFCLASS32
i686: nvidia-ml-py: NVML Shared Library Not Found
aarch64: libnvidia-ml.so.1: cannot open shared object file: No such file or directory
aarch64: nvidia-ml-py: NVML Shared Library Not Found
SEEN
