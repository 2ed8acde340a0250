"""Reports of streaming queries, as records of a compacted topic: the console's page of pipelines reads them. No Spark here.

One record per query, replaced by the next: state, batch, rows a second, watermark, size of the state, lag. Reports are for
people: a report that cannot be written is logged and dropped, and never holds a query up for longer than two seconds. They need
only the right to write to `__barnabas_pipelines`, and to create it once.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import PIPELINES_TOPIC
from barnabas.client.admin.topics import NewTopic, ensure_topic
from barnabas.client.blocking import BlockingClient
from barnabas.client.blocking_producer import BlockingProducer, BlockingProducerConfig, ReadyBatch
from barnabas.client.config import client_config
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.spark.pipelines.events import Progress

_log: Final = logging.getLogger("barnabas.spark")

_PATIENCE_MS: Final = 2_000
#: After a failure the writer drops reports for this long.
_PAUSE_S: Final = 30.0
#: Each query sends at most one report in this time. An idle query sends one now and then.
_EVERY_S: Final = 1.0
_REST_S: Final = 10.0
RUNNING, ENDED, FAILED = "running", "ended", "failed"


class Reports:
    """The reports of one pipeline's queries. Owner: one thread at a time."""

    def __init__(
        self,
        bootstrap: str,
        *,
        pipeline: str,
        dead_letters: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`settings`: the client's, for a cluster with users or TLS. `dead_letters`: topics that the console can replay."""
        self._pipeline = pipeline
        self._dead_letters = list(dead_letters)
        self._clock = clock
        self._writer = ReportWriter(bootstrap, settings)
        #: The last report of each query, and when it was sent.
        self._last: dict[str, dict[str, Any]] = {}
        self._sent_s: dict[str, float] = {}

    def started(self, query_id: str, name: str) -> None:
        """Remember the query; send nothing: `start()` waits for listeners, and Spark's workers have ten seconds to start at
        that time."""
        self._last[query_id] = {"query": name}

    def progressed(self, query_id: str, progress: Progress) -> None:
        said = {"query": progress.flow, "topics": list(progress.topics), "progress": asdict(progress)}
        self._report(query_id, said | {"state": RUNNING, "error": None})

    def rests(self, query_id: str) -> None:
        if self._clock() - self._sent_s.get(query_id, 0.0) >= _REST_S:
            self._report(query_id, {"state": RUNNING}, always=True)

    def over(self, query_id: str, *, error: str | None) -> None:
        said = {"state": FAILED if error else ENDED, "error": error.splitlines()[0] if error else None}
        self._report(query_id, said, always=True)
        self._last.pop(query_id, None)
        self._sent_s.pop(query_id, None)

    def all_over(self, *, error: str | None) -> None:
        """End all queries that have begun and not ended."""
        for query_id in list(self._last):
            self.over(query_id, error=error)

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
            return  # the next report says more; an idle query sends the last one
        self._sent_s[query_id] = now_s
        key = json.dumps([self._pipeline, report.get("query", query_id)])
        self._writer.write(key.encode(), json.dumps(report).encode(), now_ms=report["at_ms"])


class ReportWriter:
    """Writes to the topic of reports, and creates it if it is missing. Owner: one thread."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        config = client_config(bootstrap, settings, client_id="barnabas-pipeline-reports")
        self._client = BlockingClient(config.within(_PATIENCE_MS))
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
            producer.send(ReadyBatch.of(TopicPartition(PIPELINES_TOPIC, 0), [(key, value)], timestamp_ms=now_ms))
            producer.flush()
        except ClientError as error:
            _log.warning("cannot report the progress of a query, reports pause for %d s: %s", _PAUSE_S, error)
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
            self._client.run(ensure_topic(self._client.core, topic))
        except BrokerRefused as refused:
            # A user without the right to create topics does not need it if the topic exists.
            if refused.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
        config = BlockingProducerConfig(
            acks=1, request_timeout_ms=_PATIENCE_MS, delivery_timeout_ms=_PATIENCE_MS, max_block_ms=_PATIENCE_MS
        )
        self._producer = BlockingProducer(self._client, config)
        return self._producer
