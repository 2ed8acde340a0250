"""Streaming queries that write exactly once, on a cluster with faults.

The operator starts each query again when it has failed, and sometimes a second time while it runs. By seed it also copies,
moves or rewinds the checkpoint, and says what the sink asks for. In the end a reader of committed records finds every row as
often as the checkpoints' history says: once, but for batches that the operator let write again.
"""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.fetching import ConsumerConfig
from barnabas.spark import checkpoint_replan
from barnabas.spark.batch_identity import NotTheSameBatch
from barnabas.spark.checkpoint import FILE, CheckpointElsewhere
from barnabas.spark.checkpoint_files import CheckpointFiles
from tests.simulation.cluster import SETTLE_S, SimCluster
from tests.simulation.load import Client
from tests.simulation.scenario import Scenario
from tests.simulation.spark_query import PARTITIONS, TOPIC, Driver, Executor, Query, simulate_sink

#: What happens to the checkpoint, by seed.
KINDS = ("kills", "two drivers", "copied", "rewound by hand", "rewound by command", "moved")
_EXACTLY_ONCE = "every row of a query is seen exactly once"
_FAULTS = {
    "kill": 3, "kill_leader": 3, "kill_controller": 1, "restart": 2, "pause": 2, "isolate": 2, "cut_link": 2, "expire": 1,
    "reset_connections": 3, "slow_network": 1,
}  # fmt: skip


def kind_of(seed: int) -> str:
    return KINDS[seed % len(KINDS)]


class Operator(Client):
    def __init__(self, cluster: "SparkWorld") -> None:
        super().__init__(cluster, "operator")
        self._spark = cluster
        self._replaced: list[Driver] = []
        self._repeats_tasks = True

    async def main(self) -> None:
        await self._make_topic()
        spark = self._spark
        for executor in spark.executors:
            executor.start()
        keeping = asyncio.ensure_future(self._lose_executors())
        query = spark.queries[0]
        await self._run_batches(query, 3)
        await getattr(self, "_" + spark.kind.replace(" ", "_"))(query)
        while not self.ending:
            await self._run_batches(query, 2)
        keeping.cancel()
        for executor in spark.executors:
            if not executor.is_up:
                executor.start()
        # The last start of each query aborts the transactions of tasks that no driver waits for, so none may write after it.
        while any(executor.pending for executor in spark.executors):
            await asyncio.sleep(0.1)
        self._repeats_tasks = False
        for each in spark.queries:
            each.total = each.end_of(max(each.numbers("offsets"), default=-1)) + 3
            await self._run_until_done(each)
        for process in (*spark.executors, *self._replaced):
            if process.is_up:
                if process.is_paused:
                    process.resume()
                process.kill()
        self.note("all queries are done")

    async def _make_topic(self) -> None:
        while True:
            try:
                async with self.connect() as client:
                    await create_topics(
                        client,
                        [NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3,
                                  configs={"min.insync.replicas": "2"})],
                    )  # fmt: skip
                return
            except BrokerRefused as refused:
                if refused.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    return
            except ClientError:
                pass
            await self.pause(0.1, 0.3)

    # -- starts of a query ------------------------------------------------------------------------------------------------

    async def _run_batches(self, query: Query, count: int) -> None:
        """Run the query, with kills, until so many more batches are committed or the load ends."""
        wanted = len(query.numbers("commits")) + count
        while not self.ending and len(query.numbers("commits")) < wanted:
            driver = self._start(query)
            self._endanger(driver)
            until_s = self.world.now_s + self.chance.uniform(0.5, 6.0)
            while driver.is_up and not self.ending and len(query.numbers("commits")) < wanted:
                if self.world.now_s > until_s:
                    await self._disturb(driver)
                    until_s = self.world.now_s + self.chance.uniform(0.5, 6.0)
                if driver.is_paused:
                    await self._go_on_beside(driver)
                await asyncio.sleep(0.05)
            await self._stop(driver)

    def _start(self, query: Query, **options: str) -> Driver:
        driver = Driver(self._spark, query, self._spark.executors, **options)
        driver.repeats_tasks = self._repeats_tasks
        driver.start()
        return driver

    def _endanger(self, driver: Driver) -> None:
        """Choose a step between two requests at which the driver, or the process that commits, dies."""
        what = self.chance.random()
        if what < 0.4:
            driver.dies_in = self.chance.randint(1, 60)
        elif what < 0.6:
            driver.is_torn_in = self.chance.randint(1, 60)
        elif self._spark.kind == "two drivers" and what < 0.9:
            driver.pauses_in = self.chance.randint(1, 90)

    async def _disturb(self, driver: Driver) -> None:
        """Kill the driver at any moment, or start another one beside it."""
        is_second = self._spark.kind == "two drivers" or self.chance.random() < 0.2
        if not driver.is_up:
            return
        if not is_second:
            driver.kill()
            return
        if self.chance.random() < 0.5:
            driver.pause_process()
        await self._go_on_beside(driver)

    async def _go_on_beside(self, driver: Driver) -> None:
        """Let another start of the query go on for a while. If the first one is paused, it goes on at any moment."""
        if driver.is_paused:
            self.world.after(self.chance.uniform(1.0, 8.0), lambda: self._resume(driver))
        second = self._start(driver.query)
        self._replaced.append(second)
        await asyncio.sleep(self.chance.uniform(0.2, 4.0))
        await self._stop(second)

    def _resume(self, driver: Driver) -> None:
        if driver.is_up and driver.is_paused:
            driver.resume()

    async def _stop(self, driver: Driver) -> None:
        """Stop a driver: it is gone afterwards, and its failure was one that may happen."""
        if driver.is_up and driver.is_paused:
            driver.resume()
        if driver.is_up:
            driver.kill()
        self._check_failure(driver)

    def _check_failure(self, driver: Driver) -> None:
        if isinstance(driver.failure, NotTheSameBatch | CheckpointElsewhere):
            self.world.violate("a query that comes again is known again", f"{driver.name}: {driver.failure}")

    async def _run_until_done(self, query: Query, **options: str) -> None:
        """Run the query without further kills until it has no more rows, or until it is stopped at the end of a batch."""
        while True:
            driver = self._start(query, **options)
            driver.is_asked_to_stop = query.total is None
            while driver.is_up:
                await asyncio.sleep(0.1)
            self._check_failure(driver)
            if query.is_complete and (query.total is None or query.end_of(query.numbers("offsets")[-1]) >= query.total):
                return
            await self.pause(0.1, 0.5)

    async def _refused(self, query: Query, error: type[Exception], **options: str) -> None:
        """Run the query until it fails with this error. Other failures may come before."""
        while True:
            driver, before = self._start(query, **options), query.rows_done
            while driver.is_up:
                if query.rows_done > before:
                    self.world.violate("a batch that is not the same is refused", f"{driver.name} was not refused")
                await asyncio.sleep(0.1)
            if isinstance(driver.failure, error):
                self.note(f"{driver.name} was refused: {error.__name__}")
                return
            self._check_failure(driver)
            if driver.failure is None:
                self.world.violate(
                    "a batch that is not the same is refused", f"{driver.name} has ended without an error"
                )
            await self.pause(0.1, 0.5)

    async def _lose_executors(self) -> None:
        while True:
            await self.pause(1.0, 6.0)
            executor = self.chance.choice(self._spark.executors)
            if executor.is_up:
                executor.kill()
                await self.pause(0.1, 1.0)
                executor.start()

    # -- what happens to checkpoints ----------------------------------------------------------------------------------------

    async def _kills(self, query: Query) -> None:
        """Do nothing more."""

    async def _two_drivers(self, query: Query) -> None:
        """Do nothing more: `_disturb` starts them."""

    async def _copied(self, query: Query) -> None:
        if not (query.folder / FILE).exists():
            return
        copied = query.copy("copy", query.folder.with_name("copied"))
        copied.total = None
        self.note(f"copies the checkpoint, which has committed {copied.first_row} rows")
        await self._refused(copied, CheckpointElsewhere)
        copied.options["acceptCheckpoint"] = "copied"
        self._spark.queries.append(copied)
        await self._run_until_done(copied)
        del copied.options["acceptCheckpoint"]
        await self._run_until_done(copied)

    async def _moved(self, query: Query) -> None:
        if not (query.folder / FILE).exists():
            return
        folder = query.folder.with_name("moved")
        query.folder.rename(folder)
        query.folder = folder
        query.options["checkpointLocation"] = str(folder)
        self.note("moves the checkpoint")
        await self._refused(query, CheckpointElsewhere)
        await self._run_until_done(query, acceptCheckpoint="moved")

    async def _rewound_by_hand(self, query: Query) -> None:
        """Remove the last batches from the checkpoint, and let the query plan others in their place."""
        await self._run_until_done(query)
        numbers = query.numbers("offsets")
        written, stays = query.end_of(numbers[-1]), self.chance.randint(0, len(numbers) - 2)
        self.note(f"rewinds the checkpoint to batch {stays} of {numbers[-1]} by hand")
        kept = {name: {number: (query.folder / name / str(number)).read_text() for number in numbers[stays + 1 :]}
                for name in ("offsets", "commits")}  # fmt: skip
        for name, files in kept.items():
            for number in files:
                (query.folder / name / str(number)).unlink()
        await self._refused(query, NotTheSameBatch)
        batch, rows = stays + 1, query.rows_of(stays + 1)
        what = self.chance.choice(["restores", "write", "skip"])
        self.note(f"then {what}: batch {batch} has rows {rows.start} to {rows.stop}, {written} were written")
        if what == "restores":
            for name, files in kept.items():
                for number, text in files.items():
                    (query.folder / name / str(number)).write_text(text)
            return
        if what == "skip":
            query.times.update(dict.fromkeys(range(written, rows.stop), -1))
            query.times.update(dict.fromkeys(range(rows.stop, written), 1))
        else:
            query.times.update(dict.fromkeys(range(rows.start, written), 1))
        await self._run_until_done(query, acceptReplannedBatch=f"{batch}:{what}")

    async def _rewound_by_command(self, query: Query) -> None:
        await self._run_until_done(query)
        numbers = query.numbers("offsets")
        written, stays = query.end_of(numbers[-1]), self.chance.randint(0, len(numbers) - 2)
        self.note(f"rewinds the checkpoint to batch {stays} of {numbers[-1]}")
        files = CheckpointFiles(str(query.folder.resolve()))
        checkpoint_replan.apply(files, checkpoint_replan.plan_rewind(files, to_batch=stays))
        query.times.update(dict.fromkeys(range(query.end_of(stays), written), 1))
        await self._run_batches(query, 1)
        await self._run_until_done(query)


class RowReader(Client):
    """Reads all committed records of the topic, once no transaction is open."""

    def __init__(self, cluster: "SparkWorld") -> None:
        super().__init__(cluster, "row reader")
        self.found: Counter[str] | None = None
        self.waits_for = ""

    async def main(self) -> None:
        while self.found is None:
            try:
                async with self.connect() as client:
                    found: Counter[str] = Counter()
                    for number in range(PARTITIONS):
                        found += await self._read(client, TopicPartition(TOPIC, number))
                    self.found = found
            except ClientError as error:
                self.note(f"starts again: {error!r}")
                await asyncio.sleep(0.5)

    async def _read(self, client: AsyncClient, tp: TopicPartition) -> Counter[str]:
        start = await self._offset(client, tp, EARLIEST, READ_COMMITTED)
        while (end := await self._offset(client, tp, LATEST, READ_COMMITTED)) != (
            high := await self._offset(client, tp, LATEST, READ_UNCOMMITTED)
        ):
            self.waits_for = f"{tp} has an open transaction: it is stable to {end} of {high}"
            await asyncio.sleep(0.5)
        rows: Counter[str] = Counter()
        async with Consumer(
            client, ConsumerConfig(isolation_level=READ_COMMITTED, auto_offset_reset="none")
        ) as consumer:
            consumer.assign({tp: start})
            while consumer.position(tp) < end:
                for fetched in await consumer.poll(1_000):
                    records = fetched.records(isolation_level=READ_COMMITTED)
                    rows.update(bytes(record.value or b"").decode() for record in records)
        return rows

    async def _offset(self, client: AsyncClient, tp: TopicPartition, time: int, isolation: int) -> int:
        listed = (await list_offsets(client, {tp: time}, isolation_level=isolation))[tp]
        if listed.error is not ErrorCode.NONE:
            raise BrokerRefused(listed.error)
        return listed.offset


class SparkWorld(SimCluster):
    def __init__(self, seed: int, *, without: frozenset[str] = frozenset()) -> None:
        self.kind = kind_of(seed)
        scenario = Scenario.of(seed, has_rare=False)
        scenario = replace(
            scenario,
            seconds=40.0,
            faults=_FAULTS,
            fault_every_s=(1.0, 5.0),
            producers=0, transactional=0, readers=0, group_members=0, guests=0, has_acks_one=False, has_keeper=False,
            has_admin=False, has_table=False, modern_members=0, has_mixed_group=False, transformers=0, has_pledger=False,
            has_coming=False, has_reckless=False,
        )  # fmt: skip
        super().__init__(seed, scenario, without=without)
        simulate_sink(self)
        self.executors = [Executor(self, f"x{number}") for number in range(3)]
        folder = Path(tempfile.mkdtemp(prefix="simulated-query-")) / "first"
        options = {
            "checkpointLocation": str(folder),
            "kafka.bootstrap.servers": ",".join(f"{host}:{port}" for host, port in self.bootstrap),
            "topic": TOPIC,
            "kafka.transaction.timeout.ms": "600000",
            "kafka.request.timeout.ms": "3000",
            "kafka.retry.backoff.ms": "50",
        }
        query = Query("first", folder, options)
        query.begin("0123-first-query")
        self.queries = [query]

    def _start_clients(self) -> None:
        self.clients = [Operator(self)]
        for client in self.clients:
            client.start()

    def audit(self) -> None:
        super().audit()
        world = self.world
        reader = RowReader(self)
        reader.start()
        deadline_s = world.now_s + SETTLE_S
        while reader.found is None and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        if reader.found is None:
            world.violate("no transaction of a finished query is open", reader.waits_for or "rows cannot be read")
        wanted: Counter[str] = Counter()
        for query in self.queries:
            wanted += query.wanted()
            self.oracle.acknowledged += query.rows_done
        found = reader.found or Counter()
        if found != wanted:
            world.violate(_EXACTLY_ONCE, f"missing: {_some(wanted - found)}; too many: {_some(found - wanted)}")


def _some(rows: Mapping[str, int]) -> str:
    return json.dumps(dict(sorted(rows.items())[:12]))
