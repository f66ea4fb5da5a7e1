#!/bin/sh
# Measures attribution on a node with one GPU, its driver, MPS, nvcc and PyTorch, as root, and leaves what it found in
# $OUT: log, mixes.tar.gz (see collect.py), and with `pytorch` also cost.json and cost.md (cost.py), live.tar.gz
# (live.py), and where there is time for it evidence.tar.gz (test_work_in_flight.py). `frameworks` leaves corpus.tar.gz
# (corpus.py). Each of the three takes under 10 minutes. score.py compares the mixes with their truth.
#
#   OUT=/tmp/out tests/gpu/attribution/run.sh spin|pytorch|frameworks [--seconds S] [--only MIX]...
set -u
: "${OUT:?names the folder for what comes out}"
group=${1:?spin, pytorch or frameworks}
shift
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 2
cd "$(dirname "$0")/../../.." || exit 2
export OUT PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
began=$(date +%s)
wrong=0

# The clients die with the program that started them, and the daemon's directory is in its environment.
end_leftovers() {
    for environment in /proc/[0-9]*/environ; do
        grep -qzx 'CUDA_MPS_PIPE_DIRECTORY=/tmp/mps[^/]*/d/pipe' "$environment" 2>/dev/null || continue
        pid=${environment#/proc/}
        pid=${pid%/environ}
        kill -KILL "$pid" 2>/dev/null && echo "left behind, and killed: $pid"
    done
}

# measure SECONDS PROGRAM [ARGUMENT]...
measure() {
    longest=$1
    shift
    echo "$(date -u +%T) $*"
    timeout --signal=INT --kill-after=10 "$longest" python3 -m "tests.gpu.attribution.$@" || wrong=1
    end_leftovers
}

live_and_well() { timeout --signal=INT --kill-after=10 60 python3 -m tests.gpu.attribution.live; }

# apart NAME PROGRAM [ARGUMENT]...: what it leaves in its $OUT becomes one file, NAME.tar.gz.
apart() {
    name=$1
    shift
    echo "$(date -u +%T) $name"
    kept=$(mktemp -d /tmp/keptXXXX)
    (
        export OUT="$kept"
        "$@"
    ) || wrong=1
    end_leftovers
    tar czf "$OUT/$name.tar.gz" -C "$kept" .
    rm -rf "$kept"
}

all() {
    if [ "$group" = spin ]; then
        measure 578 collect --group spin --seconds 565 "$@"
    elif [ "$group" = frameworks ]; then
        measure 590 corpus --budget 565 "$@"
    else
        measure 345 collect --group pytorch --seconds 330 "$@"
        measure 165 cost
        apart live live_and_well
        if [ $(($(date +%s) - began)) -lt 490 ]; then apart evidence tests/gpu/run.sh -k test_work_in_flight; fi
    fi
    echo "$(date -u +%T) took $(($(date +%s) - began)) s; $([ $wrong = 0 ] && echo well || echo 'not all well')"
    return $wrong
}

{
    all "$@"
    echo $? >"$OUT/status"
} 2>&1 | tee "$OUT/log"
status=$(cat "$OUT/status")
rm -f "$OUT/status"
exit "$status"
