#!/bin/sh
# Measures attribution on a node with one GPU, its driver, MPS and nvcc, as root. Results are in $OUT, with a log:
#
#   spin        mixes.tar.gz (collect.py) of clients that count their SM time; score.py compares it with the shares
#   frameworks  corpus.tar.gz (corpus.py) of clients of PyTorch, JAX, CuPy and Triton
#   pace        pace.json (pace.py) of a launch-bound client of PyTorch
#   service     cost.json and cost.md (cost.py), live.tar.gz (live.py), evidence.tar.gz (test_work_in_flight.py)
#
# Each takes less than 10 minutes.
#
#   OUT=/tmp/out lab/attribution/run.sh spin|frameworks|pace|service [--seconds S] [--only MIX]...
set -u
: "${OUT:?names the folder for what comes out}"
group=${1:?spin, frameworks, pace or service}
shift
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 2
cd "$(dirname "$0")/../.." || exit 2
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
    timeout --signal=INT --kill-after=10 "$longest" python3 -m "lab.attribution.$@" || wrong=1
    end_leftovers
}

live_and_well() { timeout --signal=INT --kill-after=10 60 python3 -m lab.attribution.live; }

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
        measure 578 collect --seconds 565 "$@"
    elif [ "$group" = frameworks ]; then
        measure 590 corpus --budget 565 "$@"
    elif [ "$group" = pace ]; then
        measure 330 pace
    else
        measure 165 cost
        apart live live_and_well
        apart evidence lab/gpu/run.sh -k test_work_in_flight
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
