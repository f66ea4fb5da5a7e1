#!/usr/bin/env bash
# Software: podman 4.3.1, crun 1.8.1, conmon 2.1.6 (Debian 12), CDI 0.4.0. Needs Debian 12 and root, no GPU and no network.
# Guess: a CDI device sets CUDA_MPS_PIPE_DIRECTORY, and the user sets it with `podman run -e`: the user's explicit value wins, as it
#   does over the image's. `podman inspect` shows the environment of the container, and `podman exec` starts a process with it.
# Behaviour: the CDI device wins, without a message. `podman inspect` lists both values. `podman exec` does not apply CDI devices:
#   its process has the user's value, and none of the variables that only the device sets. So nvidia-cuda-mps-control or a CUDA
#   program, started with `podman exec` beside a client, asks another daemon, or uses other GPUs, than the client does.
# Output seen:
#   main process: CUDA_MPS_PIPE_DIRECTORY=/run/device CUDA_VISIBLE_DEVICES=1
#   podman inspect: CUDA_MPS_PIPE_DIRECTORY=/run/user CUDA_MPS_PIPE_DIRECTORY=/run/device CUDA_VISIBLE_DEVICES=1
#   podman exec: CUDA_MPS_PIPE_DIRECTORY=/run/user
set -euo pipefail
[ "$(uname -m)" = x86_64 ] && [ "$(id -u)" = 0 ] || { echo "needs root on x86-64"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt-get downloads as a user of its own
apt-get download -q podman='4.3.1+ds1-8*' crun='1.8.1-1*' conmon='2.1.6*' busybox-static libassuan0 libdevmapper1.02.1 \
    libglib2.0-0 libgpgme11 libsubid4 libyajl2 >/dev/null 2>&1
for package in ./*.deb; do dpkg -x "$package" root; done
bin=$folder/root/usr/bin
mkdir -p container/bin container/proc container/dev container/sys
cp root/bin/busybox container/bin/
cat >gpu.json <<'JSON'
{"cdiVersion": "0.4.0", "kind": "example.com/gpu", "devices": [{"name": "claim", "containerEdits": {
  "env": ["CUDA_MPS_PIPE_DIRECTORY=/run/device", "CUDA_VISIBLE_DEVICES=1"]}}]}
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
trap 'podman rm -f -t 0 client >/dev/null' EXIT
podman run -d --name client --network none --cgroups disabled --ulimit nofile=1024:1024 --ulimit nproc=512:512 \
    -e CUDA_MPS_PIPE_DIRECTORY=/run/user --device example.com/gpu=claim --rootfs "$folder/container" busybox sleep 60 >/dev/null
cuda() { grep ^CUDA_ | tr '\n' ' ' | sed 's/ $//'; }
echo "main process: $(tr '\0' '\n' <"/proc/$(podman inspect -f '{{.State.Pid}}' client)/environ" | cuda)"
echo "podman inspect: $(podman inspect -f '{{range .Config.Env}}{{println .}}{{end}}' client | cuda)"
echo "podman exec: $(podman exec client busybox env | cuda)"
SH2
export folder bin LD_LIBRARY_PATH=$folder/root/usr/lib/x86_64-linux-gnu
export CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf
export CONTAINERS_REGISTRIES_CONF=$folder/registries.conf
unshare -m bash containers.sh | tee seen
diff seen - <<'SEEN'
main process: CUDA_MPS_PIPE_DIRECTORY=/run/device CUDA_VISIBLE_DEVICES=1
podman inspect: CUDA_MPS_PIPE_DIRECTORY=/run/user CUDA_MPS_PIPE_DIRECTORY=/run/device CUDA_VISIBLE_DEVICES=1
podman exec: CUDA_MPS_PIPE_DIRECTORY=/run/user
SEEN
