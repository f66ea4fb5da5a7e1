#!/usr/bin/env bash
# Software: Prometheus 2.42.0 (Debian 12). Needs Debian 12 and its package mirror, and no GPU.
# Guess: a label of a target changes (another rack, a new relabel rule), and Prometheus is reloaded. The target of the old label is gone, so
#   its series end with the reload, and sums and joins are right throughout. A restart is the cleaner way: nothing of the old remains.
# Behaviour: after a reload, Prometheus waits for more than two scrape intervals before it marks the old series stale, because the target
#   might come back. It scrapes the new one meanwhile. So each sum is doubled for two intervals, and a join with `group_left` fails for a
#   duplicate series, which stops its alerts (see prometheus_alert_of_failing_rule.sh). A restart writes no stale marker at all: sums
#   are doubled, and joins fail, until the lookback has passed, 5 min by default.
# Output seen:
#   reload: the old series ended with it False; sum doubled and join failed True, after 6 scrape intervals False
#   restart: the old series ended with it False; sum doubled and join failed True, after 6 scrape intervals True, after the lookback False
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
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

INTERVAL, LOOKBACK = 2, 30
CONFIGURATION = """global: {{scrape_interval: 2s}}
scrape_configs: [{{job_name: node, static_configs: [{{targets: ["{target}"], labels: {{rack: "{rack}"}}}}]}}]
"""
JOIN = "memory_used * on (gpu) group_left (rack) gpu_info"


class Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = b'memory_used{gpu="0"} 5\ngpu_info{gpu="0"} 1\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
threading.Thread(target=server.serve_forever, daemon=True).start()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = "127.0.0.1:{}".format(free.getsockname()[1])


def configure(rack):
    Path("prometheus.yml").write_text(CONFIGURATION.format(target=f"127.0.0.1:{server.server_port}", rack=rack))


def query(text):
    """Return the values, or None if the query fails."""
    url = f"http://{address}/api/v1/query?query={urllib.parse.quote(text)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return [float(each["value"][1]) for each in json.load(answer)["data"]["result"]]
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it starts
            raise
        assert b"found duplicate series for the match group" in error.read()
        return None


def wait_for(condition):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError


def start():
    return subprocess.Popen(
        # The lookback is 5 min by default.
        ["root/usr/bin/prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
         f"--query.lookback-delta={LOOKBACK}s", f"--web.listen-address={address}"],
        stderr=subprocess.DEVNULL,
    )


def doubled():
    total, join = query("sum(memory_used)"), query(JOIN)
    assert (total, join) in (([5], [5]), ([10], None)), (total, join)
    return total == [10]


def old_is_there():
    return bool(query('memory_used{rack="a"}'))


def show(name, change, after_lookback):
    shutil.rmtree("data", ignore_errors=True)
    configure("a")
    prometheus = start()
    try:
        wait_for(lambda: query("count_over_time(memory_used[1m]) > 2"))
        configure("b")
        prometheus = change(prometheus)
        wait_for(lambda: query('memory_used{rack="b"}'))
        seen = time.monotonic()
        time.sleep(0.3)
        print(f"{name}: the old series ended with it {not old_is_there()}; sum doubled and join failed {doubled()}", end="")
        time.sleep(6 * INTERVAL)
        print(f", after 6 scrape intervals {doubled()}", end="", flush=True)
        if after_lookback:
            time.sleep(max(0, seen + LOOKBACK + 5 - time.monotonic()))
            print(f", after the lookback {doubled()}", end="")
        print(flush=True)
    finally:
        prometheus.terminate()
        prometheus.wait()


def reload(prometheus):
    prometheus.send_signal(signal.SIGHUP)
    return prometheus


def restart(prometheus):
    prometheus.terminate()
    prometheus.wait()
    return start()


show("reload", reload, after_lookback=False)
show("restart", restart, after_lookback=True)
PY
root/usr/bin/prometheus --version | head -n 1
python3 observe.py | tee seen
diff seen - <<'SEEN'
reload: the old series ended with it False; sum doubled and join failed True, after 6 scrape intervals False
restart: the old series ended with it False; sum doubled and join failed True, after 6 scrape intervals True, after the lookback False
SEEN
