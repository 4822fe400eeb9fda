"""The compose file, and its nginx in front of a server: TLS, streams that are not buffered, the client's address in the
log, no metrics outside. Needs nginx and openssl; docker-compose, where it is installed, checks the file."""

import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCKER = ROOT / "deploy" / "docker"
sys.path.insert(0, str(ROOT / "tests" / "clients"))
from served import BINARY, TINY_MATH, Served  # noqa: E402
from support import SKIPPED  # noqa: E402

KEY, START_S = "secret", 20


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_nginx(folder, server_port):
    """nginx with the file of the compose project; only addresses and paths are others."""
    port = free_port()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
                   check=True, capture_output=True)
    text = (DOCKER / "nginx.conf").read_text()
    for old, new in (("invar:8000", f"127.0.0.1:{server_port}"), ("listen 443", f"listen 127.0.0.1:{port}"), ("/etc/nginx/tls", str(folder))):
        assert text.count(old) >= 1, old
        text = text.replace(old, new)
    (folder / "site.conf").write_text(text)
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
                                       f"http {{\naccess_log off;\n{temporary}include {folder}/site.conf;\n}}\n")
    checked = subprocess.run(["nginx", "-t", "-c", folder / "nginx.conf"], capture_output=True, text=True)
    if checked.returncode:
        raise SystemExit(f"nginx -t: {checked.stderr}")
    return subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL), port


def connect(port, certificate):
    end = time.monotonic() + START_S
    while True:
        try:
            plain = socket.create_connection(("127.0.0.1", port), timeout=30)
            return ssl.create_default_context(cafile=certificate).wrap_socket(plain, server_hostname="localhost")
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def ask(port, certificate, head, body=None):
    """The answer, and when its first and last bytes came."""
    text = f"{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n"
    data = b"" if body is None else json.dumps(body).encode()
    text += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n" if body is not None else "\r\n"
    begin, times, answer = time.monotonic(), [], b""
    with connect(port, certificate) as s:
        s.sendall(text.encode() + data)
        while part := s.recv(65536):
            times.append(time.monotonic() - begin)
            answer += part
    return int(answer.split()[1]), answer, times


def check_proxy(missing):
    server = Served(BINARY, TINY_MATH, "--threads", "1", "--api-key", KEY)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        nginx, port = start_nginx(folder, server.port)
        try:
            certificate = folder / "cert.pem"
            statuses = [ask(port, certificate, f"GET {path}")[0] for path in ("/health", "/v1/models", "/metrics")]
            if statuses != [200, 200, 404]:
                missing.append(f"/health, /v1/models, /metrics: wanted 200, 200, 404, found {statuses}")
            body = {"prompt": [17, 289, 220], "max_tokens": 300, "ignore_eos": True, "stream": True, "seed": 1}
            status, answer, times = ask(port, certificate, "POST /v1/completions", body)
            if status != 200 or b"[DONE]" not in answer or len(times) < 20 or times[0] > 0.5 * times[-1]:
                missing.append(f"a stream: {status}, {len(times)} pieces from {times[0]:.2f} s to {times[-1]:.2f} s")
            print(f"a stream through nginx: {len(times)} pieces from {times[0]:.2f} s to {times[-1]:.2f} s")
        finally:
            nginx.terminate()
            nginx.wait(30)
            server.stop()
    if not any(re.search(r"POST /v1/completions 200 .* 127.0.0.1 for 127.0.0.1, 3 \+ 300 tokens, length", line) for line in server.lines):
        missing.append(f"the log: wanted the client's address, found {server.lines[-3:]}")


def check_file(missing):
    environment = os.environ | {"MODEL": "/srv/model"}
    words = ["docker-compose", "-f", str(DOCKER / "compose.yaml"), "config"]
    ran = subprocess.run(words, capture_output=True, text=True, env=environment)
    if ran.returncode or "build:" not in ran.stdout:
        missing.append(f"docker-compose config: {ran.stderr}")
    without = {k: v for k, v in environment.items() if k != "MODEL"}
    if subprocess.run(words, capture_output=True, text=True, env=without).returncode == 0:
        missing.append("control: a project without a model passes")


def main():
    if not (shutil.which("nginx") and shutil.which("openssl") and os.access(BINARY, os.X_OK)):
        print("SKIPPED: compose: needs nginx, openssl and the program")
        return SKIPPED
    missing = []
    check_proxy(missing)
    if shutil.which("docker-compose"):
        check_file(missing)
    else:
        print("SKIPPED: compose file: needs docker-compose")
    print("\n".join(["FAILED:", *missing]) if missing else "nginx and the compose file suit the server")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
