#!/bin/sh
# Makes a machine of its own out of this one, and becomes its systemd. To be run as root in new namespaces, with an empty
# directory, this Python's prefix, this repository, and the directories of the packages that the exporter needs.
#
# All files of the new machine are an overlay in memory over this one's: systemd empties /tmp as it boots, and writes
# where it likes; nothing of that may reach what is below.
set -eu
directory=$1 python=$2 repository=$3
shift 3

mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$directory"
cd "$directory"
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root

# The exporter where its unit has it, and the stand-in in NVIDIA's place, both for users to whom this checkout is closed.
home=root/opt/cuda-mps-exporter
rm -rf $home
mkdir -p root/opt/python $home/bin $home/lib/tests
mount --bind "$python" root/opt/python
cp -rL "$repository/exporter" $home/lib
cp -r "$repository/tests/__init__.py" "$repository/tests/standin" "$repository/tests/program.py" $home/lib/tests
packages=/opt/cuda-mps-exporter/lib
for package in "$@"; do
    packages=$packages:/opt/cuda-mps-exporter/packages/$#
    mkdir -p "$home/packages/$#"
    mount --bind -o ro "$package" "$home/packages/$#"
    shift
done
program() {
    {
        echo "#!/bin/sh"
        echo "export PYTHONHOME=/opt/python PYTHONPATH=$packages LD_LIBRARY_PATH=/opt/python/lib"
        echo "exec /opt/python/bin/python3 $2 \"\$@\""
    } >"$1"
    chmod 755 "$1"
}
program $home/bin/python ""
# Shorter intervals than a node has, so that tests need not wait long.
rules='{"hung_after": 5, "restarts": 20, "backoff": 0.1, "longest_backoff": 0.1}'
constants="{\"intervals\": {\"liveness\": 1}, \"rules\": $rules}"
program $home/bin/cuda-mps-exporter "-m tests.program '$constants'"
program root/usr/bin/nvidia-cuda-mps-control "/opt/cuda-mps-exporter/lib/tests/standin/bin/nvidia-cuda-mps-control"

# A systemd without anything of this machine's: no timers, no services, no settings of the kernel.
rm -rf root/etc/systemd/system root/lib/systemd/system/*.target.wants root/var/log/journal root/var/lib/systemd
mkdir -p root/etc/systemd/system root/lib/systemd/system/sockets.target.wants root/var/log/journal
for socket in dbus systemd-journald systemd-journald-dev-log; do
    ln -s ../$socket.socket root/lib/systemd/system/sockets.target.wants
done
for unit in systemd-tmpfiles-setup.service systemd-tmpfiles-clean.timer systemd-sysctl.service systemd-remount-fs.service; do
    ln -s /dev/null root/etc/systemd/system/$unit
done

for place in run tmp var/tmp; do
    mount -t tmpfs tmpfs root/$place
done
chmod 1777 root/tmp root/var/tmp
mkdir -p root/run/lock
mount -t proc proc root/proc
mount -t sysfs sysfs root/sys
mount -t tmpfs -o mode=755 tmpfs root/dev
mkdir root/dev/pts root/dev/shm
for node in null zero full random urandom tty kmsg; do
    touch root/dev/$node
    mount --bind /dev/$node root/dev/$node
done
mount -t devpts -o newinstance,ptmxmode=666 devpts root/dev/pts
ln -s pts/ptmx root/dev/ptmx
ln -s /proc/self/fd root/dev/fd

# So that what is started often starts quickly.
chroot root /opt/cuda-mps-exporter/bin/python -m compileall -q /opt/cuda-mps-exporter/lib >/dev/null &

cd root
mkdir -p mnt/before
pivot_root . mnt/before
umount -l mnt/before
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test /lib/systemd/systemd --unit=multi-user.target \
    --log-target=journal --show-status=0
