"""The work behind `barnabas connect`; the command line itself is `barnabas.cli.connect`, which needs no Spark."""

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.services.http.server import run_until_signal
from barnabas.spark.connect import files
from barnabas.spark.connect.classes import CLASSES
from barnabas.spark.connect.connector import Worker, refuse, validated
from barnabas.spark.connect.herder import Engine, Herder
from barnabas.spark.connect.options import ConnectorRefused
from barnabas.spark.connect.rest import RestServer, access_of

__all__ = ["RestServer", "Wanted", "access_of", "check", "run"]

log = logging.getLogger(__name__)


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


def run(wanted: Wanted, *, master: str, state: Path, once: bool, rest: RestServer | None = None) -> int:
    """Run the connectors until a signal, or with `once` until all that is there was read. Return the exit status."""
    from barnabas.spark.connect import engine

    worker, connectors = read(wanted)
    for each in connectors:  # before Spark starts, which takes seconds
        _, problems = validated(files.resolved(each.config), CLASSES, worker)
        if problems:
            raise refuse(each.name, problems)
    with engine.spark_of(state.absolute(), master) as spark:
        running = engine.SparkEngine(spark, worker, state.absolute(), once=once)
        service = Service(running, worker, state.absolute(), connectors, rest, once=once)

        def announce(of: Service) -> None:
            where = f" rest={rest.url}" if rest is not None else ""
            sys.stdout.write(f"ready connectors={','.join(of.herder.connectors)}{where}\n")
            sys.stdout.flush()

        status = run_until_signal(lambda: service, announce)
        return status or (1 if once and service.has_failed else 0)


class Service:
    """The connectors and, if it is wanted, their REST interface. Owner: the event loop."""

    def __init__(
        self,
        engine: Engine,
        worker: Worker,
        state: Path,
        connectors: list[files.Described],
        rest: RestServer | None,
        *,
        once: bool,
    ) -> None:
        self._parts = (engine, worker, state, connectors)
        self._rest = rest
        self._once = once
        self._stopping: asyncio.Event | None = None
        self.herder: Herder
        self.has_failed = False

    def stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Run until `stop`, or until all queries have ended. `ready` is called when all connectors were started."""
        self._stopping = stopping = asyncio.Event()
        self.herder = Herder(*self._parts, ends=self._once)
        async with asyncio.TaskGroup() as tasks:
            if self._rest is not None:
                cluster = await _cluster_id(self._parts[1])
                tasks.create_task(self._rest.run(self.herder, stopping, cluster), name="rest")
            await self.herder.run(stopping, ready)
            stopping.set()
        self.has_failed = any(each.life.has_failed for each in self.herder.connectors.values())


async def _cluster_id(worker: Worker) -> str:
    async with AsyncClient(client_config(worker.bootstrap, worker.client, client_id="barnabas-connect")) as cluster:
        await cluster.refresh([])
        return cluster.image.cluster_id or ""
