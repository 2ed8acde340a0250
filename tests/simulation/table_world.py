"""Tables of topics, filled by runners that die or are paused at any step, while people do things to tables and topics.

The code that ships plans, stages and publishes: real Delta and Iceberg tables in a folder. The topic and the tasks of Spark are
stand-ins. A runner may die, or stand still while another one works, between any two steps. After each commit, and in the end, a
table must have each record of its topic below its positions once, and the table of errors each record that does not fit.
"""

import json
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.base.ids import TopicPartition
from barnabas.spark.pipelines.sinks.delta_table import DeltaTarget
from barnabas.spark.pipelines.sinks.exactly_once import Overtaken
from barnabas.spark.pipelines.sinks.iceberg_table import IcebergTarget
from barnabas.spark.tables import filling, rows
from barnabas.spark.tables.definition import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, Definition, checked
from barnabas.spark.tables.filling import Staged, TableStopped
from barnabas.spark.tables.places import IcebergPlace, place_of
from barnabas.spark.tables.targets import target_of

#: What people do, by seed.
KINDS = ("kills", "two runners", "set back", "copied", "cloned", "recreated", "trimmed", "rebuilt")
_COLUMNS = rows.columns_beside(StructType().add("value", "binary"))
_NAMES = (*_COLUMNS.names, rows.REASON, rows.RAW, rows.PUT_ASIDE)
_ONCE = "a table has each record of its topic once"
_STOPS = "a table stops for a reason only, and then always"
_IN_THE_END = "a table has all records in the end"
#: Steps that a fill may fail at in a row before it counts as stuck.
_FAILURES_MAX = 30


def kind_of(seed: int) -> str:
    return KINDS[seed % len(KINDS)]


class Broken(Exception):
    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(detail)
        self.promise = promise


class Died(BaseException):
    """The process of a runner is killed."""


class Record(NamedTuple):
    value: bytes
    fits: bool


class Topic:
    """Stands for the cluster in a plan. A record may be missing at an offset: aborted, or compacted."""

    def __init__(self, life: int, chance: Random) -> None:
        self.id = bytes([life]) * 16
        self.life = life
        self._chance = chance
        self.logs: dict[TopicPartition, list[Record | None]] = {
            TopicPartition("orders", number): [] for number in range(chance.choice([1, 2, 3]))
        }
        self.starts = dict.fromkeys(self.logs, 0)

    def write(self) -> None:
        for partition, log in self.logs.items():
            for _ in range(self._chance.randint(0, 4)):
                value = f"{self.life}:{partition.partition}:{len(log)}".encode()
                is_there = self._chance.random() < 0.9
                log.append(Record(value, self._chance.random() < 0.8) if is_there else None)

    def partitions(self, *, required: bool) -> list[TopicPartition]:
        return list(self.logs)

    def topic_ids(self) -> dict[str, bytes]:
        return {"orders": self.id}

    def earliest(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.starts[each] for each in partitions}

    def latest(self, partitions: list[TopicPartition], known: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {each: len(self.logs[each]) for each in partitions}


class TableWorld:
    def __init__(self, seed: int) -> None:
        self.kind = kind_of(seed)
        self.chance = Random(seed)
        self.story: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="tables-"))
        self._lives = 1
        self.topic = Topic(1, self.chance)
        given = Definition(
            name="orders",
            topic="orders",
            topic_id=self.topic.id.hex(),
            url=str(self._folder / "orders"),
            schema="raw",
            format="iceberg" if seed // len(KINDS) % 2 else "delta",
            on_error="keep",
        )
        self.table = checked(given)
        #: The first offsets that a table had to have: records before them were deleted when it began, or was rebuilt.
        self.begins: dict[str, dict[TopicPartition, int]] = {}
        #: How deep runners stand still within each other's steps.
        self._depth = 0
        self._dies = 0.0
        self._meanwhile: Callable[[], None] | None = None
        #: Records that tables were found to have.
        self.records = 0
        vars(filling)["TaskContext"] = SimpleNamespace(
            get=lambda: SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 0)
        )
        self._let_commits_be_steps()

    # -- the run --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._dies = 0.06
            for _ in range(3):
                self._work()
            getattr(self, "_" + self.kind.replace(" ", "_"))()
            for _ in range(2):
                self._work()
            self._dies, self._meanwhile = 0.0, None
            self.topic.write()
            self.finish(self.table)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _work(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.topic.write()
            self.fill(self.table)

    def note(self, line: str) -> None:
        self.story.append("  " * self._depth + line)

    # -- runners --------------------------------------------------------------------------------------------------------

    def fill(self, table: Definition, *, may_stop: bool = False) -> bool:
        """Let a runner write one batch. Return whether it wrote one, or may write one if it is started again."""
        try:
            return self._fill(table)
        except Died:
            self.note("the runner dies")
            return True
        except TableStopped as stopped:
            self.note(f"stops: {str(stopped)[:100]}")
            if not may_stop and self._depth == 0:
                raise Broken(_STOPS, str(stopped)) from stopped
            if may_stop:
                raise
            return False
        except Overtaken:
            self.note("another runner was faster")
            return True
        except Exception as error:
            if isinstance(error, Broken):
                raise
            self.note(f"fails: {error!r}"[:200])
            return True

    def _fill(self, table: Definition) -> bool:
        filling._rebuild(table, self.topic)  # type: ignore[arg-type]
        self.step("looks where the table is")
        place = place_of(table)
        planned = filling.plan(table, place, self.topic, records_max=self.chance.randint(1, 9))  # type: ignore[arg-type]
        if not planned.ends:
            return False
        if table.url not in self.begins:
            self.begins[table.url] = dict(self.topic.starts)
        self.step(f"plans {_offsets(planned.starts)} to {_offsets(planned.ends)}")
        target = target_of(table, _COLUMNS)
        batch = filling._Batch(table, planned, target)
        self.step("reads")
        filling._require_same_topic(table, {self.topic.id})
        task = filling.StageTask(table.name, _NAMES, batch._main, batch._errors, batch._known_bad)
        [found] = [json.loads(each.column(0)[0].as_py()) for each in task(self._records(planned))]
        staged = Staged(found["main"], found["bad"], found["rows"], found["errors"], found["first_error"])
        self.step(f"has staged {staged.rows} rows and {staged.errors} errors")
        batch.publish(staged)
        self.step("is done")
        return True

    def _records(self, planned: filling.Plan) -> Iterator[pa.RecordBatch]:
        found: list[dict[str, Any]] = []
        for partition, end in planned.ends.items():
            for offset in range(planned.starts[partition], end):
                record = self.topic.logs[partition][offset]
                if record is not None:
                    beside = {KEY: b"k", HEADERS: [], PARTITION: partition.partition, OFFSET: offset, TIMESTAMP: 0}
                    bad = None if record.fits else "does not fit"
                    raw = None if record.fits else record.value
                    found.append({"value": record.value, **beside, rows.REASON: bad, rows.RAW: raw})
        schema = to_arrow_schema(_COLUMNS, timezone="UTC")
        for name, kind in ((rows.REASON, pa.string()), (rows.RAW, pa.binary()), (rows.PUT_ASIDE, pa.string())):
            schema = schema.append(pa.field(name, kind))
        yield pa.RecordBatch.from_pylist(found, schema=schema)

    def step(self, what: str) -> None:
        """Between two steps of a runner: it may die, or stand still while others work."""
        self.note(what)
        if self.chance.random() < self._dies:
            raise Died
        if self._meanwhile is not None and self._depth < 2 and self.chance.random() < 0.15:
            self._depth += 1
            self.note("stands still")
            try:
                self._meanwhile()
            finally:
                self._depth -= 1

    def _let_commits_be_steps(self) -> None:
        def stepped(commit: Callable[..., Any]) -> Callable[..., Any]:
            def around(target: Any, *given: Any) -> Any:
                self.step(f"commits to {target.what.rpartition('/')[2]}")
                answer = commit(target, *given)
                self.step("has committed")
                if self.chance.random() < self._dies / 2:
                    raise OSError("the answer was lost")
                return answer

            return around

        DeltaTarget._publish = stepped(DeltaTarget._publish)  # type: ignore[method-assign]
        IcebergTarget._commit = stepped(IcebergTarget._commit)  # type: ignore[method-assign]

    # -- what people do ---------------------------------------------------------------------------------------------------

    def _kills(self) -> None:
        self._dies = 0.15
        self._work()

    def _two_runners(self) -> None:
        self._meanwhile = self._fill_more
        for _ in range(3):
            self._work()

    def _fill_more(self) -> None:
        self.topic.write()
        self.fill(self.table)

    def _set_back(self) -> None:
        """Set the table back to an older version, while a runner stands still or not."""
        self.finish(self.table)
        there = place_of(self.table)
        if isinstance(there, IcebergPlace):
            assert there.table is not None
            snapshots = [each.snapshot_id for each in there.table.snapshots()]
            steps = self.chance.randint(1, max(1, min(3, len(snapshots) - 1)))
            if len(snapshots) <= steps:
                return
            there.table.manage_snapshots().rollback_to_snapshot(snapshots[-1 - steps]).commit()
        else:
            version = there.version()
            steps = self.chance.randint(1, max(1, min(3, version - 1)))
            if version <= steps:
                return
            DeltaTable(self.table.url).restore(version - steps)
        self.note(f"the table was set back by {steps} commits")
        self.topic.write()
        self._must_stop(self.table, "was set back")
        self._rebuild()

    def _copied(self) -> None:
        """Fill a copy with its memory beside the table. Only Delta tables are found at their folder."""
        if self.table.format != "delta" or place_of(self.table).columns() is None:
            return
        copy = replace(self.table, name="copy", url=f"{self.table.url}-copied")
        for each in (self.table, self.table.errors()):
            if Path(each.url).exists():
                shutil.copytree(each.url, each.url.replace(self.table.url, copy.url))
        self.begins[copy.url] = self.begins[self.table.url]
        self.note("the table was copied")
        for _ in range(3):
            self.topic.write()
            self.fill(copy)
            self.fill(self.table)
        self.finish(copy)

    def _cloned(self) -> None:
        """Copy rows without the table's memory: filled from the beginning, it would have them twice."""
        self.finish(self.table)
        there = place_of(self.table)
        clone = checked(replace(self.table, name="clone", url=f"{self.table.url}-cloned", table=self._beside("clone")))
        if isinstance(there, IcebergPlace):
            assert there.table is not None
            found = there.table.scan().to_arrow()
            if not found.num_rows:
                return
            target_of(clone, _COLUMNS).load().append(found)  # type: ignore[union-attr]
        else:
            assert there.table is not None  # type: ignore[attr-defined]
            found = there.table.to_pyarrow_table()  # type: ignore[attr-defined]
            if not found.num_rows:
                return
            write_deltalake(clone.url, found)
        self.note("the table was cloned without its memory")
        self._must_stop(clone, "does not remember")

    def _beside(self, name: str) -> str:
        return f"{self.table.table}_{name}" if self.table.table else ""

    def _recreated(self) -> None:
        self._lives += 1
        self.topic = Topic(self._lives, self.chance)
        self.topic.write()
        self.note("the topic was deleted and created again")
        self._must_stop(self.table, "was deleted and made again")
        # A definition that is added again names the new topic, and the same table.
        again = replace(self.table, topic_id=self.topic.id.hex())
        if sum(self._rows(place_of(self.table)).values()):
            self._must_stop(again, "the rows of another topic")
        self.table = again
        self._rebuild()

    def _trimmed(self) -> None:
        """Let the topic lose records that the table has, or has not."""
        self.topic.write()
        known = place_of(self.table).known
        lost = False
        for partition, log in self.topic.logs.items():
            start = self.chance.randint(self.topic.starts[partition], len(log))
            mark = known(self.table.mark(partition.partition))
            has_begun = mark is not None and mark >= 0
            lost = lost or (has_begun and start > (mark or 0))
            self.topic.starts[partition] = start
            if not has_begun and self.table.url in self.begins:
                self.begins[self.table.url][partition] = start
        self.note(f"the topic begins at {_offsets(self.topic.starts)}")
        if lost:
            self._must_stop(self.table, "were deleted from the topic before")
            self._rebuild()

    def _rebuilt(self) -> None:
        """Rebuild the table while runners with the former definition are at work."""
        former = self.table

        def fill_one() -> None:
            self.fill(self.chance.choice([former, self.table]))

        self._meanwhile = fill_one
        self._rebuild()
        for _ in range(2):
            self._work()

    def _rebuild(self) -> None:
        self.table = replace(self.table, generation=self.table.generation + 1)
        self.begins[self.table.url] = dict(self.topic.starts)
        self.note("the table is rebuilt")

    def _must_stop(self, table: Definition, why: str) -> None:
        dies, self._dies = self._dies, 0.0
        try:
            self.fill(table, may_stop=True)
        except TableStopped as stopped:
            if why in str(stopped):
                return
            raise Broken(_STOPS, f"it did not say {why!r}: {stopped}") from None
        finally:
            self._dies = dies
        raise Broken(_STOPS, f"the table goes on, though it {why}")

    # -- what must hold ---------------------------------------------------------------------------------------------------

    def finish(self, table: Definition) -> None:
        """Fill the table until it has all records."""
        dies, self._dies, meanwhile, self._meanwhile = self._dies, 0.0, self._meanwhile, None
        for _ in range(_FAILURES_MAX + sum(map(len, self.topic.logs.values()))):
            if not self.fill(table):
                break
        else:
            raise Broken(_IN_THE_END, f"it is not filled: {self.story[-3:]}")
        self._dies, self._meanwhile = dies, meanwhile
        begins = self.begins.get(table.url, {})
        wanted: dict[bool, Counter[bytes]] = {True: Counter(), False: Counter()}
        for partition, log in self.topic.logs.items():
            for record in log[begins.get(partition, 0) :]:
                if record is not None:
                    wanted[record.fits][record.value] += 1
        for what, fits in ((table, True), (table.errors(), False)):
            found = self._rows(place_of(what))
            self.records += found.total()
            if found != wanted[fits]:
                missing, more = wanted[fits] - found, found - wanted[fits]
                raise Broken(_ONCE, f"{what.name} lacks {sorted(missing)[:5]}, and has too many {sorted(more)[:5]}")

    def _rows(self, place: Any) -> Counter[bytes]:
        if place.table is None:
            return Counter()
        is_iceberg = isinstance(place, IcebergPlace)
        found = place.table.scan().to_arrow() if is_iceberg else place.table.to_pyarrow_table()
        if "value" not in found.column_names:
            return Counter()
        return Counter(found.column("value").to_pylist())


def _offsets(known: dict[TopicPartition, int]) -> str:
    return json.dumps({each.partition: at for each, at in known.items()})


def report(seed: int) -> dict[str, Any]:
    world = TableWorld(seed)
    found: dict[str, Any] = {"seed": seed, "broken": None}
    try:
        world.run()
    except Broken as broken:
        found |= {"broken": broken.promise, "detail": str(broken), "trace": traceback.format_exc()}
    except Exception as failure:
        found |= {"broken": type(failure).__name__, "detail": str(failure), "trace": traceback.format_exc()}
    return found | {"story": "\n".join(world.story), "acknowledged": world.records}
