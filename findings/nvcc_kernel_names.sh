#!/usr/bin/env bash
# Software: nvcc 13.5 (nvidia-cuda-nvcc 13.5.37 and its parts, PyPI), c++filt of binutils. Needs g++, no GPU.
# Guess: the name of a kernel depends on its declaration only. So one source file has the same names in each build, and a tool can
#   compare kernels of two builds by them. If a name has a random part, -frandom-seed fixes it. c++filt demangles all names.
# Behaviour: the name of a kernel in an anonymous namespace, or with a template argument from one, has a hash of the absolute
#   directory of the source file, and the name of another function in the file, or its hash. So another checkout has other names, and
#   so has a file of which an unrelated function has another type. -frandom-seed, which the help describes for symbol names, does
#   not change them. With -rdc=true (separate compilation of device code), each internal kernel gets a prefix
#   __nv_static_LENGTH_... before its _Z, a static one too, and c++filt returns such a name unchanged. Without the prefix it
#   demangles, to "(anonymous namespace)" in all builds.
# Output seen:
#   same directory, other kernel code and options: the same names True
#   same directory, another parameter type of a host function: the same names plain hidden, other names each named
#   other directory: the same names plain hidden, other names each named
#   -rdc=true: prefix on each hidden named, demangled as they are False, without the prefix True
#   other directories with -frandom-seed=1: the same names False
set -euo pipefail
command -v g++ c++filt >/dev/null || { echo "needs g++ and binutils"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-crt==13.5.37 \
    nvidia-cuda-runtime==13.5.37 2>/dev/null
mkdir one other
cat >one/kernels.cu <<'CU'
#ifndef TYPE
#define TYPE int
#endif
int host(TYPE) { return 0; }
namespace {
struct Write { float *to; __device__ void operator()(int number) { to[number] = 1; } };
__global__ void named(float *to) { to[0] = 2; }
}
template <class Function> __global__ void each(Function function) { function(threadIdx.x); }
static __global__ void hidden(float *to) { to[0] = 3; }
__global__ void plain(float *to) { to[0] = VALUE; }
void run(float *to) {
    each<<<1, 32>>>(Write{to});
    named<<<1, 1>>>(to);
    hidden<<<1, 1>>>(to);
}
CU
cp one/kernels.cu other/
cat >observe.py <<'PY'
import re
import subprocess
from pathlib import Path

nvcc = next(Path("venv").resolve().glob("lib/python*/site-packages/nvidia/*/bin/nvcc"))
kernels = ("each", "hidden", "named", "plain")


def names(directory, *options):
    """Return the name of each kernel, from the PTX."""
    command = [nvcc, "-arch=sm_90", "-ptx", "-o", "kernels.ptx", *options, "kernels.cu"]
    subprocess.run(command, cwd=directory, check=True)
    found = re.findall(r"\.entry (\w+)", Path(directory, "kernels.ptx").read_text())
    return {kernel: next(name for name in found if re.search(rf"\d{kernel}(?![a-z])", name)) for kernel in kernels}


def demangled(texts):
    run = subprocess.run(["c++filt"], input="\n".join(texts), capture_output=True, text=True, check=True)
    return run.stdout.split("\n")


first = names("one", "-DVALUE=4")
changed = names("one", "-DVALUE=5", "-O1", "-lineinfo", "-std=c++20")
print("same directory, other kernel code and options: the same names", first == changed)


def compare(what, second):
    same = [kernel for kernel in reversed(kernels) if first[kernel] == second[kernel]]
    others = (kernel for kernel in kernels if kernel not in same)
    print(f"{what}: the same names {' '.join(same)}, other names {' '.join(others)}")


compare("same directory, another parameter type of a host function", names("one", "-DVALUE=4", "-DTYPE=long"))
compare("other directory", names("other", "-DVALUE=4"))
linked = names("one", "-DVALUE=4", "-rdc=true")
prefixed = {kernel: name for kernel, name in linked.items() if name.startswith("__nv_static_")}
parts = [re.fullmatch(r"__nv_static_(\d+)_(\w+)", name).groups() for name in prefixed.values()]
bare = [rest[int(length) + 1 :] for length, rest in parts]
readable = demangled(bare)
print(
    f"-rdc=true: prefix on {' '.join(prefixed)}, demangled as they are {demangled(prefixed.values()) != list(prefixed.values())},"
    f" without the prefix {readable == demangled(first[kernel] for kernel in prefixed) and readable != bare}"
)
seeded = [names(directory, "-DVALUE=4", "-frandom-seed=1") for directory in ("one", "other")]
print("other directories with -frandom-seed=1: the same names", seeded[0] == seeded[1])
PY
venv/bin/python observe.py | tee seen
diff seen - <<'SEEN'
same directory, other kernel code and options: the same names True
same directory, another parameter type of a host function: the same names plain hidden, other names each named
other directory: the same names plain hidden, other names each named
-rdc=true: prefix on each hidden named, demangled as they are False, without the prefix True
other directories with -frandom-seed=1: the same names False
SEEN
