#!/usr/bin/env bash
# Software: Slurm 22.05.8 (Debian 12). Needs Debian 12 and root, no GPU: a character device stands in for one.
# Guess: Slurm sets CUDA_MPS_ACTIVE_THREAD_PERCENTAGE for jobs that ask for gres/mps, as its documentation says. A job with a whole
#   GPU, which starts its own MPS daemon, sets the variable itself for its steps, as it does with any other variable.
# Behaviour: as soon as GresTypes of the cluster has mps, each step without gres/mps loses the variable, in jobs with gres/gpu and in
#   jobs without any GPU. The batch script itself still has it, there is no message, and other variables of MPS pass. So the
#   clients of such a job run without the limit that its script sets, because the administrator added gres/mps for other jobs.
#   `srun env NAME=VALUE COMMAND` sets it.
# Output seen:
#   gpu,mps, --gres=gpu:1: batch script 25, step not set, step with env 30, pipe directory /run/job
#   gpu,mps, no gres: batch script 25, step not set, step with env 30, pipe directory /run/job
#   gpu,mps, --gres=mps:40: batch script 25, step 40, step with env 30, pipe directory /run/job
#   gpu, --gres=gpu:1: batch script 25, step 25, step with env 30, pipe directory /run/job
set -euo pipefail
[ "$(uname -m)" = x86_64 ] && [ "$(id -u)" = 0 ] || { echo "needs root on x86-64"; exit 77; }
folder=$(mktemp -d)
daemons=()
stop() {
    for daemon in "${daemons[@]}"; do kill "$daemon" 2>/dev/null || true; done
    for daemon in "${daemons[@]}"; do wait "$daemon" || true; done
    daemons=()
}
trap 'stop; rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt-get downloads as a user of its own
version='22.05.8-4+deb12*'
apt-get download -q slurmctld="$version" slurmd="$version" slurm-client="$version" slurm-wlm-basic-plugins="$version" \
    libhwloc15 libnuma1 >/dev/null 2>&1
for package in ./*.deb; do dpkg -x "$package" root; done
# The alternatives system makes these links. By its name, a Slurm program knows that it is a daemon.
for daemon in slurmctld slurmd slurmstepd; do ln -s "$daemon-wlm" "root/usr/sbin/$daemon"; done
plugins=$folder/root/usr/lib/x86_64-linux-gnu/slurm-wlm
export LD_LIBRARY_PATH=$plugins:$folder/root/usr/lib/x86_64-linux-gnu SLURM_CONF=$folder/etc/slurm.conf
export PATH=$folder/root/usr/sbin:$folder/root/usr/bin:$PATH
mkdir etc
read -r first second < <(python3 -c '
import socket
held = [socket.socket() for _ in range(2)]
for each in held: each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in held))')
cat >job.sh <<'SH2'
#!/bin/bash
export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 CUDA_MPS_PIPE_DIRECTORY=/run/job
name=CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
show='echo ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-not set}'
echo "batch script $(sh -c "$show"), step $(srun -Q sh -c "$show"), step with env $(srun -Q env $name=30 sh -c "$show")," \
    "pipe directory $(srun -Q sh -c 'echo $CUDA_MPS_PIPE_DIRECTORY')"
SH2
configure() {
    echo "Name=gpu File=/dev/zero" >etc/gres.conf
    cat >etc/slurm.conf <<CONF
ClusterName=example
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmctldPort=$first
SlurmdPort=$second
AuthType=auth/none
CredType=cred/none
PluginDir=$plugins
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
GresTypes=$1
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=1 Gres=$2
PartitionName=all Nodes=ALL Default=YES
CONF
}
# Start a cluster, run the job with each of the options, and stop the cluster.
jobs_with() {
    rm -rf state spool
    mkdir state spool
    slurmctld -D -c >>log 2>&1 &
    daemons+=($!)
    slurmd -D -c -d "$folder/root/usr/sbin/slurmstepd" >>log 2>&1 &
    daemons+=($!)
    for _ in $(seq 60); do
        sinfo -h -o %T 2>/dev/null | grep -qx idle && break
        sleep 0.5
    done
    for option in "${@:2}"; do
        timeout 100 sbatch -W -Q -o "$folder/out" ${option:+"$option"} job.sh || { tail log; exit 1; }
        echo "$1, ${option:-no gres}: $(cat out)"
    done
    for _ in $(seq 60); do # while a job completes, it has processes
        [ -z "$(squeue -h)" ] && break
        sleep 0.5
    done
    stop
}
{
    configure gpu,mps gpu:1,mps:100
    jobs_with gpu,mps --gres=gpu:1 "" --gres=mps:40
    configure gpu gpu:1
    jobs_with gpu --gres=gpu:1
} >seen
cat seen
diff seen - <<'SEEN'
gpu,mps, --gres=gpu:1: batch script 25, step not set, step with env 30, pipe directory /run/job
gpu,mps, no gres: batch script 25, step not set, step with env 30, pipe directory /run/job
gpu,mps, --gres=mps:40: batch script 25, step 40, step with env 30, pipe directory /run/job
gpu, --gres=gpu:1: batch script 25, step 25, step with env 30, pipe directory /run/job
SEEN
