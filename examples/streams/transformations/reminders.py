"""A processor with state and timers: a reminder for each order that nobody paid within half an hour of event time."""

from collections.abc import Iterator

import pandas as pd
from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import LongType, StringType, StructType
from shop import ORDER, PAYMENT, records

from barnabas.spark.pipelines import analyzed

#: State with timers is kept there.
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WAIT_MS = 30 * 60 * 1000
#: Not a text: Spark would ask its server to parse it, which it must not do here.
REMINDER = StructType().add("id", LongType()).add("text", StringType())


class Reminders(StatefulProcessor):
    """Of one order. Its state is the time until which it should be paid, or 0 where the payment came first."""

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
                if event.what == "paid":
                    if self.due.exists() and self.due.get()[0]:
                        self.handle.deleteTimer(self.due.get()[0])
                    self.due.update((0,))
                elif not self.due.exists():
                    due_ms = int(event.at.timestamp() * 1000) + WAIT_MS
                    self.due.update((due_ms,))
                    self.handle.registerTimer(due_ms)
        yield from ()

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[int],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        self.due.clear()
        yield pd.DataFrame({"id": [key[0]], "text": [f"order {key[0]} is not paid"]})

    def close(self) -> None:
        """Nothing is held besides the state, which is Spark's."""


@dp.table(spark_conf={"spark.sql.streaming.stateStore.providerClass": ROCKSDB})
def reminders() -> DataFrame:
    ordered = records("orders", ORDER).select("id", "at", F.lit("ordered").alias("what"))
    paid = records("payments", PAYMENT).select(
        F.col("order_id").alias("id"), F.col("paid_at").alias("at"), F.lit("paid").alias("what")
    )
    events = analyzed(ordered.unionByName(paid).withWatermark("at", "1 minute"))
    return events.groupBy("id").transformWithStateInPandas(Reminders(), REMINDER, "Append", "EventTime")
