#!/bin/sh
# Runs a program in cgroups of its own: a new cgroup namespace takes them for the roots of their hierarchies.
#
#   cell.sh CGROUP... -- PROGRAM...
set -eu
while test "$1" != --; do
    # One of cpusets takes nobody before it has been given CPUs, and systemd has no use for it.
    echo $$ >"$1/cgroup.procs" || test -e "$1/cpuset.cpus"
    shift
done
shift
exec "$@"
