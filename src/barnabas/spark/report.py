"""A listener that reports what streaming queries are doing, for the console's page of pipelines (`barnabas.spark.reports`).

spark.streams.addListener(PipelineReporter("127.0.0.1:9092", pipeline="shop", dead_letters=["orders-dead"]))
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from barnabas.spark.checkpoint import repeated_rows
from barnabas.spark.checkpoint_files import CheckpointFiles, location_of
from barnabas.spark.pipelines.connector import checkpoint_of_query
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
        """`settings`: the client's, for a cluster with users or TLS. `dead_letters`: topics that the console can replay."""
        super().__init__()
        #: The checkpoint of each query. Sinks count there the rows of batches that came again.
        self._checkpoints: dict[str, CheckpointFiles] = {}
        self._reports = Reports(bootstrap, pipeline=pipeline, dead_letters=dead_letters, settings=settings, clock=clock)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        query = str(event.id)
        spark = SparkSession._instantiatedSession
        location = None if spark is None else checkpoint_of_query(spark, query)
        if location is not None:
            self._checkpoints[query] = CheckpointFiles(location_of(location))
        self._reports.started(query, event.name or query)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        query, progress = str(event.progress.id), parse_progress(json.loads(event.progress.json))
        if query in self._checkpoints:
            progress = replace(progress, repeated_rows=repeated_rows(self._checkpoints[query]))
        self._reports.progressed(query, progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._reports.rests(str(event.id))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._checkpoints.pop(str(event.id), None)
        self._reports.over(str(event.id), error=event.exception)

    def close(self) -> None:
        self._reports.close()
