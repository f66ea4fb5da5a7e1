#!/bin/sh
# Run fault trials for $1 seconds; more arguments are those of trials.py. The results are in $OUT.
# On each GPU by itself, all at once; with GPUS=0,1 on these two GPUs with one daemon.
cd "$(dirname "$0")/../.." || exit 2
seconds=$1
shift
gpus=${GPUS:-$(nvidia-smi --query-gpu=index --format=csv,noheader)}
for gpu in $gpus; do
    log=$OUT/log$(echo "$gpu" | tr , -).txt
    python3 -m lab.fault_address.trials "$gpu" "$OUT" "$seconds" "$@" >"$log" 2>&1 &
done
wait
for gpu in $gpus; do
    tail -n 200 "$OUT/log$(echo "$gpu" | tr , -).txt" | cut -c1-200
done
