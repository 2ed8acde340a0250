"""Small micro-batches, read on the driver while it plans them, and handed to Spark with the plan.

A task of a Python source costs Spark some fifty milliseconds to send its command to a worker, however few records
it reads. A stream that keeps up has few records in each micro-batch. One that does not has many, and tasks read those in
parallel. Tasks also read if the user asks for them with `minPartitions` or `maxRecordsPerPartition`.

Spark takes rows with the plan only from its simple stream readers, and knows them by their class.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from barnabas.client.blocking import BlockingClient
from barnabas.spark.offsets import OffsetRange
from barnabas.spark.options import SourceOptions

_log: Final = logging.getLogger("barnabas.spark")

#: Most bytes of a micro-batch that the driver reads. It holds them twice for a moment, once in each of its processes.
BYTES_MAX: Final = 8 * 1024 * 1024


class DriverReads:
    """The reads of one query. Owner: its reader on the driver."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._client: BlockingClient | None = None
        self._records_max = 0 if options.is_divided else options.driver_read_max_records
        #: False after a micro-batch with more bytes than BYTES_MAX. While true, few records are little work, for the driver or
        #: for one task.
        self.are_small = self._records_max > 0

    def read(self, ranges: Sequence[OffsetRange]) -> list[pa.RecordBatch] | None:
        """Return all rows of the ranges; None if tasks should read them."""
        records = sum(each.size for each in ranges)
        if not 0 < records <= self._records_max:
            return None
        rows: list[pa.RecordBatch] = []
        size_bytes = 0
        try:
            for batch in self._rows(ranges):
                size_bytes += batch.nbytes
                if size_bytes > BYTES_MAX:
                    # The records are large: read fewer of them here from now on.
                    self._records_max = records // 2
                    self.are_small = False
                    return None
                rows.append(batch)
        except Exception as error:
            # Tasks try again, as often as Spark's settings say, and report what is wrong.
            _log.warning("cannot read a micro-batch on the driver, so tasks read it: %s", error)
            self.close()
            return None
        return rows

    def _rows(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        from barnabas.spark.fetching import read_small

        if self._client is None:
            self._client = BlockingClient(self._options.client())
        yield from read_small(self._client, self._options, ranges, self._columns)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


class HasRows(_SimpleStreamReaderWrapper):
    """The class of a reader while it holds the rows that it has planned. Spark asks for them next; then the class is put
    back."""

    _in_hand: tuple[type[DataSourceStreamReader], Sequence[pa.RecordBatch]]

    @classmethod
    def hold(cls, reader: DataSourceStreamReader, rows: Sequence[pa.RecordBatch]) -> None:
        vars(reader)["_in_hand"] = type(reader), rows
        reader.__class__ = cls

    def getCache(self, start: dict[str, object], end: dict[str, object]) -> Iterator[tuple[object, ...]]:  # noqa: N802
        itself, rows = self._in_hand
        del self._in_hand
        self.__class__ = itself  # type: ignore[assignment]
        return iter(rows)
