#!/usr/bin/env bash
# Software: lsns of util-linux 2.38.1 (Debian 12), Linux. Needs Debian 12 and root, no GPU.
# Guess: `lsns -t net` lists each network namespace that has a process. On a busy node, a process that ends meanwhile is skipped. So a
#   container that runs all the time is in each list, and a list that is not complete comes with a message.
# Behaviour: if a process ends between the look into /proc and the reading of its file, the read fails with ESRCH. lsns then ends its
#   search and prints what it has found so far, without a message. Its exit code is 1, which a pipe loses. So where processes come and
#   go, a namespace that exists all the time is missing now and then: at 1 of 40 calls beside a shell that starts programs. A list of
#   the links in /proc/*/ns/net always has it.
# Output seen:
#   the namespace is missing in lsns at times True, with a message False, with an exit code True; in the links of /proc at times False
set -euo pipefail
[ "$(uname -m)" = x86_64 ] && [ "$(id -u)" = 0 ] || { echo "needs root on x86-64"; exit 77; }
unshare --net true 2>/dev/null || { echo "needs network namespaces"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt-get downloads as a user of its own
apt-get download -q util-linux='2.38.1-*' libsmartcols1='2.38.1-*' >/dev/null 2>&1
for package in ./*.deb; do dpkg -x "$package" root; done
cat >observe.sh <<'SH2'
export LD_LIBRARY_PATH=$PWD/root/usr/lib/x86_64-linux-gnu:$PWD/root/lib/x86_64-linux-gnu
unshare --net sleep 300 &
container=$!
until [ "$(readlink "/proc/$container/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
own=$(readlink "/proc/$container/ns/net" | tr -dc 0-9)
for _ in 1 2 3; do (while :; do /bin/true & /bin/true & /bin/true & wait; done) & done
missing=False message=False code=False links=False
for _ in {1..2000}; do
    root/usr/bin/lsns -nt net -o NS >list 2>errors || code=True
    [ ! -s errors ] || message=True
    stat -Lc %i /proc/[0-9]*/ns/net 2>/dev/null | grep -qx "$own" || links=True
    grep -qw "$own" list || { missing=True; break; }
done
echo "the namespace is missing in lsns at times $missing, with a message $message, with an exit code $code; in the links of /proc" \
    "at times $links"
kill $(jobs -p) 2>/dev/null
SH2
# The processes that end are in a PID namespace of their own.
unshare --pid --fork --kill-child --mount-proc bash observe.sh 2>/dev/null | tee seen
diff seen - <<'SEEN'
the namespace is missing in lsns at times True, with a message False, with an exit code True; in the links of /proc at times False
SEEN
