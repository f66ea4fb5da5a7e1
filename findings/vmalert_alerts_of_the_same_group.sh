#!/usr/bin/env bash
# Software: vmalert and victoria-metrics 1.79.5 (Debian 12, victoria-metrics 1.79.5+ds1-2), Prometheus 2.42 (Debian 12). Needs Debian 12.
# Guess: the rules of a group are evaluated in their order. So a rule can read `ALERTS` of an earlier rule of its group: an
#   `unless on (node) ALERTS{alertname="Graver", alertstate="firing"}` silences the lesser alert in Prometheus and in vmalert.
# Behaviour: Prometheus stores `ALERTS` before it evaluates the next rule, so the lesser alert never fires. vmalert sends
#   `ALERTS` to the store after the evaluation, and the store hides its newest samples (-search.latencyOffset, 30 s by
#   default). So both alerts fire together, for about half a minute: one failure sends two notifications.
# Output seen:
#   prometheus: Graver fires True, Lesser fired False
#   vmalert: Graver fires True, Lesser fired True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt-get downloads as a user of its own
apt-get download -q victoria-metrics='1.79.5+ds1-2*' prometheus='2.42.0+ds-5*' >/dev/null 2>&1
for package in ./*.deb; do dpkg -x "$package" root; done
cat >rules.yml <<'YAML'
groups:
  - name: node
    interval: 1s
    rules:
      - alert: Graver
        expr: up == 1
      - alert: Lesser
        expr: up == 1 unless on (instance) ALERTS{alertname="Graver", alertstate="firing"}
YAML
cat >observe.py <<'PY'
import json
import socket
import subprocess
import sys
import time
import urllib.request


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(port, path, data=None):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data=data, timeout=5) as answer:
        return answer.read()


def firing(port):
    try:
        alerts = json.loads(get(port, "/api/v1/alerts"))["data"]["alerts"] or ()
    except OSError:
        return set()
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def watched(name, port, feed=None):
    """Watch the alerts for 10 s from the moment at which the graver one fires."""
    seen, until, deadline = set(), None, time.monotonic() + 120
    while time.monotonic() < (until or deadline):
        if feed is not None:
            feed()
        seen |= firing(port)
        if until is None and "Graver" in seen:
            until = time.monotonic() + 10
        time.sleep(0.2)
    print(f"{name}: Graver fires {'Graver' in seen}, Lesser fired {'Lesser' in seen}")


def run(*command):
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def prometheus():
    port = free_port()
    with open("prometheus.yml", "w") as file:
        json.dump({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "self", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
        }, file)
    process = run("root/usr/bin/prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                  f"--web.listen-address=127.0.0.1:{port}")
    try:
        watched("prometheus", port)
    finally:
        process.terminate()
        process.wait()


def vmalert():
    store, port = free_port(), free_port()
    url = f"http://127.0.0.1:{store}"
    processes = [
        run("root/usr/bin/victoria-metrics", "-storageDataPath=store", f"-httpListenAddr=127.0.0.1:{store}"),
        run("root/usr/bin/vmalert", "-rule=rules.yml", f"-datasource.url={url}", f"-remoteWrite.url={url}",
            "-notifier.url=http://127.0.0.1:9", f"-httpListenAddr=127.0.0.1:{port}"),
    ]

    def feed():
        try:
            get(store, "/api/v1/import/prometheus", b'up{instance="a"} 1\n')
        except OSError:
            pass

    try:
        watched("vmalert", port, feed)
    finally:
        for process in processes:
            process.terminate()
            process.wait()


{"prometheus": prometheus, "vmalert": vmalert}[sys.argv[1]]()
PY
{
    python3 observe.py prometheus
    python3 observe.py vmalert
} | tee seen
diff seen - <<'SEEN'
prometheus: Graver fires True, Lesser fired False
vmalert: Graver fires True, Lesser fired True
SEEN
