"""franz-go and sarama, the Go clients that most applications use: codecs, groups, transactions, administration.

The program is in `go/`; modules come by the versions that its `go.mod` pins.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster

HERE = Path(__file__).resolve().parent
SCENARIOS = (
    "franz-admin",
    "franz-codecs",
    "franz-exactly-once",
    "franz-group",
    "franz-group-848",
    "franz-share",
    "franz-transactions",
    "sarama-admin",
    "sarama-codecs",
    "sarama-group",
    "sarama-transactions",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program once; Go's own cache makes the next build quick."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs go")
    built = tmp_path_factory.mktemp("go") / "interop"
    done = subprocess.run(
        [go, "build", "-o", str(built), "."], cwd=HERE / "go", capture_output=True, text=True, timeout=280, check=False
    )
    if done.returncode != 0 and "toolchain" in done.stderr:
        pytest.skip(f"needs a newer go: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return built


def test_every_scenario_of_the_program_is_run(program: Path) -> None:
    listed = subprocess.run([program, "list"], capture_output=True, text=True, timeout=30, check=True)
    assert tuple(listed.stdout.split()) == SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_go_client(program: Path, cluster: LocalCluster, scenario: str) -> None:
    done = subprocess.run(
        [program, cluster.bootstrap, scenario], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
