"""kafkajs, the Node client that most applications use: groups, transactions, administration.

The program is in `node/`; npm fetches the version that its `package.json` pins.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command that runs the program, in a folder with kafkajs."""
    npm, command = shutil.which("npm"), shutil.which("node")
    if npm is None or command is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(HERE / "node", folder, dirs_exist_ok=True)
    install = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    # The notice about partitioning in 2.0 is only for people.
    return ["env", "KAFKAJS_NO_PARTITIONER_WARNING=1", command, str(folder / "kafkajs.js")]


@pytest.mark.parametrize("scenario", ["produceAndConsume", "transactions", "administration"])
def test_kafkajs(node: list[str], cluster: LocalCluster, topic: str, scenario: str) -> None:
    command = [*node, cluster.bootstrap, scenario, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
