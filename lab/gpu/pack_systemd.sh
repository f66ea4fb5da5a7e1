#!/bin/sh
# Packs Debian 12's systemd, D-Bus and polkit, with their libraries, for a GPU machine without them and without a mirror.
# Run it on Debian 12. It needs apt-get and a mirror.
#
#   lab/gpu/pack_systemd.sh systemd.tgz
#
# The archive has only /usr and /etc, because /lib and /bin are links on Ubuntu.
set -eu
archive=$(realpath "${1:?names the archive}")
packages="systemd libsystemd-shared libsystemd0 libseccomp2 libpam0g libaudit1 libkmod2 libapparmor1 libselinux1 libmount1 libacl1
    libblkid1 libcap2 libcrypt1 libgcrypt20 libip4tc2 liblz4-1 libssl3 libzstd1 liblzma5 libcap-ng0 libpcre2-8-0 libgpg-error0
    dbus dbus-daemon dbus-bin dbus-system-bus-common libdbus-1-3 polkitd libpolkit-gobject-1-0 libpolkit-agent-1-0 libduktape207
    libglib2.0-0 libexpat1 libffi8 zlib1g"
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/debs" "$place/files" "$place/root"
cd "$place/debs"
# shellcheck disable=SC2086
apt-get -qq -o APT::Sandbox::User=root download $packages
for package in *.deb; do dpkg-deb -x "$package" ../files; done
cd ../files
rm -rf usr/share/doc usr/share/man usr/share/locale usr/share/lintian usr/share/bash-completion usr/share/zsh \
    lib/udev usr/lib/udev lib/systemd/systemd-pcr*
# No service may change the network, because the GPU machine uses it too.
find . -name '*systemd-networkd*' -delete
mkdir -p ../root/usr
cp -a etc usr ../root
for directory in lib bin sbin; do
    test ! -d "$directory" || cp -a "$directory" ../root/usr
done
tar -C ../root --owner=0 --group=0 --sort=name --mtime=@0 -cf - etc usr | gzip -9n >"$archive"
ls -l "$archive"
