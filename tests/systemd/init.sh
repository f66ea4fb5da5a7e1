#!/bin/sh
# Makes a machine of its own from the files of another root directory, and becomes its systemd. To be run as root in new
# namespaces, with an empty directory, the root directory, and a command that changes the files below ./root first.
#
# All files of the new machine are an overlay in memory over the others: systemd empties /tmp as it boots, and writes where it
# likes; nothing of that may reach what is below.
set -eu
directory=$1 lower=$2
shift 2

mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$directory"
cd "$directory"
mkdir upper work root
mount -t overlay -o lowerdir="$lower",upperdir=upper,workdir=work overlay root

"$@"

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

cd root
mkdir -p mnt/before
pivot_root . mnt/before
umount -l mnt/before
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test /lib/systemd/systemd --unit=multi-user.target \
    --log-target=journal --show-status=0
