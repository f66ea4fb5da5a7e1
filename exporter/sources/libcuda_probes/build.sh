#!/bin/sh
# Compile probes.bpf.c to probes.MACHINE.o, beside it or in the directory that is given.
# It needs clang and the Linux headers (Debian: clang, linux-libc-dev). The instructions are those of Debian 12's clang.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
into=$(cd "${1:-$here}" && pwd)
cd "$here"
for machine in X86_64 AARCH64; do
    ${CLANG:-clang} -target bpf -mcpu=v3 -O2 -g0 -Wall -Wextra -Werror -Wno-unused-parameter \
        -idirafter "/usr/include/$(uname -m)-linux-gnu" "-DMACHINE_$machine" \
        -c probes.bpf.c -o "$into/probes.$(echo "$machine" | tr A-Z a-z).o"
done
