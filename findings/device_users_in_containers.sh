#!/usr/bin/env bash
# Software: fuser of psmisc 23.6, lsof 4.95.0, podman 4.3.1, crun 1.8.1, conmon 2.1.6 (Debian 12), CDI 0.4.0. Needs Debian 12 and root, no
#   GPU: a character device stands in for one.
# Guess: a device is its major and minor number. So `fuser -v /dev/nvidia0` and `lsof /dev/nvidia0`, as root on the node, name each
#   process that has the GPU open, also those in containers. If they name none, the GPU is free.
# Behaviour: both compare the file system and the inode of the node, not the device number. For a device of CDI, and for --device, the
#   runtime makes a node of its own in the container's /dev, so that container is in neither list, and there is no message. If the node
#   is bind-mounted, as the NVIDIA runtime's older mode does, both name the process. So the same workload is listed or not, depending on
#   how its container got the GPU. A complete list of lsof has it, with the same device number; so has a search of /proc/PID/fd by number.
# Output seen:
#   process on the node: fuser True, lsof True, by device number True
#   container, node bind-mounted: fuser True, lsof True, by device number True
#   container, --device: fuser False, lsof False, by device number True
#   container, CDI: fuser False, lsof False, by device number True
set -euo pipefail
[ "$(uname -m)" = x86_64 ] && [ "$(id -u)" = 0 ] || { echo "needs root on x86-64"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mknod gpu0 c 1 9 2>/dev/null && head -c 1 gpu0 >/dev/null 2>&1 || { echo "needs a file system with devices"; exit 77; }
chmod 755 . # apt-get downloads as a user of its own
apt-get download -q psmisc='23.6-1*' lsof='4.95.0-1*' libtirpc3 podman='4.3.1+ds1-8*' crun='1.8.1-1*' conmon='2.1.6*' busybox-static \
    libassuan0 libdevmapper1.02.1 libglib2.0-0 libgpgme11 libsubid4 libyajl2 >/dev/null 2>&1
for package in ./*.deb; do dpkg -x "$package" root; done
bin=$folder/root/usr/bin
mkdir -p container/bin container/proc container/dev container/sys
cp root/bin/busybox container/bin/
cat >gpu.json <<'JSON'
{"cdiVersion": "0.4.0", "kind": "example.com/gpu", "devices": [{"name": "0", "containerEdits": {
  "deviceNodes": [{"path": "/dev/gpu0", "type": "c", "major": 1, "minor": 9}]}}]}
JSON
# podman clears the environment of the runtime, which needs its libraries.
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$folder/root/usr/lib/x86_64-linux-gnu" "$bin/crun" >crun
chmod +x crun
cat >containers.conf <<TOML
[containers]
seccomp_profile = "unconfined"
apparmor_profile = "unconfined"
[engine]
conmon_path = ["$bin/conmon"]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "none"
[engine.runtimes]
crun = ["$folder/crun"]
TOML
printf '[storage]\ndriver = "vfs"\nrunroot = "%s/run"\ngraphroot = "%s/graph"\n' "$folder" "$folder" >storage.conf
touch registries.conf
cat >containers.sh <<'SH2'
set -euo pipefail
if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ]; then # crun refuses hybrid hierarchies
    umount -R -l /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
fi
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir /run/cdi
cp gpu.json /run/cdi/
podman() { "$bin/podman" --tmpdir "$folder/tmp" "$@"; }
trap 'podman rm -f -t 0 --all >/dev/null 2>&1 || true; kill "$on_node"' EXIT
lists() { if tr -s ' ' '\n' | grep -qx "$1"; then echo True; else echo False; fi; }
show() { # NAME PID
    for _ in {1..100}; do [ "$(stat -Lc %t:%T "/proc/$2/fd/0" 2>/dev/null)" != 1:9 ] || break; sleep 0.1; done
    printf '%s: fuser %s, lsof %s, by device number %s\n' "$1" "$(root/bin/fuser gpu0 2>/dev/null | lists "$2")" \
        "$(root/usr/bin/lsof -t gpu0 2>/dev/null | lists "$2")" "$(stat -Lc %t:%T "/proc/$2/fd/0" | sed 's/^1:9$/True/')"
}
client() { # NAME OPTION...
    podman run -d --name "$1" --network none --cgroups disabled --ulimit nofile=1024:1024 --ulimit nproc=512:512 "${@:2}" \
        --rootfs "$folder/container" busybox sh -c 'exec busybox sleep 60 </dev/gpu0' >/dev/null
    podman inspect -f '{{.State.Pid}}' "$1"
}
sleep 60 <gpu0 &
on_node=$!
show "process on the node" "$on_node"
show "container, node bind-mounted" "$(client bound --volume "$folder/gpu0:/dev/gpu0")"
show "container, --device" "$(client option --device "$folder/gpu0:/dev/gpu0")"
show "container, CDI" "$(client cdi --device example.com/gpu=0)"
SH2
export folder bin LD_LIBRARY_PATH=$folder/root/usr/lib/x86_64-linux-gnu
export CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf
export CONTAINERS_REGISTRIES_CONF=$folder/registries.conf
unshare -m bash containers.sh | tee seen
diff seen - <<'SEEN'
process on the node: fuser True, lsof True, by device number True
container, node bind-mounted: fuser True, lsof True, by device number True
container, --device: fuser False, lsof False, by device number True
container, CDI: fuser False, lsof False, by device number True
SEEN
