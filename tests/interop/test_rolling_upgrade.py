"""Brokers of our last release and of this one in one cluster; a rolling upgrade there and back under load loses nothing."""

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.interop.archives import unpack
from tests.interop.kinds import LAST, OURS, MixedCluster
from tests.interop.steering import Steering
from tests.interop.test_rolling_migration import TOPICS, Load

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
#: The commit of release 0.1.0, before there were tags.
FIRST = "24206a8"


def git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else b""


def last_release() -> str:
    """Return the newest tag that is not this commit's own, or else the commit of 0.1.0."""
    here = git("tag", "--points-at", "HEAD").decode().split()
    tags = [tag for tag in git("tag", "--sort=-v:refname").decode().split() if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    return next((tag for tag in tags if tag not in here), FIRST)


@pytest.fixture(scope="module")
def last_python() -> str:
    """Return a Python with our last release, kept in .interop/."""
    revision = last_release()
    folder = ROOT / ".interop" / f"release-{revision}"
    python = folder / "bin" / "python"
    if (folder / "done").exists():
        return str(python)
    archive = git("archive", revision)
    if not archive:
        pytest.skip(f"{revision} is not in this clone: git fetch --unshallow")
    source = folder / "source"
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        unpack(files, source)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    subprocess.run([python, "-m", "pip", "install", "--quiet", source], check=True, timeout=600)
    (folder / "done").touch()
    return str(python)


def test_brokers_are_upgraded_one_by_one_and_back_under_load(last_python: str) -> None:
    with MixedCluster(kinds=dict.fromkeys((1, 2, 3), LAST), last_python=last_python) as cluster:
        steering = Steering(cluster)
        load = Load(cluster, steering)
        load.roll(OURS, LAST)
        load.finish()
        steering.close()


@pytest.mark.parametrize("kinds", [(LAST, OURS, OURS), (OURS, LAST, LAST)], ids=["mostly new", "mostly old"])
def test_crash_in_a_cluster_of_both_versions_loses_nothing(kinds: tuple[str, ...], last_python: str) -> None:
    with MixedCluster(kinds=dict(enumerate(kinds, start=1)), last_python=last_python) as cluster:
        steering = Steering(cluster)
        load = Load(cluster, steering)
        for broker_id in (1, 2):
            load.wait_progress(f"before broker {broker_id} dies")
            cluster.kill(broker_id)
            load.wait_progress(f"without broker {broker_id}")
            cluster.start(broker_id, OURS if cluster.kinds[broker_id] == LAST else LAST)
            steering.wait_full_isr(*TOPICS)
        load.finish()
        steering.close()
