"""The work behind `barnabas connect`; the command line itself is `barnabas.cli.connect`, which needs no Spark."""

import logging
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.spark.connect import files
from barnabas.spark.connect.classes import CLASSES
from barnabas.spark.connect.connector import Worker, refuse, validated
from barnabas.spark.connect.options import ConnectorRefused

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: How often the command looks whether a query has ended.
_LOOK_S: Final = 0.5


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    places: Sequence[Path]
    bootstrap: str
    #: Settings of Kafka clients.
    client: Mapping[str, str]
    worker_file: Path | None = None


def read(wanted: Wanted) -> tuple[Worker, list[files.Described]]:
    """Read the worker's file and all connectors. :raises ConnectorRefused: for the first file that cannot be read."""
    worker, without_effect = files.read_worker(wanted.worker_file)
    if without_effect:
        log.warning(
            "[connect] settings of %s that have no effect here: %s", wanted.worker_file, ", ".join(without_effect)
        )
    worker = replace(worker, bootstrap=wanted.bootstrap or worker.bootstrap, client={**worker.client, **wanted.client})
    if not worker.bootstrap:
        raise ConnectorRefused(
            "say where the cluster is: --bootstrap-server, or bootstrap.servers in the worker's file"
        )
    found: dict[str, files.Described] = {}
    for place in wanted.places:
        for each in files.read_connectors(place):
            if each.name in found:
                raise ConnectorRefused(f"{each.file} and {found[each.name].file} both describe a connector {each.name}")
            found[each.name] = each
    return worker, list(found.values())


def check(wanted: Wanted) -> None:
    """Say what would run, and refuse what cannot. Starts nothing."""
    worker, connectors = read(wanted)
    for each in connectors:
        connector, problems = validated(files.resolved(each.config), CLASSES, worker)
        if connector is None:
            raise refuse(each.name, problems)
        sys.stdout.write(f"{each.name}: {connector.of.short} ({connector.of.kind}) can run\n")


def run(wanted: Wanted, *, master: str, state: Path, once: bool) -> int:
    """Run the connectors until a signal, or with `once` until all that is there was read. Return the exit status."""
    from barnabas.spark.connect import engine

    worker, connectors = read(wanted)
    for each in connectors:  # before Spark starts, which takes seconds
        _, problems = validated(files.resolved(each.config), CLASSES, worker)
        if problems:
            raise refuse(each.name, problems)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with engine.spark_of(state.absolute(), master) as spark:
        for number in (signal.SIGTERM, signal.SIGINT):  # Spark takes SIGINT for itself when it starts
            signal.signal(number, lambda *_: stopping.set())
        running = engine.Engine(spark, worker, state.absolute())
        queries = {
            each.name: running.start(each, once=once) for each in connectors if once or each.initial_state == "RUNNING"
        }
        sys.stdout.write(f"ready connectors={','.join(queries)}\n")
        sys.stdout.flush()
        return _wait(queries, stopping)


def _wait(queries: "Mapping[str, Sequence[StreamingQuery]]", stopping: threading.Event) -> int:
    """Wait for the end of all queries. A connector that fails stays down, and the others go on."""
    left = {(name, number): query for name, each in queries.items() for number, query in enumerate(each)}
    status = 0
    while left and not stopping.is_set():
        for key, query in list(left.items()):
            if query.isActive:
                continue
            del left[key]
            if (error := query.exception()) is not None:
                status = 1
                log.error(
                    "[connector %s] FAILED, and stays down until the next start: %s", key[0], _first_cause(str(error))
                )
        stopping.wait(_LOOK_S)
    for query in left.values():
        query.stop()
    return status


def _first_cause(text: str) -> str:
    """Return the line of a Python error within Spark's report, which has the traces of both languages."""
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("barnabas.", "pyspark.errors.exceptions.captured"))]
    return (named or lines or [text])[-1].strip()
