#!/usr/bin/env bash
# Software: Prometheus 2.42.0 (Debian 12). Needs Debian 12 and its package mirror, and no GPU.
# Guess: Prometheus stores the `for` state of alerts (ALERTS_FOR_STATE), so that even a restart keeps it. A reload is the gentler of the
#   two: if a rule only moves to a file or a group of another name, its alert continues too.
# Behaviour: a reload carries the state over only within one file path and group name, even if the expression changes, and it reads
#   ALERTS_FOR_STATE at the start only. So a reload of a renamed file or group starts each `for` again. An alert that fires becomes
#   pending, and Prometheus sends no update of it. By its documentation, Alertmanager ends it when its `endsAt` has passed, so the
#   receiver gets "resolved" for a failure that continues, and a second page later. A restart with the renamed file keeps `for`. The
#   Prometheus operator names rule files after the UID of the PrometheusRule, so deleting and creating the same object is a rename.
# Output seen:
#   reload, other expression: for continues True, firing alert fires True
#   reload, renamed group: for continues False, firing alert fires False
#   reload, renamed file: for continues False, firing alert fires False
#   its endsAt passed before Alertmanager got the next update: True
#   restart, renamed file: for continues True, firing alert fires True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt-get downloads as a user of its own
apt-get download -q prometheus='2.42.0+ds-5*' >/dev/null 2>&1
dpkg -x ./*.deb root
cat >observe.py <<'PY'
import http.server
import json
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from datetime import datetime
from pathlib import Path

RULES = """groups:
  - name: {group}
    interval: 1s
    rules:
      - {{alert: Firing, expr: {expression}, for: 9s}}
      - {{alert: Pending, expr: {expression}, for: 1h}}
"""
CONFIGURATION = """rule_files: [rules/*.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]}}
"""
updates = []  # When an update of the alert Firing arrived, and its endsAt, which Prometheus renews with each update.


class Alertmanager(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        for alert in json.loads(self.rfile.read(int(self.headers["Content-Length"]))):
            if alert["labels"]["alertname"] == "Firing":
                updates.append((time.time(), datetime.fromisoformat(alert["endsAt"].replace("Z", "+00:00")).timestamp()))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


alertmanager = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Alertmanager)
threading.Thread(target=alertmanager.serve_forever, daemon=True).start()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = "127.0.0.1:{}".format(free.getsockname()[1])
rules = Path("rules/node.yml")
rules.parent.mkdir()
Path("prometheus.yml").write_text(CONFIGURATION.format(port=alertmanager.server_port))


def write(group, expression="vector(1)"):
    rules.write_text(RULES.format(group=group, expression=expression))


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError


def get(path):
    with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
        return answer.read()


def start():
    process = subprocess.Popen(
        # The two times are 10 min and 1 min by default, for alerts with a longer `for`.
        ["root/usr/bin/prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
         "--rules.alert.for-grace-period=1s", "--rules.alert.resend-delay=1s", f"--web.listen-address={address}"],
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: get("-/ready"))
    return process


def alerts():
    return {each["labels"]["alertname"]: each for each in json.loads(get("api/v1/alerts"))["data"]["alerts"]}


def fires():
    return alerts().get("Firing", {}).get("state") == "firing"


def began():
    return datetime.fromisoformat(alerts()["Pending"]["activeAt"].partition(".")[0].rstrip("Z"))


def evaluated_once_more():
    """Return a condition: the rules were loaded and evaluated after now."""
    now = time.time()

    def evaluated():
        groups = json.loads(get("api/v1/rules"))["data"]["groups"]
        if len(groups) != 1 or len(alerts()) != 2:
            return False
        last = groups[0]["lastEvaluation"].partition(".")[0].rstrip("Z") + "+00:00"
        return datetime.fromisoformat(last).timestamp() > now + 2

    return evaluated


def compare(name, change, restart=False):
    global prometheus
    wait_for(fires)
    before = began()
    change()
    if restart:
        prometheus.terminate()
        prometheus.wait()
        prometheus = start()
    else:
        prometheus.send_signal(signal.SIGHUP)
    wait_for(evaluated_once_more())
    # Prometheus adds the time of its outage.
    print(f"{name}: for continues {(began() - before).total_seconds() < 9}, firing alert fires {fires()}", flush=True)


def rename():
    global rules
    rules = rules.rename(f"rules/{len(rules.name)}.yml")


write("node")
prometheus = start()
try:
    compare("reload, other expression", lambda: write("node", "vector(2) > 0"))
    time.sleep(8)  # So that a later start of `for` differs.
    compare("reload, renamed group", lambda: write("gpu", "vector(2) > 0"))
    wait_for(fires)
    time.sleep(2)
    known = len(updates)
    compare("reload, renamed file", rename)
    wait_for(fires)
    time.sleep(2)
    late = any(later[0] > earlier[1] for earlier, later in zip(updates[known - 1 :], updates[known:]))
    print("its endsAt passed before Alertmanager got the next update:", late, flush=True)
    compare("restart, renamed file", rename, restart=True)
finally:
    prometheus.terminate()
    prometheus.wait()
PY
root/usr/bin/prometheus --version | head -n 1
python3 observe.py | tee seen
diff seen - <<'SEEN'
reload, other expression: for continues True, firing alert fires True
reload, renamed group: for continues False, firing alert fires False
reload, renamed file: for continues False, firing alert fires False
its endsAt passed before Alertmanager got the next update: True
restart, renamed file: for continues True, firing alert fires True
SEEN
