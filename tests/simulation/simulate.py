"""Run seeds of the simulation: `python -m tests.simulation.simulate 17` prints its story, `0:200` runs many.

Each seed runs in a process forked from this one, so that it starts from the same state and leaves nothing behind. The order of
sets of names depends on PYTHONHASHSEED, so it is fixed: a seed is the same run everywhere.
"""

import argparse
import gc
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from barnabas.testing.simulation.compiled import compile_all, compiled

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

_FIXED = "PYTHONHASHSEED"


def run_seed(seed: int, *, seconds: float | None = None, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a seed in this process and return its report."""
    from tests.simulation.cluster import SimCluster
    from tests.simulation.scenario import Scenario

    began_s = _begin(seed)
    cluster = SimCluster(seed, Scenario.of(seed), without=frozenset(without))
    return _report_of(seed, cluster, lambda: cluster.run(seconds=seconds), began_s) | {
        "parts": [*cluster.fault_names, *(client.name for client in cluster.clients)]
    }


def run_tiered(seed: int, *, seconds: float | None = None) -> dict[str, Any]:
    """Run a cluster with its history in an object store."""
    from tests.simulation.tier_world import TieredCluster

    began_s = _begin(seed)
    cluster = TieredCluster(seed)
    return _report_of(seed, cluster, lambda: cluster.run(seconds=seconds), began_s)


def run_linked(seed: int) -> dict[str, Any]:
    """Run a cluster and one that mirrors it."""
    from tests.simulation.link_world import LinkedWorld

    began_s = _begin(seed)
    linked = LinkedWorld(seed)
    return _report_of(seed, linked.source, linked.run, began_s)


def run_spark(seed: int) -> dict[str, Any]:
    """Run a cluster with streaming queries of Spark that write exactly once."""
    from tests.simulation.spark_world import SparkWorld

    began_s = _begin(seed)
    cluster = SparkWorld(seed)
    return _report_of(seed, cluster, cluster.run, began_s)


def run_registry(seed: int) -> dict[str, Any]:
    """Run a cluster with three instances of a schema registry."""
    from tests.simulation.registry_world import RegistryWorld

    began_s = _begin(seed)
    cluster = RegistryWorld(seed)
    return _report_of(seed, cluster, cluster.run, began_s)


def run_share(seed: int) -> dict[str, Any]:
    """Run a cluster with share groups."""
    from tests.simulation.share_world import ShareWorld

    began_s = _begin(seed)
    cluster = ShareWorld(seed)
    return _report_of(seed, cluster, cluster.run, began_s)


def run_tables(seed: int) -> dict[str, Any]:
    """Run fillers of a table, with real tables and without a cluster."""
    from tests.simulation.table_world import report

    began_s = _begin(seed)
    return {**_NO_REPORT, **report(seed), "cpu_s": round(time.process_time() - began_s, 2)}


def _begin(seed: int) -> float:
    _seed_random(seed)
    log = logging.getLogger("barnabas")
    log.setLevel(logging.INFO)
    log.propagate = False
    logging.getLogger().addHandler(logging.NullHandler())
    return time.process_time()


def _report_of(seed: int, cluster: "SimCluster", run: Callable[[], None], began_s: float) -> dict[str, Any]:
    world = cluster.world
    report: dict[str, Any] = {"seed": seed, "broken": None}
    try:
        run()
    except Exception as failure:
        report["broken"] = world.violation.name if world.violation is not None else type(failure).__name__
        report["detail"] = str(failure)
        cause = world.failure
        report["trace"] = "".join(traceback.format_exception(cause if cause is not None else failure))
    report |= {
        "parts": [],
        "story": world.story_text(),
        "digest": world.digest(),
        "virtual_s": round(world.now_s - world.began_s, 1),
        "cpu_s": round(time.process_time() - began_s, 2),
        "steps": world.steps,
        "acknowledged": cluster.oracle.acknowledged,
        "excused": len(cluster.oracle.excused),
        "codecs": compiled(),
    }
    return report


def run_storage(seed: int) -> dict[str, Any]:
    """Run logs alone, on a disk that loses writes that were not synced."""
    from tests.simulation.storage_kinds import kind_of
    from tests.simulation.storage_loop_turns import LoopHeld

    _seed_random(seed)
    began_s = time.process_time()
    kind = kind_of(seed)
    world = kind.world(seed, journaled=kind.is_journaled)
    report: dict[str, Any] = {**_NO_REPORT, "seed": seed, "broken": None}
    try:
        kind.run(world, kind.times)
    except Exception as failure:
        report |= {
            "broken": "no callback holds the loop" if isinstance(failure, LoopHeld) else "logs keep what is durable",
            "detail": f"{type(failure).__name__}: {failure}",
            "trace": traceback.format_exc(),
        }
    return report | {"story": "\n".join(world.story), "cpu_s": round(time.process_time() - began_s, 2)}


def _seed_random(seed: int) -> None:
    """Let the seed choose what the operating system would choose at random: ids of topics, clusters and directories."""
    chance = Random(seed ^ 0x5EED)
    os.urandom = chance.randbytes
    import random

    random.seed(seed)
    gc.disable()


#: The report of a run that did not end.
_NO_REPORT: dict[str, Any] = {
    "parts": [],
    "story": "",
    "digest": "",
    "virtual_s": 0,
    "cpu_s": 0,
    "steps": 0,
    "acknowledged": 0,
    "excused": 0,
    "codecs": [],
}


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run `work` in a process of its own, which leaves nothing behind, and return its report."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_fd)
        try:
            report = work()
        except BaseException as error:
            report = {"broken": type(error).__name__, "detail": repr(error), "trace": traceback.format_exc()}
        with os.fdopen(write_fd, "wb") as out:
            out.write(json.dumps(report).encode())
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        return {"broken": "the process died", "detail": f"status {status}", "trace": ""}
    answer: dict[str, Any] = json.loads(data)
    return answer


def run_forked(seed: int, *, world: str = "cluster", **options: Any) -> dict[str, Any]:
    """Run a seed in a process of its own."""
    worlds: dict[str, Callable[[], dict[str, Any]]] = {
        "cluster": lambda: run_seed(seed, **options),
        "storage": lambda: run_storage(seed),
        "link": lambda: run_linked(seed),
        "spark": lambda: run_spark(seed),
        "registry": lambda: run_registry(seed),
        "share": lambda: run_share(seed),
        "tables": lambda: run_tables(seed),
        "tier": lambda: run_tiered(seed, seconds=options.get("seconds")),
    }
    report = {**_NO_REPORT, "seed": seed} | in_child(worlds[world])
    compile_all(report.pop("codecs"))
    return report


def shorten(seed: int, report: dict[str, Any]) -> dict[str, Any]:
    """Find a shorter run that breaks the same promise, without kinds of faults and clients that it does not need.

    Leaving something out changes the later random decisions, so each attempt must run.
    """
    without: tuple[str, ...] = ()
    best = report
    for part in report["parts"]:
        attempt = run_forked(seed, without=(*without, part))
        if attempt["broken"] == report["broken"] and len(attempt["story"]) < len(best["story"]):
            without, best = (*without, part), attempt
    best["without"] = list(without)
    return best


def seeds_of(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, colon, last = part.partition(":")
        yield from range(int(first), int(last) if colon else int(first) + 1)


def warm_up() -> None:
    """Load the modules that every seed needs before the first fork."""
    import tests.simulation.link_world
    import tests.simulation.scenario
    import tests.simulation.tier_world  # noqa: F401

    gc.collect()
    gc.freeze()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", help="one seed, or FROM:TO, or several with commas")
    parser.add_argument("--mutant", help="put this defect into the code")
    parser.add_argument(
        "--world",
        choices=("cluster", "storage", "link", "tier", "spark", "registry", "share", "tables"),
        default="cluster",
        help="whole brokers, logs alone, two linked clusters, a cluster with tiered storage, queries of Spark, a registry "
        "or share groups, or tables alone",
    )
    parser.add_argument("--stop-at-first", action="store_true")
    parser.add_argument("--seconds", type=float, help="virtual seconds of faults")
    parser.add_argument("--shorten", action="store_true", help="look for a shorter story of one failing seed")
    parser.add_argument("--last", type=int, default=400, help="lines of the story to print")
    parser.add_argument("--digests", action="store_true", help="with --json: print a digest of each story")
    parser.add_argument("--json", action="store_true", help="print one line of JSON, for tests")
    arguments = parser.parse_args()
    seeds = list(seeds_of(arguments.seeds))
    if arguments.mutant is not None:
        from tests.simulation.mutants import MUTANTS

        MUTANTS[arguments.mutant].apply()
    warm_up()
    failures: list[dict[str, Any]] = []
    digests: dict[int, str] = {}
    total: dict[str, float] = {"seeds": 0, "virtual_s": 0, "cpu_s": 0, "acknowledged": 0, "excused": 0}
    for seed in seeds:
        report = run_forked(seed, world=arguments.world, seconds=arguments.seconds)
        if report["broken"] and arguments.shorten:
            report = shorten(seed, report)
        total["seeds"] += 1
        digests[seed] = report["digest"]
        for key in ("virtual_s", "cpu_s", "acknowledged", "excused"):
            total[key] += report[key]
        if len(seeds) == 1:
            print("\n".join(report["story"].splitlines()[-arguments.last :]))
            print({key: value for key, value in report.items() if key not in ("story", "trace")})
        if report["broken"]:
            failures.append(report)
            if not arguments.json:
                print(f"seed {seed}: {report['detail'][:600]}")
                if len(seeds) == 1:
                    print(report["trace"])
            if arguments.stop_at_first:
                break
    for report in failures:
        report["story"] = "\n".join(report["story"].splitlines()[-60:])
    if arguments.json:
        print(json.dumps({**total, "failures": failures, "digests": digests if arguments.digests else {}}))
    else:
        print({key: round(value, 1) for key, value in total.items()}, "failed:", [each["seed"] for each in failures])
    return 1 if failures else 0


if __name__ == "__main__":
    if os.environ.get(_FIXED) != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation.simulate", *sys.argv[1:]],
            {**os.environ, _FIXED: "0"},
        )
    sys.exit(main())
