#!/usr/bin/env bash
# Software: Linux (seen with 6.18), flock and lslocks of util-linux 2.38.1 (Debian 12). Needs root, in the first PID namespace.
# Guess: a script that runs `flock -n 9`, as in flock's manual page, holds the lock until it exits. So /proc/locks and lslocks show
#   the lock, with the script's PID: on the node, and in the container in which script and reader are.
# Behaviour: the kernel reports the PID that called flock(2), not that of a holder. This process has exited at once, and only the
#   script has the file open. On the node the lock has the PID of no process, which a later process can get. In another PID
#   namespace that PID has no translation: the lock is in neither list, and the script's own fdinfo shows it with PID 0, while
#   flock is refused. A daemon that locks before it forks to the background looks the same. So "no lock in the list" is no
#   reason to remove a lock file.
# Output seen:
#   node: 1 line in /proc/locks, with the script's PID False, of a process that exists False; 1 in lslocks; lock refused True
#   PID namespace: 0 lines in /proc/locks; 0 in lslocks; PID 0 in fdinfo; lock refused True
set -euo pipefail
[ "$(id -u)" = 0 ] && [ "$(stat -Lc %i /proc/self/ns/pid)" = 4026531836 ] || { echo "needs root on a node"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >script.sh <<'SH2'
set -euo pipefail
exec 9>lock
flock -n 9
pattern=":$(stat -c %i lock) "
lines=$(grep -c "$pattern" /proc/locks || true)
pid=$(awk -v pattern="$pattern" '$0 ~ pattern { print $5 }' /proc/locks)
listed=$(lslocks --raw --noheadings -o TYPE,INODE | grep -c "^FLOCK ${pattern:1:-1}$" || true)
flock -n lock true && refused=False || refused=True
truth() { if "$@"; then echo True; else echo False; fi; }
if [ "$1" = node ]; then
    echo "node: $lines line in /proc/locks, with the script's PID $(truth test "$pid" = $$), of a process that exists" \
        "$(truth test -e "/proc/$pid"); $listed in lslocks; lock refused $refused"
else
    echo "PID namespace: $lines lines in /proc/locks; $listed in lslocks; PID $(awk '/^lock:/ { print $6 }' /proc/$$/fdinfo/9)" \
        "in fdinfo; lock refused $refused"
fi
SH2
{
    bash script.sh node
    unshare --pid --fork --mount-proc bash script.sh container
} | tee seen
diff seen - <<'SEEN'
node: 1 line in /proc/locks, with the script's PID False, of a process that exists False; 1 in lslocks; lock refused True
PID namespace: 0 lines in /proc/locks; 0 in lslocks; PID 0 in fdinfo; lock refused True
SEEN
