"""Whole clusters of real brokers under faults, by seed. SEEDS is their number; a failure prints the command that replays it.

Each chunk of seeds runs in a process of its own with a fixed hash seed, so that a replay is exact.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

SEEDS = int(os.environ.get("SEEDS", "18"))
#: Seeds of a cluster with an object store: one that found a defect, and two in which elections, power cuts and the store lose
#: much, and followers begin where the tier ends.
TIERED = "2,16,18" if SEEDS <= 100 else f"0:{SEEDS // 20}"
#: Seeds of two linked clusters: the three endings, and one with trouble on purpose, so that its code keeps up with what ships.
LINKED = (0, 4) if SEEDS <= 100 else (0, SEEDS // 10)
#: Seeds of queries of Spark: a copied checkpoint, one that was rewound by hand, one by command, and a driver that comes back
#: late (29).
SPARK = "2,3,4,29" if SEEDS <= 100 else f"0:{SEEDS // 20}"
TABLES = "0:8" if SEEDS <= 100 else f"0:{SEEDS // 10}"
REGISTRY = "0:3" if SEEDS <= 100 else f"0:{SEEDS // 20}"
SHARE = "0:4" if SEEDS <= 100 else f"0:{SEEDS // 10}"
CHUNK = 6 if SEEDS <= 100 else 25


def simulate(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.simulate", "--json", *arguments],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def describe(report: dict[str, Any]) -> str:
    return "\n".join(
        f"{each['detail']}\n{each['story']}\n  replay: python -m tests.simulation.simulate {each['seed']}"
        for each in report["failures"]
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_cluster_keeps_its_promises(first: int) -> None:
    report = simulate(f"{first}:{min(first + CHUNK, SEEDS)}")
    assert not report["failures"], describe(report)
    assert report["acknowledged"] > 10 * report["seeds"], "hardly anything was acknowledged: the run proves nothing"
    # Each run has eight partitions or more: at most one of eight may be excused. One power cut may excuse all of a broker's.
    assert report["excused"] <= report["seeds"], "many partitions were excused: the run proves little"


def test_linked_clusters_keep_their_promises() -> None:
    """Run one seed for each way in which mirrors end."""
    report = simulate(f"{LINKED[0]}:{LINKED[1]}", "--world", "link")
    assert not report["failures"], describe(report)
    assert report["acknowledged"] > 20 * report["seeds"], "hardly anything was acknowledged: the run proves nothing"


def test_cluster_with_an_object_store_keeps_its_promises() -> None:
    report = simulate(TIERED, "--world", "tier")
    assert not report["failures"], describe(report)
    assert report["acknowledged"] > 20 * report["seeds"], "hardly anything was acknowledged: the run proves nothing"


def test_queries_of_spark_write_every_row_exactly_once_and_a_seed_is_the_same_run_after_others() -> None:
    report = simulate(SPARK, "--world", "spark", "--digests")
    assert not report["failures"], describe(report)
    assert report["acknowledged"] > 20 * report["seeds"], "hardly anything was acknowledged: the run proves nothing"
    last = list(report["digests"])[-1]
    assert simulate(last, "--world", "spark", "--digests")["digests"][last] == report["digests"][last]


def test_tables_have_every_record_of_their_topic_once() -> None:
    report = simulate(TABLES, "--world", "tables")
    assert not report["failures"], describe(report)
    assert report["acknowledged"] > 10 * report["seeds"], "hardly anything was written: the run proves nothing"


def test_registry_keeps_every_schema_that_it_has_acknowledged_and_a_seed_is_the_same_run_after_others() -> None:
    report = simulate(REGISTRY, "--world", "registry", "--digests")
    assert not report["failures"], describe(report)
    assert report["acknowledged"] > 10 * report["seeds"], "hardly anything was acknowledged: the run proves nothing"
    last = list(report["digests"])[-1]
    assert simulate(last, "--world", "registry", "--digests")["digests"][last] == report["digests"][last]


def test_share_groups_keep_their_promises() -> None:
    report = simulate(SHARE, "--world", "share")
    assert not report["failures"], describe(report)
    assert report["acknowledged"] > 50 * report["seeds"], "hardly anything was acknowledged: the run proves nothing"


def test_same_seed_is_the_same_run() -> None:
    """The story is equal byte for byte, also after other seeds in the same process."""
    alone = simulate("3", "--seconds", "8", "--digests")
    after_others = simulate("2,3", "--seconds", "8", "--digests")
    assert alone["digests"]["3"] == after_others["digests"]["3"]
