"""How fresh, large and complete a table is, asked of the table and of the topic. No Spark session is needed."""

import time
from dataclasses import dataclass

from barnabas.base.ids import TopicPartition
from barnabas.base.words import READ_COMMITTED
from barnabas.spark.lookup import OffsetLookup
from barnabas.spark.tables.definition import Definition
from barnabas.spark.tables.filling import Cluster, lookup_of, plan
from barnabas.spark.tables.places import Facts, place_of

_ALL = 1 << 62


@dataclass(frozen=True)
class State:
    facts: Facts
    #: Records of the topic that the table does not have.
    lag: int
    #: How long the oldest of them has waited; 0 if there are none, None if it is not known.
    behind_ms: int | None
    #: The table's position in each partition.
    positions: dict[int, int]
    #: Rows of the table of errors.
    errors: int


def state_of(table: Definition, cluster: Cluster) -> State:
    """Read the state. Raises `TableStopped` if the table and its topic do not go together."""
    place = place_of(table)
    lookup = lookup_of(table, cluster)
    try:
        planned = plan(table, place, lookup, records_max=_ALL)
        oldest_ms = [_time_of(lookup, each, planned.starts[each]) for each in planned.ends]
    finally:
        lookup.close()
    known = [each for each in oldest_ms if each is not None]
    behind_ms: int | None = 0
    if planned.ends:
        behind_ms = max(0, int(time.time() * 1000) - min(known)) if known else None
    return State(
        facts=place.facts(),
        lag=planned.records,
        behind_ms=behind_ms,
        positions={each.partition: planned.starts[each] for each in sorted(planned.starts)},
        errors=place_of(table.errors()).facts().rows,
    )


def _time_of(lookup: OffsetLookup, partition: TopicPartition, offset: int) -> int | None:
    """Return the time of the first record at or after an offset."""
    fetched = lookup.client.retrying(
        f"record {offset} of {partition}",
        lambda: lookup.client.fetch(partition, offset, max_bytes=1024, isolation_level=READ_COMMITTED),
    )
    for record in fetched.records(isolation_level=READ_COMMITTED):
        return record.timestamp
    return None
