#!/bin/sh
# Runs every test of this folder, or of the folder in $GPU_TESTS, on a node with a GPU, its driver, MPS and nvcc, as root.
# The results are in $OUT: log, results.xml, figures.json, captures/, and rights.md of lab/rights. A failing test costs none
# of these files.
#
#   OUT=/tmp/out lab/gpu/run.sh [pytest's arguments]
#
# All of it takes about 9 minutes (H200), and a run is ended after 560 s. Run it in two parts, each with an OUT of its own:
#
#   OUT=/tmp/out/watchdog lab/gpu/run.sh -k watchdog          # 3 minutes
#   OUT=/tmp/out/rest     lab/gpu/run.sh -k 'not watchdog'    # 6 minutes
set -u
: "${OUT:?names the folder for what comes out}"
mkdir -p "$OUT/captures" && OUT=$(cd "$OUT" && pwd) || exit 2
cd "$(dirname "$0")/../.." || exit 2
tests=${GPU_TESTS:-lab/gpu}
root=$(mktemp -d /tmp/mpsXXXX) && chmod 755 "$root" || exit 2

# The settings and fixtures of the tests without a GPU stay out: this machine need not have what those need.
run_tests() {
    nvidia-smi
    env GPU_TESTS_ROOT="$root" GPU_FIGURES="$OUT/figures.json" GPU_RIGHTS_TABLE="$OUT/rights.md" \
        GPU_CAPTURES="$OUT/captures" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
        timeout --signal=INT --kill-after=30 560 \
        python3 -m pytest "$tests" -m gpu -v -ra --tb=short --durations=15 --timeout=150 --junit-xml="$OUT/results.xml" \
        --override-ini=addopts= --confcutdir="$tests" -p no:cacheprovider "$@"
    echo $? >"$root/status"
}

# Everything that the tests start has their directory in its environment.
end_leftovers() {
    for environment in /proc/[0-9]*/environ; do
        grep -qzxF "GPU_TESTS_ROOT=$root" "$environment" 2>/dev/null || continue
        pid=${environment#/proc/}
        pid=${pid%/environ}
        kill -KILL "$pid" 2>/dev/null && echo "left behind, and killed: $pid"
    done
}

run_tests "$@" 2>&1 | tee "$OUT/log"
end_leftovers >>"$OUT/log"
status=$(cat "$root/status")
rm -rf "$root"
exit "$status"
