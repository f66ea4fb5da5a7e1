#!/bin/sh
# Compile probes.bpf.c to probes.MACHINE.o beside it, or in the directory that is given. Run it after each change of the
# C file, and check the objects in. It needs clang 14 (Debian 12: clang, linux-libc-dev): tests/libcuda_probes/test_bpf_object.py
# compares the instructions, and another version writes other ones.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
into=$(cd "${1:-$here}" && pwd)
cd "$here"
for machine in x86_64 aarch64; do
    ${CLANG:-clang} -target bpf -mcpu=v3 -O2 -g0 -fno-addrsig -Wall -Wextra -Werror -Wno-unused-parameter \
        -idirafter "/usr/include/$(uname -m)-linux-gnu" "-DMACHINE_$(echo $machine | tr a-z A-Z)" \
        -c probes.bpf.c -o "$into/probes.$machine.o"
done
