"""Units of systemd, and the Helm chart, held against their own tools."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from debian import program

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
CHART = ROOT / "deploy/helm/barnabas"
EXPOSURE_MAX = 2.0
HELM = "helm.sh/helm/v3/cmd/helm@v3.16.4"


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


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program; built from the Go module proxy where it is missing."""
    if (found := shutil.which("helm")) is not None:
        return found
    if shutil.which("go") is None:
        pytest.skip("needs helm, or Go to build it")
    folder = Path(".interop/go").absolute()
    if not (folder / "helm").exists():
        environment = {"GOBIN": str(folder), "GOFLAGS": "-mod=mod"}
        built = subprocess.run(
            ["env", *(f"{name}={value}" for name, value in environment.items()), "go", "install", HELM],
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        if built.returncode:
            pytest.skip(f"helm cannot be built: {built.stderr[-200:]}")
    return str(folder / "helm")


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
