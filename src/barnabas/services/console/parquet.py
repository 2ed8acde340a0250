"""Converts JSON lines to Parquet in a separate process: `python -m barnabas.services.console.parquet`, from stdin to stdout.

The library takes tens of megabytes, which the console would otherwise keep until it ends.
"""

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

#: Most rows and bytes of a group: a group is in memory, several times.
ROWS: Final = 5_000
GROUP_BYTES: Final = 16 * 1024 * 1024


def convert(lines: BinaryIO, out: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("key_text", pa.string()),
            ("value_text", pa.string()),
            ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ]
    )
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for rows in _groups(lines):
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _groups(lines: BinaryIO) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    size = 0
    for line in lines:
        row = json.loads(line)
        for name in ("key", "value"):
            row[name] = _bytes(row[name])
            row[f"{name}_text"] = _text(row[f"{name}_text"])
        row["headers"] = [{"name": _text(name), "value": _bytes(value)} for name, value in row["headers"]]
        rows.append(row)
        size += len(line)
        if len(rows) == ROWS or size >= GROUP_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(text: str | None) -> str | None:
    """Replace what UTF-8 cannot encode: a header's name may be any bytes, and a JSON text may escape half a surrogate pair."""
    return None if text is None else text.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    convert(sys.stdin.buffer, sys.stdout.buffer)
