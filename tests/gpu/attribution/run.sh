#!/bin/sh
# Plays the mixes on a node with one GPU, its driver, MPS, nvcc and PyTorch, as root, and leaves in $OUT: log and
# mixes.tar.gz (see collect.py). It takes under 7 minutes.
#
#   OUT=/tmp/out tests/gpu/attribution/run.sh [--seconds S] [--only MIX]...
set -u
: "${OUT:?names the folder for what comes out}"
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 2
cd "$(dirname "$0")/../../.." || exit 2
export OUT PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# The clients die with the program that started them, and the daemon's directory is in its environment.
end_leftovers() {
    for environment in /proc/[0-9]*/environ; do
        grep -qzx 'CUDA_MPS_PIPE_DIRECTORY=/tmp/mps[^/]*/d/pipe' "$environment" 2>/dev/null || continue
        pid=${environment#/proc/}
        pid=${pid%/environ}
        kill -KILL "$pid" 2>/dev/null && echo "left behind, and killed: $pid"
    done
}

{
    timeout --signal=INT --kill-after=20 450 python3 -m tests.gpu.attribution.collect "$@"
    echo $? >"$OUT/status"
} 2>&1 | tee "$OUT/log"
end_leftovers >>"$OUT/log"
status=$(cat "$OUT/status")
rm -f "$OUT/status"
exit "$status"
