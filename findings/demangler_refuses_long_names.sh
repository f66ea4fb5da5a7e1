#!/usr/bin/env bash
# Software: __cxa_demangle of libstdc++ (GCC 12.2, Debian 12) and of LLVM 23.1 (pycxxfilt 1.2.0, PyPI). Needs no GPU.
# Guess: __cxa_demangle of the system's C++ library, by ctypes or cxxfilt, demangles each valid name. It returns -2 only for
#   a name that is not valid.
# Behaviour: since GCC 9, libstdc++ also returns -2 for each valid name of more than 1,024 characters, to bound its stack.
#   Kernels of CUTLASS 3 have names of 1,300 to 2,500 characters. c++filt has --no-recurse-limit; __cxa_demangle has no
#   option. LLVM's has no such limit.
# Output seen:
#   1024 characters: libstdc++ 0, LLVM demangles: True
#   1025 characters: libstdc++ -2, LLVM demangles: True
#   2000 characters: libstdc++ -2, LLVM demangles: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pycxxfilt==1.2.0 2>/dev/null
cat >"$folder/observe.py" <<'PY'
import ctypes
import sys

import pycxxfilt

demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
demangle.restype = ctypes.c_void_p
seen = []
for length in (1024, 1025, 2000):
    # void kernel<aaa...>()
    size = length - len("_Z6kernelI0000Evv")
    name = f"_Z6kernelI{size:04d}".replace("I0", "I") + "a" * size + "Evv"
    name = f"_Z6kernelI{length - len(name) + size}" + "a" * (length - len(name) + size) + "Evv"
    assert len(name) == length, len(name)
    status = ctypes.c_int()
    demangle(name.encode(), None, None, ctypes.byref(status))
    llvm = pycxxfilt.demangle(name).startswith("void kernel<aaa")
    print(f"{length} characters: libstdc++ {status.value}, LLVM demangles: {llvm}")
    seen.append((status.value, llvm))
sys.exit(seen != [(0, True), (-2, True), (-2, True)])
PY
"$folder/venv/bin/python" "$folder/observe.py"
