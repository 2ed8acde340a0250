"""Definitions of tables, and the last reports of runs, in the compacted topic `__barnabas_tables` of the cluster itself.

So any run finds them, and they are as safe as the topics. A record's key is `["table", NAME]` or `["report", NAME]`. Reports
are for people: they say how the last batch went. The table itself has its position. Owner: one thread.
"""

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from barnabas.base.errors import BarnabasError, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import TABLES_TOPIC
from barnabas.base.words import EARLIEST, LATEST
from barnabas.client.blocking import BlockingClient
from barnabas.client.blocking_producer import BlockingProducer, BlockingProducerConfig, ReadyBatch
from barnabas.client.config import ClientConfig
from barnabas.client.errors import BrokerRefused
from barnabas.spark.own_topic import find_topic, make_topic
from barnabas.spark.tables.definition import BadDefinition, Definition

_WHERE: Final = TopicPartition(TABLES_TOPIC, 0)
_TABLE, _REPORT = "table", "report"


class NoSuchTable(BarnabasError):
    """There is no table of this name. The message names the tables that exist."""


@dataclass(frozen=True)
class Report:
    """The result of the last batch of a table, and the sums of all batches of the run that wrote the report."""

    #: filling, paused or failed
    state: str
    at_ms: int
    error: str | None = None
    batch_rows: int = 0
    batch_errors: int = 0
    batch_ms: int = 0

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        document: dict[str, Any] = json.loads(data)
        return cls(**document)


@dataclass
class Known:
    """The contents of the topic."""

    tables: dict[str, Definition] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    #: Definitions that this program cannot read, with the reason.
    unreadable: dict[str, str] = field(default_factory=dict)

    def table(self, name: str) -> Definition:
        if name in self.unreadable:
            raise BadDefinition(f"table {name}: {self.unreadable[name]}")
        if name not in self.tables:
            names = ", ".join(sorted(self.tables)) or "none"
            raise NoSuchTable(f"there is no table {name!r}; there are: {names}")
        return self.tables[name]

    def replay(self, key: bytes, value: bytes | None) -> None:
        kind, name = json.loads(key)
        if kind == _REPORT:
            if value is None:
                self.reports.pop(name, None)
            else:
                self.reports[name] = Report.from_json(value)
            return
        self.tables.pop(name, None)
        self.unreadable.pop(name, None)
        if value is not None:
            try:
                self.tables[name] = Definition.from_json(value)
            except BadDefinition as error:
                self.unreadable[name] = str(error)


class Catalogue:
    def __init__(self, config: ClientConfig) -> None:
        self._client = BlockingClient(config)
        self._producer: BlockingProducer | None = None
        self._position = -1
        self.known = Known()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.discard()
            self._producer = None
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- reading ----------------------------------------------------------------------------------------------------------

    def read(self) -> Known:
        """Read everything that has been written until now."""
        if find_topic(self._client, TABLES_TOPIC) is None:
            return self.known
        if self._position < 0:
            self._position = self._client.list_offsets({_WHERE: EARLIEST})[_WHERE]
        end = self._client.list_offsets({_WHERE: LATEST})[_WHERE]
        while self._position < end:
            self._take(max_wait_ms=500)
        return self.known

    def wait(self, seconds: float) -> None:
        """Wait for at most so many seconds until something is written, and read it."""
        if self._position < 0:
            time.sleep(seconds)
            self.read()
        else:
            self._client.retrying("definitions", lambda: self._take(max_wait_ms=int(seconds * 1000)))

    def _take(self, *, max_wait_ms: int) -> None:
        fetched = self._client.fetch(_WHERE, self._position, max_wait_ms=max_wait_ms)
        before = self._position
        for record in fetched.records():
            if record.key is not None:
                self.known.replay(record.key, record.value)
        self._position = fetched.next_position
        if self._position == before and fetched.high_watermark > before:
            self._position = fetched.high_watermark  # compaction has removed the last records

    # -- writing ----------------------------------------------------------------------------------------------------------

    def define(self, table: Definition) -> None:
        self._write([_TABLE, table.name], table.to_json())

    def remove(self, name: str) -> None:
        self._write([_TABLE, name], None)
        self._write([_REPORT, name], None)

    def report(self, name: str, report: Report) -> None:
        self._write([_REPORT, name], json.dumps(asdict(report)).encode())

    def _write(self, key: list[str], value: bytes | None) -> None:
        if self._producer is None:
            make_topic(self._client, TABLES_TOPIC)
            self._producer = BlockingProducer(self._client, BlockingProducerConfig(acks=-1))
        record = (json.dumps(key).encode(), value)
        self._producer.send(ReadyBatch.of(_WHERE, [record], timestamp_ms=int(time.time() * 1000)))
        self._producer.flush()

    # -- topics of tables ---------------------------------------------------------------------------------------------------

    def topic_id(self, topic: str) -> str:
        """Return the topic's id in hexadecimal digits. Raises `BrokerRefused` if the topic does not exist."""
        info = find_topic(self._client, topic)
        if info is None:
            raise BrokerRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
        return info.topic_id.hex() if any(info.topic_id) else ""
