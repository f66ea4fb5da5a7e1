#!/usr/bin/env bash
# Software: Prometheus 2.42.0 (Debian 12). Needs Debian 12 and its package mirror, and no GPU.
# Guess: if the expression of an alert begins to fail (a second series for the same GPU, so that `on (gpu) group_left` has a duplicate),
#   Prometheus' alerts page, the series ALERTS and Alertmanager still agree: all keep the alert, or all end it. A pending alert starts
#   again, or the time of failure does not count for its `for`, as the time of a stopped Prometheus does not.
# Behaviour: a failed evaluation changes no state and sends nothing. So the API and the alerts page show "firing" without end. ALERTS has
#   no stale marker and ends after the lookback (5 min by default). By its documentation, Alertmanager ends the alert at its last
#   `endsAt` (4 min), so the receiver gets "resolved" for a failure that continues. For a pending alert, the time of failure counts:
#   two true results, one before and one after it, are enough for any `for`.
# Output seen:
#   expression works: API firing, in ALERTS True, endsAt has passed False
#   expression fails: API firing, in ALERTS False, endsAt has passed True
#   pending alert, true for less than half of `for`: fires at once after the failure True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt-get downloads as a user of its own
apt-get download -q prometheus='2.42.0+ds-5*' >/dev/null 2>&1
dpkg -x ./*.deb root
cat >rules.yml <<'YAML'
groups:
  - name: node
    interval: 1s
    rules:
      - alert: Firing
        expr: gpu_failed * on (gpu) group_left (node) gpu_info == 1
      - alert: Pending
        expr: gpu_failed * on (gpu) group_left (node) gpu_info == 1
        for: 20s
YAML
cat >observe.py <<'PY'
import http.server
import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from datetime import datetime
from pathlib import Path

CONFIGURATION = """global: {{scrape_interval: 1s}}
rule_files: [rules.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["{stand_in}"]}}]}}]}}
scrape_configs: [{{job_name: node, static_configs: [{{targets: ["{stand_in}"]}}]}}]
"""
GPU = 'gpu_failed{gpu="0"} 1\ngpu_info{gpu="0",node="a"} 1\n'
shown = {"metrics": GPU, "ends_at": 0.0}


def seconds(text):
    return datetime.fromisoformat(text.partition(".")[0].rstrip("Z") + "+00:00").timestamp()


class ExporterAndAlertmanager(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(shown["metrics"])

    def do_POST(self):
        for alert in json.loads(self.rfile.read(int(self.headers["Content-Length"]))):
            if alert["labels"]["alertname"] == "Firing":
                shown["ends_at"] = seconds(alert["endsAt"]) + 1
        self.answer("")

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ExporterAndAlertmanager)
threading.Thread(target=server.serve_forever, daemon=True).start()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = "127.0.0.1:{}".format(free.getsockname()[1])
Path("prometheus.yml").write_text(CONFIGURATION.format(stand_in=f"127.0.0.1:{server.server_port}"))


def get(path):
    with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)["data"]


def rule(name):
    return next(rule for rule in get("rules")["groups"][0]["rules"] if rule["name"] == name)


def wait_for(condition, limit=60):
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError


def fails():
    return rule("Pending")["health"] == "err"


def show(name):
    query = urllib.parse.quote('ALERTS{alertname="Firing", alertstate="firing"}')
    stored = bool(get(f"query?query={query}")["result"])
    passed = time.time() > shown["ends_at"]
    print(f"{name}: API {rule('Firing')['alerts'][0]['state']}, in ALERTS {stored}, endsAt has passed {passed}", flush=True)


prometheus = subprocess.Popen(
    # The two times are 1 min and 5 min by default.
    ["root/usr/bin/prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--rules.alert.resend-delay=1s",
     "--query.lookback-delta=5s", f"--web.listen-address={address}"],
    stderr=subprocess.DEVNULL,
)
try:
    wait_for(lambda: get("alerts")["alerts"] and shown["ends_at"])
    began = time.monotonic()
    time.sleep(3)
    show("expression works")
    shown["metrics"] = GPU + 'gpu_info{gpu="0",node="b"} 1\n'
    wait_for(fails)
    was_true = time.monotonic() - began
    time.sleep(20)
    show("expression fails")
    pending = rule("Pending")["alerts"][0]["state"] == "pending"
    shown["metrics"] = GPU
    wait_for(lambda: not fails())
    at_once = pending and was_true < 10 and rule("Pending")["alerts"][0]["state"] == "firing"
    print("pending alert, true for less than half of `for`: fires at once after the failure", at_once)
finally:
    prometheus.terminate()
    prometheus.wait()
PY
root/usr/bin/prometheus --version | head -n 1
python3 observe.py | tee seen
diff seen - <<'SEEN'
expression works: API firing, in ALERTS True, endsAt has passed False
expression fails: API firing, in ALERTS False, endsAt has passed True
pending alert, true for less than half of `for`: fires at once after the failure True
SEEN
