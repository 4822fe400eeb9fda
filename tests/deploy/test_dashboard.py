"""The dashboard, the alerts and the scrape configuration against a real Prometheus that scrapes a running server: every
query of the dashboard has an answer, every metric it names exists. Needs `prometheus` and `promtool` (Debian: prometheus)."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "tests" / "clients"))
from served import BINARY, TINY_MATH, Served  # noqa: E402
from support import SKIPPED  # noqa: E402

SCRAPE_S, LOAD_S, PATIENCE_S = 1, 12, 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


def ask(port, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=60).read()
    except urllib.error.HTTPError:
        pass


def load(port, until):
    """Requests with every outcome a panel shows."""
    n = 0
    while time.monotonic() < until:
        n += 1
        ask(port, {"prompt": [17, 289, 220] * 40, "max_tokens": 8, "seed": n, "ignore_eos": n % 2 == 0})
        if n % 5 == 0:
            ask(port, {"prompt": "x", "max_tokens": -1})
            ask(port, {"prompt": [1], "max_tokens": 2, "stop_token_ids": list(range(1024))})


def expressions(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def filled(expression):
    """With values in the place of Grafana's variables."""
    for name, value in (("$__rate_interval", "10s"), ("$instance", ".*"), ("$job", ".*")):
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def query(port, expression):
    """The number of series, and the finite ones."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    try:
        answer = json.loads(get(url))
    except urllib.error.HTTPError as e:
        raise SystemExit(f"{expression}: {e.read().decode()}") from e
    result = answer["data"]["result"]
    return len(result), sum(r["value"][1] not in ("NaN", "+Inf", "-Inf") for r in result)


def await_scrapes(port, count):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": 'count_over_time(up{job="invar"}[5m])'})
            found = json.loads(get(url))["data"]["result"]
            if found and float(found[0]["value"][1]) >= count:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"Prometheus: no {count} scrapes in {PATIENCE_S} s")


def check_files(missing):
    for words in (["check", "config", DEPLOY / "prometheus" / "prometheus.yml"], ["check", "rules", DEPLOY / "prometheus" / "alerts.yml"]):
        ran = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=60)
        if ran.returncode:
            missing.append(f"promtool {words[1]}: {ran.stdout}{ran.stderr}")


def check_layout(dashboard, missing):
    """Identifiers are unique, and panels do not overlap."""
    ids = [p["id"] for p in dashboard["panels"]]
    if len(set(ids)) != len(ids):
        missing.append("panels: wanted different ids")
    cells = set()
    for p in dashboard["panels"]:
        g = p["gridPos"]
        own = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        if own & cells or g["x"] + g["w"] > 24:
            missing.append(f"{p['title']}: it overlaps another panel")
        cells |= own


def check_queries(port, page, dashboard, missing):
    known = set(re.findall(r"^([a-z_:]+)", page, re.M))
    count = 0
    for title, expression in expressions(dashboard):
        count += 1
        for name in re.findall(r"\b((?:invar|process)_[a-z_]+)", expression):
            if name not in known:
                missing.append(f"{title}: {name} is no metric of the server")
        series, finite = query(port, filled(expression))
        if finite == 0:
            missing.append(f"{title}: {expression}: {series} series, none with a number")
    for alerts in re.findall(r"^ +expr: (.*)$", (DEPLOY / "prometheus" / "alerts.yml").read_text(), re.M):
        for name in re.findall(r"\b(invar_[a-z_]+)", alerts):
            if name not in known:
                missing.append(f"alert {alerts}: {name} is no metric of the server")
        query(port, alerts)
    if query(port, "rate(invar_no_such_metric[10s])") != (0, 0):
        missing.append("control: a metric that is not there has an answer")
    panels = sum("targets" in p for p in dashboard["panels"])
    print(f"{count} queries of {panels} panels have answers")


def run_prometheus(folder, server_port):
    port = free_port()
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    text = text.replace("scrape_interval: 10s", f"scrape_interval: {SCRAPE_S}s").replace("127.0.0.1:8000", f"127.0.0.1:{server_port}")
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder)
    with open(folder / "log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    return process, port


def main():
    if not (shutil.which("prometheus") and shutil.which("promtool") and os.access(BINARY, os.X_OK)):
        print("SKIPPED: dashboard: needs prometheus, promtool and the program")
        return SKIPPED
    missing, dashboard = [], json.loads((DEPLOY / "grafana" / "invar.json").read_text())
    check_files(missing)
    check_layout(dashboard, missing)
    server = Served(BINARY, TINY_MATH, "--threads", "1", "--max-model-len", "256")
    with tempfile.TemporaryDirectory() as name:
        prometheus, port = run_prometheus(pathlib.Path(name), server.port)
        try:
            await_scrapes(port, 1)
            until = time.monotonic() + LOAD_S
            clients = [threading.Thread(target=load, args=(server.port, until)) for _ in range(3)]
            for c in clients:
                c.start()
            for c in clients:
                c.join()
            await_scrapes(port, 4)
            check_queries(port, get(f"http://127.0.0.1:{server.port}/metrics").decode(), dashboard, missing)
        finally:
            prometheus.terminate()
            prometheus.wait(30)
            server.stop()
    print("\n".join(["FAILED:", *missing]) if missing else "the dashboard, the alerts and the scrape configuration suit the server")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
