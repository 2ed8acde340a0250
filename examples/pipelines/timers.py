"""A stateful processor with timers: a reminder for each order that has not been paid half an hour later.

What Streams does with a processor, a state store and punctuators. State is kept per order; a payment deletes it, and the timer
goes off when the watermark passes.

    python examples/pipelines/timers.py --bootstrap localhost:9092 --input events --output reminders
"""

from collections.abc import Iterator

import pandas as pd
from _topics import main, read, to_topic
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from barnabas.spark.pipelines.codecs import Json, decode

EVENT = "order_id long, what string, at timestamp"
WAIT_MS = 30 * 60 * 1000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Reminders(StatefulProcessor):
    """One order: its state is the time until which it should be paid."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.due = handle.getValueState("due", "due_ms long")

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[int],
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        for batch in rows:
            for event in batch.itertuples():
                if event.what == "ordered":
                    due_ms = int(event.at.timestamp() * 1000) + WAIT_MS
                    self.due.update((due_ms,))
                    self.handle.registerTimer(due_ms)
                elif self.due.exists():
                    self.handle.deleteTimer(self.due.get()[0])
                    self.due.clear()
        yield from ()

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[int],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        self.due.clear()
        yield pd.DataFrame({"key": [str(key[0])], "value": [f"order {key[0]} is not paid"]})

    def close(self) -> None:
        """Nothing is held besides the state, which is Spark's."""


def pipeline(spark: SparkSession, bootstrap: str, input: str, output: str, checkpoint: str) -> DataStreamWriter:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    events = decode(read(spark, bootstrap, input), Json(EVENT), mode="DROP").select("data.*")
    reminders = (
        events.withWatermark("at", "1 minute")
        .groupBy("order_id")
        .transformWithStateInPandas(Reminders(), "key string, value string", "Append", "EventTime")
    )
    return to_topic(reminders, bootstrap, output, checkpoint)


if __name__ == "__main__":
    main(pipeline)
