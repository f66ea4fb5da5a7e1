#!/bin/sh
# Puts a systemd, the exporter and the load program below ./root, an overlay over this machine's root directory.
#
#   install_systemd.sh ARCHIVE PROGRAM PYTHON LOAD
#
# ARCHIVE is made by pack_systemd.sh, PROGRAM is a directory with the exporter and its packages.
set -eu
archive=$1 program=$2 python=$3 load=$4
home=root/opt/cuda-mps-exporter

# The overlay lacks other file systems, such as that of the driver.
while read -r _ place _; do
    case $place in
    / | /proc | /proc/* | /sys | /sys/* | /dev | /dev/* | /run | /run/* | /tmp | /tmp/* | "$PWD"* | *\\*) continue ;;
    esac
    if test -d "$place" && test -d "root$place"; then
        mount --bind "$place" "root$place"
    elif test -f "$place" && test -f "root$place"; then
        mount --bind "$place" "root$place"
    fi
done </proc/mounts

# Libraries that this machine has are newer, and stay.
tar -C root --skip-old-files --keep-directory-symlink -xzf "$archive"
printf '%s\n' "${LD_LIBRARY_PATH:-}" | tr : '\n' >root/etc/ld.so.conf.d/driver.conf
ldconfig -r root
for name in nvidia-cuda-mps-control nvidia-cuda-mps-server; do
    found=$(command -v $name) || continue
    test -e root/usr/bin/$name || ln -s "$found" root/usr/bin/$name
done
# With an ID, this is no first boot, at which systemd enables all units.
echo 6a1e0d2c4b8f49d3a7c5e9f01b2d3c4e >root/etc/machine-id
printf 'u %s - -\n' messagebus polkitd root | chroot root systemd-sysusers - >/dev/null 2>&1 || true

rm -rf $home
mkdir -p $home/bin
cp -r "$program" $home/lib
cp "$load" root/opt/load
# Shorter intervals than a node has, so that tests need not wait long.
rules='{"hung_after": 5, "restarts": 20, "backoff": 0.1, "longest_backoff": 0.1}'
constants="{\"intervals\": {\"liveness\": 1}, \"rules\": $rules}"
cat >$home/bin/cuda-mps-exporter <<PROGRAM
#!/bin/sh
export PYTHONPATH=/opt/cuda-mps-exporter/lib PYTHONDONTWRITEBYTECODE=1
exec $python -m tests.program '$constants' "\$@"
PROGRAM
chmod 755 $home/bin/cuda-mps-exporter
