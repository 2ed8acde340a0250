"""The programs of docs/faults.md in Java, Go and Node, against a cluster of `barnabas up --faults`."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.cli.running import running_clusters
from tests.interop import maven
from tests.scenarios.tools.test_up_detached import Run, run, up

__all__ = ["run"]

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "faults.md").read_text()
PROGRAMS = dict(re.findall(r"^```(java|go|javascript)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    monkeypatch.setenv("BARNABAS_FAULTS_TOKEN", "for-my-tests")
    assert up("--brokers", "3", "--faults").returncode == 0
    [cluster] = running_clusters()
    assert cluster.faults is not None
    made = run(
        *("topics", "--bootstrap-server", cluster.bootstrap, "--create", "--topic", "orders"),
        *("--replication-factor", "3"),
    )
    assert made.returncode == 0, made.stderr
    yield {**os.environ, "KAFKA": cluster.bootstrap.partition(",")[0], "FAULTS": cluster.faults}


def ends_well(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout) == (0, "refused twice, and written\n"), done.stdout + done.stderr


def made(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr


def test_java(tmp_path: Path, java: None, environment: dict[str, str]) -> None:
    jars = maven.classpath("org.apache.kafka:kafka-clients:4.3.1", "org.slf4j:slf4j-nop:1.7.36")
    (tmp_path / "Faults.java").write_text(PROGRAMS["java"])
    made(["javac", "-cp", jars, "Faults.java"], tmp_path)
    ends_well(["java", "-Xmx256m", "-cp", f"{jars}:.", "Faults"], tmp_path, environment)


def test_go(tmp_path: Path, environment: dict[str, str]) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs go")
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / "go" / name, tmp_path / name)
    (tmp_path / "main.go").write_text(PROGRAMS["go"])
    made([go, "build", "-mod=mod", "-o", "faults", "."], tmp_path)
    ends_well([str(tmp_path / "faults")], tmp_path, environment)


def test_node(tmp_path: Path, environment: dict[str, str]) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("needs node and npm")
    shutil.copy(HERE / "node" / "package.json", tmp_path / "package.json")
    (tmp_path / "faults.js").write_text(PROGRAMS["javascript"])
    made([npm, "install", "--no-audit", "--no-fund", "--no-package-lock"], tmp_path)
    environment["KAFKAJS_NO_PARTITIONER_WARNING"] = "1"
    ends_well([node, "faults.js"], tmp_path, environment)
