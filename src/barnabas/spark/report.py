"""A listener that reports what streaming queries are doing, for the console's page of pipelines (`barnabas.spark.reports`).

spark.streams.addListener(PipelineReporter("127.0.0.1:9092", pipeline="shop", dead_letters=["orders-dead"]))
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from barnabas.spark.pipelines.events import parse_progress
from barnabas.spark.reports import Reports


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
        self._reports = Reports(bootstrap, pipeline=pipeline, dead_letters=dead_letters, settings=settings, clock=clock)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._reports.started(str(event.id), event.name or str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._reports.progressed(str(event.progress.id), parse_progress(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._reports.rests(str(event.id))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._reports.over(str(event.id), error=event.exception)

    def close(self) -> None:
        self._reports.close()
