"""Units of systemd and the Helm chart, checked with their own tools."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.debian import program

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
CHART = ROOT / "deploy/helm/barnabas"
EXPOSURE_MAX = 2.0
HELM = "helm.sh/helm/v3/cmd/helm@v3.16.4"
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0"
#: The kinds of objects in the chart, by the names of their schemas.
KINDS = ("service-v1", "statefulset-apps-v1", "poddisruptionbudget-policy-v1")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_unit_is_right_and_gives_a_service_little(unit: Path) -> None:
    analyze = program("systemd-analyze", "systemd")
    verified = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, timeout=120, check=False)
    # The program itself is not installed here.
    said = [line for line in verified.stderr.splitlines() if unit.stem in line and "is not executable" not in line]
    assert said == []
    judged = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r"exposure level for \S+: ([0-9.]+)", judged.stdout)
    assert found is not None, judged.stdout + judged.stderr
    print(unit.name, found[1])
    assert float(found[1]) <= EXPOSURE_MAX


def from_go(name: str, module: str) -> str:
    """Return the program; build it from the Go module proxy if it is missing."""
    if (found := shutil.which(name)) is not None:
        return found
    if shutil.which("go") is None:
        pytest.skip(f"needs {name}, or Go to build it")
    folder = Path(".interop/go").absolute()
    if not (folder / name).exists():
        environment = os.environ | {"GOBIN": str(folder), "GOFLAGS": "-mod=mod"}
        built = subprocess.run(
            ["go", "install", module], capture_output=True, text=True, timeout=1500, env=environment, check=False
        )
        if built.returncode:
            pytest.skip(f"{name} cannot be built: {built.stderr[-200:]}")
    return str(folder / name)


@pytest.fixture(scope="module")
def helm() -> str:
    return from_go("helm", HELM)


@pytest.fixture(scope="module")
def kubernetes_schemas(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a Kubernetes version to a folder of its schemas for kubeconform, from PyPI's
    kubernetes-validate.
    """
    folder = tmp_path_factory.mktemp("kubernetes")
    installed = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            folder / "package",
            "kubernetes-validate",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if installed.returncode:
        pytest.skip(f"needs kubernetes-validate: {installed.stderr[-200:]}")

    def of(version: str) -> Path:
        held = folder / "package/kubernetes_validate/kubernetes-json-schema" / f"v{version}-local-strict"
        made = folder / version
        made.mkdir(exist_ok=True)

        def plain(name: str) -> dict[str, Any]:
            # kubeconform needs self-contained schemas.
            return json.loads((held / name).read_text().replace("/api/_definitions.json#", "#"))

        definitions = plain("_definitions.json")["$defs"]
        for kind in KINDS:
            schema = plain(f"{kind}.json") | {"$defs": definitions}
            schema.pop("$id", None)
            (made / f"{kind}.json").write_text(json.dumps(schema))
        return made

    return of


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["1.28.0", "1.35.0"])
def test_chart_makes_what_kubernetes_takes(helm: str, kubernetes_schemas: Callable[[str], Path], version: str) -> None:
    kubeconform = from_go("kubeconform", KUBECONFORM)
    location = f"{kubernetes_schemas(version)}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"

    def judge(text: str) -> tuple[int, str]:
        done = subprocess.run(
            [kubeconform, "-strict", "-summary", "-schema-location", location],
            input=text,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    text = subprocess.run(
        [helm, "template", "shop", CHART], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    status, said = judge(text)
    assert status == 0 and "Valid: 6, Invalid: 0, Errors: 0, Skipped: 0" in said, said
    status, said = judge(text.replace("podManagementPolicy:", "podManagementPolcy:"))
    assert status == 1 and "'podManagementPolcy' not allowed" in said


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "options", [(), ("--set", "zookeeper.connect=zk:2181/kafka"), ("--set", "antiAffinity=soft,topologyKey=zone")]
)
def test_chart_is_in_order_and_makes_what_a_cluster_needs(helm: str, options: tuple[str, ...]) -> None:
    subprocess.run([helm, "lint", "--strict", CHART, *options], capture_output=True, timeout=300, check=True)
    text = subprocess.run(
        [helm, "template", "shop", CHART, "--namespace", "prod", *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    made = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each}
    brokers = made["StatefulSet", "shop"]["spec"]
    [container] = brokers["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["KAFKA_MIN_INSYNC_REPLICAS"] == "2"
    assert variables["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://$(POD_NAME).shop-brokers.prod.svc:9092"
    assert container["readinessProbe"]["httpGet"]["path"] == "/in-sync"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    has_own_zookeeper = ("StatefulSet", "shop-zookeeper") in made
    assert has_own_zookeeper == ("zookeeper.connect" not in " ".join(options))
    assert variables["KAFKA_ZOOKEEPER_CONNECT"] == ("shop-zookeeper:2181" if has_own_zookeeper else "zk:2181/kafka")
    assert ("PodDisruptionBudget", "shop") in made
