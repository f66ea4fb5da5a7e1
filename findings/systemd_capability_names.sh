#!/usr/bin/env bash
# Software: systemd-analyze of systemd 252 (Debian 12). Needs Debian 12 and its package mirror, and no GPU. No unit is started.
# Guess: Kubernetes, Docker and podman write SYS_PTRACE, systemd writes CAP_SYS_PTRACE. If a unit has the other spelling, or a typing
#   error, systemd accepts it, or warns that it ignores it, as it does for each other wrong value. `systemd-analyze verify` with
#   --recursive-errors=yes then fails.
# Behaviour: an unknown capability name is dropped without a message, as if it had not been written. So AmbientCapabilities=SYS_PTRACE
#   gives nothing. CapabilityBoundingSet=~SYS_ADMIN, which is to forbid it, forbids nothing, and the service keeps all capabilities. A
#   wrong name beside right ones passes as well. verify is silent and succeeds. `systemd-analyze security` distinguishes the two.
# Output seen:
#   RestrictNamespaces=~CGRP: verify fails True, message True
#   CapabilityBoundingSet=~CAP_SYS_ADMIN: verify fails False, message False, administrator privileges False
#   CapabilityBoundingSet=~SYS_ADMIN: verify fails False, message False, administrator privileges True
#   CapabilityBoundingSet=~CAP_SYS_ADMN CAP_SYS_BOOT: verify fails False, message False, administrator privileges True
#   AmbientCapabilities=CAP_SYS_PTRACE: verify fails False, message False, ambient capabilities True
#   AmbientCapabilities=SYS_PTRACE: verify fails False, message False, ambient capabilities False
set -euo pipefail
[ "$(uname -m)" = x86_64 ] || { echo "needs x86-64"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt-get downloads as a user of its own
apt-get download -q systemd='252.*' libsystemd-shared='252.*' >/dev/null 2>&1
for package in ./*.deb; do dpkg -x "$package" root; done
cat >observe.py <<'PY'
import json
import os
import subprocess
from pathlib import Path

ANALYZE = os.path.abspath("root/usr/bin/systemd-analyze")
LIBRARIES = os.path.abspath("root/lib/x86_64-linux-gnu") + "/systemd:" + os.path.abspath("root/usr/lib/x86_64-linux-gnu/systemd")


def analyze(*arguments):
    environment = {"LD_LIBRARY_PATH": LIBRARIES, "LC_ALL": "C", "PATH": os.environ["PATH"]}
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, env=environment)


def show(setting, field=None, name=None):
    unit = Path("example.service")
    unit.write_text(f"[Service]\nExecStart=/bin/true\nUser=daemon\n{setting}\n")
    verify = analyze("verify", "--man=no", "--recursive-errors=yes", f"./{unit}")
    message = any(f"{unit}:4:" in line for line in (verify.stdout + verify.stderr).splitlines())
    print(f"{setting}: verify fails {verify.returncode != 0}, message {message}", end="")
    if field:
        report = json.loads(analyze("security", "--offline=yes", "--json=short", f"./{unit}").stdout)
        (found,) = [each for each in report if each["json_field"].startswith(field)]
        print(f", {name} {not found['set']}", end="")
    print()


ADMIN, AMBIENT = ("CapabilityBoundingSet_CAP_SYS_ADMIN", "administrator privileges"), ("AmbientCapabilities", "ambient capabilities")
show("RestrictNamespaces=~CGRP")
show("CapabilityBoundingSet=~CAP_SYS_ADMIN", *ADMIN)
show("CapabilityBoundingSet=~SYS_ADMIN", *ADMIN)
show("CapabilityBoundingSet=~CAP_SYS_ADMN CAP_SYS_BOOT", *ADMIN)
show("AmbientCapabilities=CAP_SYS_PTRACE", *AMBIENT)
show("AmbientCapabilities=SYS_PTRACE", *AMBIENT)
PY
python3 observe.py | tee seen
diff seen - <<'SEEN'
RestrictNamespaces=~CGRP: verify fails True, message True
CapabilityBoundingSet=~CAP_SYS_ADMIN: verify fails False, message False, administrator privileges False
CapabilityBoundingSet=~SYS_ADMIN: verify fails False, message False, administrator privileges True
CapabilityBoundingSet=~CAP_SYS_ADMN CAP_SYS_BOOT: verify fails False, message False, administrator privileges True
AmbientCapabilities=CAP_SYS_PTRACE: verify fails False, message False, ambient capabilities True
AmbientCapabilities=SYS_PTRACE: verify fails False, message False, ambient capabilities False
SEEN
