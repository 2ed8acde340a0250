"""Records on their way to a Parquet file, and reports of queries: how much of them is in memory at a time."""

import json
from collections.abc import Iterator
from typing import Any

from barnabas.services.console import parquet, pipelines
from barnabas.wire.records import Record


def lines(count: int, value_bytes: int) -> Iterator[bytes]:
    row: dict[str, Any] = {"key": None, "value": None, "key_text": None, "value_text": "x" * value_bytes, "headers": []}
    for offset in range(count):
        yield json.dumps(row | {"offset": offset}).encode() + b"\n"


def test_large_records_are_written_to_parquet_a_few_at_a_time() -> None:
    groups = list(parquet._groups(lines(40, 1 << 20)))  # type: ignore[arg-type]
    assert max(map(len, groups)) <= 16
    assert [row["offset"] for rows in groups for row in rows] == [*range(40)]
    assert [len(rows) for rows in parquet._groups(lines(5_001, 1))] == [5_000, 1]  # type: ignore[arg-type]


def report(key: bytes, size: int) -> tuple[int, Record]:
    value = json.dumps({"at_ms": 1, "query": key.decode(), "progress": {"note": "x" * size}}).encode()
    return 0, Record(offset=0, timestamp=0, key=key, value=value, headers=())


def test_reports_that_are_too_large_do_not_hide_the_others() -> None:
    strangers = [report(f"large{number}".encode(), 1 << 20) for number in range(3)]
    strangers += [report(f"many{number}".encode(), 60_000) for number in range(100)]
    queries = pipelines.queries_of([report(b"first", 10), *strangers, report(b"small", 10)], now_ms=1)
    assert {"first", "small"} <= {each["query"] for each in queries}
    assert sum(len(json.dumps(each)) for each in queries) < 3 << 20
