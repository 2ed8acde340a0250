"""What streaming queries are doing, as records of a compacted topic: the console's page of pipelines reads them.

    spark.streams.addListener(PipelineReporter("127.0.0.1:9092", pipeline="shop", dead_letters=["orders-dead"]))

One record a query, replaced by the next: state, batch, rows a second, watermark, size of the state, lag. Reports are for
people: one that cannot be written is logged and forgotten, and never holds a query up for longer than two seconds. They need
no more than the right to write to `__barnabas_pipelines`, and to create it once.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.blocking import BlockingClient
from barnabas.client.blocking_producer import BlockingProducer, BlockingProducerConfig, ReadyBatch
from barnabas.client.config import client_config
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.core.topics import PIPELINES_TOPIC
from barnabas.protocol.record_build import BatchBuilder
from barnabas.spark.pipelines.events import parse_progress

_log: Final = logging.getLogger("barnabas.spark")

_PATIENCE_MS: Final = 2_000
#: After a failure nothing is tried for so long.
_PAUSE_S: Final = 30.0
#: At most one report a second of each query; a query that rests says so now and then.
_EVERY_S: Final = 1.0
_REST_S: Final = 10.0


class PipelineReporter(StreamingQueryListener):
    """Owner: the thread of Spark that calls listeners."""

    def __init__(
        self,
        bootstrap: str,
        *,
        pipeline: str,
        dead_letters: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`settings`: of a client, for a cluster with users or TLS. `dead_letters`: topics that the console can replay."""
        super().__init__()
        self._pipeline = pipeline
        self._dead_letters = list(dead_letters)
        self._clock = clock
        self._writer = ReportWriter(bootstrap, settings)
        #: By query: the last report, and when it was sent.
        self._last: dict[str, dict[str, Any]] = {}
        self._sent_s: dict[str, float] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Only remembered: `start()` waits for listeners, and Spark's workers have ten seconds to come up at that time."""
        self._last[str(event.id)] = {"query": event.name or str(event.id)}

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        document = json.loads(event.progress.json)
        progress = parse_progress(document)
        topics = sorted({topic for source in document.get("sources") or [] for topic in _topics(source)})
        said = {"query": progress.flow, "state": "running", "topics": topics, "progress": asdict(progress)}
        self._report(str(event.progress.id), said)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        if self._clock() - self._sent_s.get(str(event.id), 0.0) >= _REST_S:
            self._report(str(event.id), {"state": "running"}, always=True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        error = event.exception
        said = {"state": "failed" if error else "ended", "error": error.splitlines()[0] if error else None}
        self._report(str(event.id), said, always=True)
        self._last.pop(str(event.id), None)
        self._sent_s.pop(str(event.id), None)

    def close(self) -> None:
        self._writer.close()

    def _report(self, query_id: str, said: Mapping[str, Any], *, always: bool = False) -> None:
        now_s = self._clock()
        report = self._last[query_id] = {
            "version": 1,
            "pipeline": self._pipeline,
            "query_id": query_id,
            "error": None,
            "dead_letters": self._dead_letters,
            **self._last.get(query_id, {}),
            **said,
            "at_ms": int(now_s * 1000),
        }
        if not always and now_s - self._sent_s.get(query_id, 0.0) < _EVERY_S:
            return  # the next one says more; a query that rests sends the last
        self._sent_s[query_id] = now_s
        key = json.dumps([self._pipeline, report.get("query", query_id)])
        self._writer.write(key.encode(), json.dumps(report).encode(), now_ms=report["at_ms"])


def _topics(source: Mapping[str, Any]) -> list[str]:
    """Of a source whose offsets are topics and partitions."""
    offsets = source.get("endOffset")
    if isinstance(offsets, str):
        try:
            offsets = json.loads(offsets)
        except ValueError:
            return []
    return (
        list(offsets) if isinstance(offsets, dict) and all(isinstance(each, dict) for each in offsets.values()) else []
    )


class ReportWriter:
    """Writes to the topic of reports, and makes it where it is missing. Owner: one thread."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        config = client_config(bootstrap, settings, client_id="barnabas-pipeline-reports")
        self._client = BlockingClient(
            replace(
                config,
                api_timeout_ms=min(config.api_timeout_ms, _PATIENCE_MS),
                request_timeout_ms=min(config.request_timeout_ms, _PATIENCE_MS),
            )
        )
        self._producer: BlockingProducer | None = None
        self._not_before_s = float("-inf")

    def close(self) -> None:
        if self._producer is not None:
            self._producer.discard()
            self._producer = None
        self._client.close()

    def write(self, key: bytes, value: bytes, *, now_ms: int) -> None:
        if time.monotonic() < self._not_before_s:
            return
        try:
            producer = self._producer or self._open()
            builder = BatchBuilder()
            builder.append(key, value, timestamp=now_ms)
            where = TopicPartition(PIPELINES_TOPIC, 0)
            producer.send(ReadyBatch(where, 1, memoryview(bytearray(builder.build()))))
            producer.flush()
        except ClientError as error:
            _log.warning("the progress of a query was not reported: %s", error)
            self._not_before_s = time.monotonic() + _PAUSE_S
            if self._producer is not None:
                self._producer.discard()
                self._producer = None

    def _open(self) -> BlockingProducer:
        topic = NewTopic(
            name=PIPELINES_TOPIC,
            partitions=1,
            replication_factor=-1,
            configs={"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)},
        )
        try:
            self._client.run(create_topics(self._client.core, [topic]))
        except BrokerRefused as refused:
            # Somebody may not create topics, and need not where it exists.
            if refused.code not in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                raise
        config = BlockingProducerConfig(
            acks=1, request_timeout_ms=_PATIENCE_MS, delivery_timeout_ms=_PATIENCE_MS, max_block_ms=_PATIENCE_MS
        )
        self._producer = BlockingProducer(self._client, config)
        return self._producer
