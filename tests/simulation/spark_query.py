"""A streaming query as Spark runs it, without a JVM: a driver that plans, executors that run tasks, a checkpoint of files.

The sink is the code that ships (`barnabas.spark.sink` and below), with real brokers. Processes may die between any two of its
steps. The checkpoint is a folder of the machine: its files are written at once, as Spark's are.
"""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from barnabas.base.errors import BarnabasError
from barnabas.client import blocking, blocking_producer
from barnabas.client.config import ClientConfig
from barnabas.client.errors import ClientError
from barnabas.spark import checkpoint, sink, sink_connection, transactions
from barnabas.spark.batch_identity import NotTheSameBatch
from barnabas.spark.checkpoint import CheckpointElsewhere
from barnabas.spark.sink import StreamWriter, Written
from barnabas.spark.sink_connection import SinkConnection
from barnabas.testing.simulation.loop import ProcessDied
from barnabas.testing.simulation.process import Process
from tests.simulation.blocking_code import BlockingCode, Torn, current, simulate
from tests.simulation.load import Client

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

SCHEMA = StructType().add("value", "string")
TOPIC = "lake"
PARTITIONS = 2
#: Modules of the sink that block, or read a clock.
_BLOCKING = [blocking, blocking_producer, sink_connection, sink, transactions, checkpoint]
#: Spark's `spark.task.maxFailures`.
_TASK_FAILURES = 4


class QueryFailed(Exception):
    """The query ends with an error, and is started again."""


@dataclass
class Query:
    """One checkpoint, and what its rows should come to."""

    #: In every row, so that the rows of a copied checkpoint are not those of the original.
    label: str
    folder: Path
    options: dict[str, str]
    #: Number of rows of the source; None: there are always more.
    total: int | None = None
    #: Row -> how often it has to be seen, where this is not once.
    times: Counter[int] = field(default_factory=Counter)
    starts: int = 0
    #: The first row that this query has to write: a copy begins where the original has committed.
    first_row: int = 0
    rows_done: int = 0

    def begin(self, query_id: str) -> None:
        for name in ("offsets", "commits"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "metadata").write_text(json.dumps({"id": query_id}))

    def numbers(self, folder: str) -> list[int]:
        return sorted(int(path.name) for path in (self.folder / folder).iterdir() if path.name.isdigit())

    def end_of(self, batch: int) -> int:
        """Return the first row after a planned batch."""
        if batch < 0:
            return 0
        sources = (self.folder / "offsets" / str(batch)).read_text().splitlines()[2]
        return int(json.loads(sources)["in"]["0"])

    def rows_of(self, batch: int) -> range:
        return range(self.end_of(batch - 1), self.end_of(batch))

    def plan(self, batch: int, end: int, now_ms: int) -> None:
        """Write `offsets/N`. Raises `QueryFailed` if another driver has written it, as Spark does."""
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": now_ms, "conf": {}})
        self._write(f"offsets/{batch}", f"v1\n{metadata}\n{json.dumps({'in': {'0': end}})}")

    def commit(self, batch: int) -> None:
        self._write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def _write(self, name: str, text: str) -> None:
        try:
            with (self.folder / name).open("x") as file:
                file.write(text)
        except FileExistsError:
            raise QueryFailed(f"another driver has written {name}") from None

    @property
    def is_complete(self) -> bool:
        """Whether all planned batches are committed."""
        return self.numbers("offsets") == self.numbers("commits")

    def copy(self, label: str, folder: Path) -> "Query":
        shutil.copytree(self.folder, folder)
        options = {**self.options, "checkpointLocation": str(folder)}
        copied = Query(label, folder, options)
        copied.first_row = copied.end_of(max(copied.numbers("commits"), default=-1))
        return copied

    def wanted(self) -> Counter[str]:
        """Return every row with the number of times that a reader has to find it."""
        assert self.total is not None
        return Counter(
            {
                f"{self.label}:{row}": count
                for row in range(self.first_row, self.total)
                if (count := 1 + self.times[row]) > 0
            }
        )


@dataclass
class TaskContext:
    """Spark's TaskContext, as far as the sink looks at it; and the connections of the worker."""

    query_id: str = ""
    run: str = ""
    batch: int = 0
    partition: int = 0
    attempt: int = 0

    def getLocalProperty(self, name: str) -> str | None:
        return {sink.QUERY_ID: self.query_id, sink.BATCH_ID: str(self.batch), sink.RUN_ID: self.run}.get(name)

    def partitionId(self) -> int:
        return self.partition

    def attemptNumber(self) -> int:
        return self.attempt


class Worker(Client):
    """A process of Spark that runs Python: one piece of work at a time, with connections that live as long as it does."""

    def __init__(self, cluster: "SimCluster", name: str) -> None:
        super().__init__(cluster, name)
        self.connections: dict[str, SinkConnection] = {}
        self.is_working = False
        #: Number of pieces of work that have not ended.
        self.pending = 0

    def start(self) -> None:
        self.connections, self.is_working, self.pending = {}, False, 0
        super().start()

    async def work(self, work: Callable[[], Any], *, given: object = None, at_step: Callable[[int], None]) -> Any:
        self.pending += 1
        while self.is_working:
            await asyncio.sleep(0.05)
        self.is_working = True
        try:
            return await BlockingCode(self, work, given=given, at_step=at_step).run()
        except Torn:
            self.connections = {}
            raise
        finally:
            self.is_working = False
            self.pending -= 1


def connection_to(config: ClientConfig) -> SinkConnection:
    worker = current().process
    assert isinstance(worker, Worker)
    found = worker.connections.get(repr(config))
    if found is None:
        found = worker.connections[repr(config)] = SinkConnection(config)
    return found


def simulate_sink(cluster: "SimCluster") -> None:
    """Let the sink's modules run in this world."""
    simulate(_BLOCKING, cluster.world)
    vars(sink)["connection_to"] = connection_to
    vars(sink)["_task"] = lambda: current().given


class Executor(Worker):
    async def main(self) -> None:
        await asyncio.get_running_loop().create_future()

    def begin(self, work: Callable[[], Any], context: TaskContext, done: Callable[[Any], None]) -> None:
        """Run a task, and call `done` with its message or its error; never, if the process dies."""

        async def task() -> None:
            try:
                message = await self.work(work, given=context, at_step=lambda number: None)
            except (ClientError, BarnabasError) as error:
                self.note(f"{context} fails: {error!r}")
                message = error
            done(message)

        assert self.loop is not None
        self.loop.create_task(task(), name=f"{context}")


class Driver(Worker):
    """One start of a query. Ends when the query fails, and when all is done."""

    def __init__(self, cluster: "SimCluster", query: Query, executors: list[Executor], **options: str) -> None:
        query.starts += 1
        super().__init__(cluster, f"{query.label}-{query.starts}")
        self.query = query
        self.executors = executors
        self._options = query.options | options
        self._run = f"{query.label[:1]}{query.starts:07}"
        #: Ends at the end of a batch.
        self.is_asked_to_stop = False
        #: Whether some tasks run twice.
        self.repeats_tasks = True
        #: The error with which the query has failed.
        self.failure: Exception | None = None
        #: Number of blocking steps after which it dies in a commit; 0: it does not.
        self.dies_in = 0
        #: The same for the Python process that commits, while Spark's driver lives on and aborts.
        self.is_torn_in = 0
        #: Number of blocking steps after which it is paused in a commit; 0: it is not.
        self.pauses_in = 0

    async def main(self) -> None:
        try:
            while (batch := self._next()) is not None:
                await self._do(batch)
                if self.is_asked_to_stop:
                    return
                await self.pause(0.0, 0.3)
        except (QueryFailed, ClientError, BarnabasError) as error:
            self.failure = error
            known = isinstance(error, NotTheSameBatch | CheckpointElsewhere)
            self.note(f"fails: {type(error).__name__ if known else repr(error)}")

    def _next(self) -> int | None:
        """Plan the next batch, or go on with one that is planned; None if there is nothing to do."""
        planned, committed = self.query.numbers("offsets"), self.query.numbers("commits")
        last = max(planned, default=-1)
        if last > max(committed, default=-1):
            return last
        begin = self.query.end_of(last)
        total = self.query.total
        if total is not None and begin >= total:
            return None
        end = begin + self.chance.randint(1, 9)
        self.query.plan(last + 1, end if total is None else min(end, total), self.clock.now_ms())
        return last + 1

    async def _do(self, batch: int) -> None:
        rows = self.query.rows_of(batch)
        self.note(f"batch {batch}: rows {rows.start} to {rows.stop}")
        writer: StreamWriter = await self.work(
            lambda: sink.stream_writer(self._options, SCHEMA, False), at_step=self._step
        )
        count = self.chance.choice([1, 1, 2, 3])
        parts = [rows[number::count] for number in range(count)]
        messages = await asyncio.gather(
            *(self._task(writer, batch, number, list(part)) for number, part in enumerate(parts))
        )
        self.note(f"batch {batch}: commits")
        try:
            await self.work(lambda: writer.commit(list(messages), batch), at_step=self._step)
        except Torn:
            self.note("the process that commits is gone")
            await self.work(lambda: writer.abort(list(messages), batch), at_step=lambda number: None)
            raise QueryFailed("the process that commits is gone") from None
        except (ClientError, BarnabasError):
            await self.work(lambda: writer.abort(list(messages), batch), at_step=lambda number: None)
            raise
        self.query.commit(batch)
        self.query.rows_done += len(rows)
        self.note(f"batch {batch}: is done")

    def pause_process(self) -> None:
        Process.pause(self)

    def _step(self, number: int) -> None:
        if self.dies_in and number >= self.dies_in:
            self.dies_in = 0
            self.kill()
            raise ProcessDied
        if self.pauses_in and number >= self.pauses_in:
            self.pauses_in = 0
            self.pause_process()
        if self.is_torn_in and number >= self.is_torn_in:
            self.is_torn_in = 0
            raise Torn

    async def _task(self, writer: StreamWriter, batch: int, partition: int, rows: list[int]) -> Written:
        values = [f"{self.query.label}:{row}" for row in rows]

        def write() -> Written:
            data = [pa.record_batch([pa.array(values, pa.string())], names=["value"])] if values else []
            return writer.write(iter(data))

        query_id = str(json.loads((self.query.folder / "metadata").read_text())["id"])
        failures = attempt = 0
        while failures < _TASK_FAILURES:
            attempts = [self._attempt(write, TaskContext(query_id, self._run, batch, partition, attempt))]
            if self.repeats_tasks and self.chance.random() < 0.1:
                # Speculation, or a stage that is repeated: then Spark numbers attempts from 0 again.
                again = attempt if self.chance.random() < 0.3 else attempt + 1
                attempts.append(self._attempt(write, TaskContext(query_id, self._run, batch, partition, again)))
            running = [asyncio.ensure_future(each) for each in attempts]
            while running:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for ended in [each for each in running if each.done()]:
                    running.remove(ended)
                    if isinstance(message := ended.result(), Written):
                        return message
            failures, attempt = failures + 1, attempt + 2
            await self.pause(0.0, 0.2)
        raise QueryFailed(f"task {partition} of batch {batch} has failed {failures} times")

    async def _attempt(self, write: Callable[[], Written], context: TaskContext) -> Written | BarnabasError:
        while not (alive := [each for each in self.executors if each.is_up]):
            await asyncio.sleep(0.1)
        executor = self.chance.choice(alive)
        life, loop = executor.lives, asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()

        def arrive(message: Any) -> None:
            if not outcome.done():
                outcome.set_result(message)

        executor.begin(write, context, lambda message: loop.call_soon(partial(arrive, message)) and None)
        while not outcome.done():
            if executor.lives != life or not executor.is_up:
                return BarnabasError(f"{executor.name} is lost")
            await asyncio.wait([outcome], timeout=0.2)
        result: Written | BarnabasError = outcome.result()
        return result
