"""The Helm chart: values that its schema takes, what it renders, and who it says asks."""

import importlib.util
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlparse

import jsonschema
import pytest
import yaml

from underclock.runtime.conductor.leases import LeasePolicy, rules_in

CHART = Path(__file__).parents[2] / "deploy/chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
NAMED = {**VALUES, "image": {**VALUES["image"], "repository": "registry.example/underclock"}}
HELM = shutil.which("helm")
HAS_HELM = HELM is not None or importlib.util.find_spec("helm_python") is not None


def test_the_values_need_an_image_and_nothing_else() -> None:
    jsonschema.validate(NAMED, SCHEMA)
    with pytest.raises(jsonschema.ValidationError, match=r"should be non-empty"):
        jsonschema.validate(VALUES, SCHEMA)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodeSelector", {}),  # every node would serve
        ("annotation", {"key": "underclock/clocks", "value": "", "everySeconds": 5}),
        ("annotation", {"key": "a b", "value": "leased", "everySeconds": 5}),
        ("socket", {"hostPath": "run", "group": "underclock"}),
        ("limit", "a week"),
        ("polcy", "any"),
    ],
)
def test_values_that_would_let_anybody_in_or_mean_nothing_are_refused(
    name: str, value: object
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**NAMED, name: value}, SCHEMA)


def test_templates_use_values_that_there_are() -> None:
    for template in CHART.glob("templates/*"):
        for path in re.findall(r"\.Values\.([\w.]+)", template.read_text()):
            found: Any = VALUES
            for name in path.split("."):
                assert name in found, f"{template.name}: {path}"
                found = found[name]


def _rendered(tmp_path: Path, **values: object) -> dict[str, dict[str, Any]]:
    """Return what the chart makes, by kind."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"image": NAMED["image"], **values}))
    if HELM is not None:
        arguments = (HELM, "template", "demo", CHART, "--namespace", "prod", "--values", file)
        subprocess.run((HELM, "lint", CHART, "--values", file), check=True)
        done = subprocess.run(arguments, check=True, capture_output=True, text=True)
        text = done.stdout
    else:
        helm: Any = importlib.import_module("helm_python")
        given = yaml.safe_load(file.read_text())
        assert not helm.lint(str(CHART), given)["errors"]
        with helm.Chart.load(str(CHART)) as chart:
            made = chart.render(given, name="demo", namespace="prod")
        text = "\n---\n".join(body for name, body in made.items() if name.endswith(".yaml"))
    return {each["kind"]: each for each in yaml.safe_load_all(text) if each}


@pytest.mark.skipif(not HAS_HELM, reason="there is neither helm nor helm-python-sdk")
def test_the_daemonset_serves_where_asked_with_few_rights(tmp_path: Path) -> None:
    made = _rendered(tmp_path, startSeconds=30)

    spec = made["DaemonSet"]["spec"]["template"]["spec"]
    serve, asking = spec["containers"]
    assert spec["nodeSelector"] == {"underclock/serve": "true"}
    assert not spec["automountServiceAccountToken"]
    assert "privileged" not in serve["securityContext"]
    assert serve["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert asking["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not asking["securityContext"]["allowPrivilegeEscalation"]
    serves, asks = ({each["name"] for each in c["volumeMounts"]} for c in (serve, asking))
    assert "token" not in serves
    assert not {"socket", "runtime"} & asks
    assert made["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    ]
    rules = tmp_path / "serve.toml"
    rules.write_text(made["ConfigMap"]["data"]["serve.toml"])
    rules.chmod(0o600)
    assert rules_in(rules).policy is LeasePolicy.POD
    assert rules_in(rules).start_s == 30.0
    compile(made["ConfigMap"]["data"]["asking.py"], "asking.py", "exec")


@pytest.fixture
def asking() -> ModuleType:
    spec = importlib.util.spec_from_file_location("asking", CHART / "files/asking.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Pages = list[dict[str, Any]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[Pages], tuple[str, list[str]]]]:
    """Serve pages of pods as a cluster's server does; return where, and what it was asked."""
    (tmp_path / "token").write_text("secret\n")
    servers = []

    def serve(pages: Pages) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlparse(self.path)
                query = {name: value for name, (value,) in parse_qs(url.query).items()}
                asked.append(f"{url.path} {query.get('fieldSelector')}")
                known = self.headers["Authorization"] == "Bearer secret"
                self.send_response(200 if known else 401)
                self.end_headers()
                self.wfile.write(json.dumps(pages[int(query.get("continue", "0"))]).encode())

            def log_message(self, *_: object) -> None: ...

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", asked

    yield serve
    for each in servers:
        each.shutdown()
        each.server_close()


def _pod(uid: str, phase: str = "Running", **annotations: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "annotations": annotations}, "status": {"phase": phase}}


def test_pods_that_ask_have_a_file_and_lose_it_as_they_stop(
    asking: ModuleType,
    cluster: Callable[[Pages], tuple[str, list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yes = {"underclock/clocks": "leased"}
    plain = {"metadata": {"uid": "untagged"}, "status": {"phase": "Running"}}
    pages: Pages = [
        {"items": [_pod("a", **yes), plain], "metadata": {"continue": "1"}},
        {
            "items": [
                _pod("b", "Pending", **yes),
                _pod("over", "Succeeded", **yes),
                _pod("other", **{"underclock/clocks": "no"}),
            ]
        },
    ]
    server, asked = cluster(pages)
    monkeypatch.setattr(asking, "_SECRETS", tmp_path)
    folder = tmp_path / "asking"
    folder.mkdir()
    (folder / "gone").touch()

    asking.keep(folder, asking.asking(server, "node-1", "underclock/clocks=leased"))

    assert {each.name for each in folder.iterdir()} == {"a", "b"}
    assert asked == ["/api/v1/pods spec.nodeName=node-1"] * 2
    (tmp_path / "token").write_text("stale")
    with pytest.raises(OSError, match="401"):
        asking.asking(server, "node-1", "underclock/clocks=leased")
