#!/bin/sh
# Run fault trials on all GPUs at once, for $1 seconds; the results are in $OUT. More arguments are those of trials.py.
cd "$(dirname "$0")/../.." || exit 2
seconds=$1
shift
for gpu in $(nvidia-smi --query-gpu=index --format=csv,noheader); do
    python3 -m lab.fault_address.trials "$gpu" "$OUT" "$seconds" "$@" >"$OUT/log$gpu.txt" 2>&1 &
done
wait
tail -n 400 "$OUT"/log*.txt | cut -c1-200
