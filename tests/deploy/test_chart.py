"""The Helm chart: Helm's own linter and renderer over several values, Kubernetes' schemas over what they render, and the
configuration that it makes against the program itself. Needs the Python packages helm-python-sdk (Helm as a library),
kubernetes-validate and PyYAML (requirements-chart.txt); without them PyYAML alone checks the chart's plain files."""

import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHART = ROOT / "deploy" / "helm" / "invar"
sys.path.insert(0, str(ROOT / "tests" / "clients"))
from served import BINARY  # noqa: E402
from support import SKIPPED  # noqa: E402

KUBERNETES = "1.29.0"
FULL = {
    "replicaCount": 3, "gpus": 2, "existingSecret": "invar-keys", "adminKeys": True,
    "imagePullSecrets": [{"name": "pull"}],
    "model": {"existingClaim": "models", "path": "qwen3/8b"},
    "config": {"max-num-seqs": 64, "allowed-hosts": ["a.example"], "log-format": "text"},
    "ingress": {"enabled": True, "host": "llm.example.org", "tlsSecret": "tls"},
    "serviceMonitor": {"enabled": True}, "podDisruptionBudget": {"enabled": True},
    "podAnnotations": {"a": "b"}, "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "resources": {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi"}},
}
CASES = {"defaults": {}, "full": FULL, "a directory of the node": {"model": {"hostPath": "/srv"}},
         "a model's image": {"model": {"image": "registry/model:1"}}}


def objects_of(rendered, yaml):
    for name, text in rendered.items():
        if name.endswith(".yaml"):
            for item in yaml.safe_load_all(text):
                if item:
                    yield name, item


def by_kind(rendered, yaml):
    return {o["kind"]: o for _, o in objects_of(rendered, yaml)}


def check_schema(what, rendered, yaml, missing):
    import kubernetes_validate
    for name, item in objects_of(rendered, yaml):
        if item["kind"] == "ServiceMonitor":  # of an operator: not in Kubernetes
            continue
        try:
            kubernetes_validate.validate(item, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as e:
            missing.append(f"{what}: {name}: {e.message}")


def check_hardening(what, kinds, missing):
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    found = [pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"] is False]
    for c in pod["containers"] + pod.get("initContainers", []):
        found += [c["securityContext"]["allowPrivilegeEscalation"] is False, c["securityContext"]["capabilities"]["drop"] == ["ALL"]]
    if not all(found):
        missing.append(f"{what}: the pod is not hardened: {found}")


def check_config(what, kinds, missing):
    """The program reads serve.yaml: it complains about the model's directory, not about a key or a value."""
    text = kinds["ConfigMap"]["data"]["serve.yaml"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(text.replace("/etc/invar/secret/", "/no/such/"))
        f.flush()
        ran = subprocess.run([BINARY, "serve", "--config", f.name], capture_output=True, text=True, timeout=60)
    if ran.returncode != 1 or "/models/" not in ran.stderr:
        missing.append(f"{what}: serve.yaml: wanted an error about /models, found {ran.returncode}: {ran.stderr}\n{text}")


def check_full(kinds, yaml, missing):
    config = yaml.safe_load(kinds["ConfigMap"]["data"]["serve.yaml"])
    wanted = {"model": "/models/qwen3/8b", "host": "0.0.0.0", "port": 8000, "max-num-seqs": 64, "allowed-hosts": ["a.example"],
              "log-format": "text", "api-key-file": "/etc/invar/secret/keys", "admin-api-key-file": "/etc/invar/secret/admin-keys"}
    if config != wanted:
        missing.append(f"full: wanted {wanted}, found {config}")
    deployment = kinds["Deployment"]["spec"]
    limits = deployment["template"]["spec"]["containers"][0]["resources"]["limits"]
    if limits != {"memory": "64Gi", "nvidia.com/gpu": 2} or deployment["replicas"] != 3:
        missing.append(f"full: wanted two GPUs, 64Gi and 3 replicas, found {limits}, {deployment['replicas']}")
    service, pod = kinds["Service"]["spec"]["selector"], deployment["template"]["metadata"]["labels"]
    if not service.items() <= pod.items() or not deployment["selector"]["matchLabels"].items() <= pod.items():
        missing.append(f"full: selectors do not find the pod: {service}, {pod}")
    if not {"Ingress", "ServiceMonitor", "PodDisruptionBudget"} <= kinds.keys():
        missing.append(f"full: kinds are missing: {sorted(kinds)}")


def check_controls(helm_python, yaml, missing):
    """A template that is wrong, two models and a field that Kubernetes does not know are found."""
    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.render({"model": {"hostPath": "/srv", "image": "x"}}, name="r", namespace="n")
        missing.append("control: two kinds of models are rendered")
    except helm_python.HelmError as e:
        if "wanted one of existingClaim" not in str(e):
            missing.append(f"control: two kinds of models: {e}")
    found = []
    check_schema("control", {"x.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {prots: []}\n"}, yaml, found)
    if not found:
        missing.append("control: a field that Kubernetes does not know passes")


def check_chart(helm_python, yaml, missing):
    for what, values in CASES.items():
        lint = helm_python.lint(CHART, values)
        messages = lint.get("messages") or lint.get("Messages") or [] if isinstance(lint, dict) else lint
        bad = [m for m in messages if "icon is recommended" not in str(m)]
        if bad:
            missing.append(f"{what}: helm lint: {bad}")
        with helm_python.Chart.load(CHART) as chart:
            rendered = chart.render(values, name="release", namespace="models")
        kinds = by_kind(rendered, yaml)
        check_schema(what, rendered, yaml, missing)
        check_hardening(what, kinds, missing)
        check_config(what, kinds, missing)
        if what == "full":
            check_full(kinds, yaml, missing)
        print(f"{what}: {len(kinds)} objects, lint has nothing to say")
    check_controls(helm_python, yaml, missing)


def main():
    try:
        import yaml
    except ImportError:
        print("SKIPPED: chart: needs PyYAML")
        return SKIPPED
    missing = []
    for name in ("Chart.yaml", "values.yaml"):
        if not isinstance(yaml.safe_load((CHART / name).read_text()), dict):
            missing.append(f"{name}: no mapping")
    try:
        import helm_python
        import kubernetes_validate  # noqa: F401
    except ImportError as e:
        print(f"SKIPPED: chart: its templates: {e}")
        return 1 if missing else SKIPPED
    check_chart(helm_python, yaml, missing)
    print("\n".join(["FAILED:", *missing]) if missing else "the chart is valid")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
