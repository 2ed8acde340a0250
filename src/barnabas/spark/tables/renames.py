"""Fields that were renamed in the registry's schema: recognised by Avro's aliases, or by Protobuf's numbers.

An Iceberg table knows columns by ids, so it renames a column without touching a file. A Delta table would need column
mapping, which deltalake does not write: there a renamed field is a new column.
"""

import json
from collections.abc import Mapping
from typing import Final

from barnabas.services.registry.values import avro
from barnabas.spark.pipelines.codecs.registered import Registered
from barnabas.spark.tables.definition import Definition
from barnabas.spark.tables.places import IcebergPlace, place_of
from barnabas.spark.tables.rows import registered, value_columns

#: A property of the table: the number of each field, and its column.
NUMBERS: Final = "barnabas.field.numbers"


def follow(table: Definition) -> None:
    """Rename the columns whose fields have another name in the newest schema. Call it before rows are planned."""
    if table.schema != "registry" or table.format != "iceberg" or table.envelope != "none":
        return
    place = place_of(table)
    assert isinstance(place, IcebergPlace)
    if place.table is None:
        return
    codec = registered(table)
    known = json.loads(place.table.properties.get(NUMBERS, "{}"))
    existing = set(value_columns(place.columns()).names)
    numbers = numbers_in(codec)
    wanted = by_alias(codec) if not numbers else by_number(known, numbers)
    fixed = {*table.keys, *table.partition_by}
    found = {
        old: new
        for old, new in wanted.items()
        if old in existing and new not in existing and old not in fixed and new not in fixed
    }
    if found or numbers != known:
        place.rename(found, {NUMBERS: json.dumps(numbers)} if numbers else {})


def by_alias(codec: Registered) -> dict[str, str]:
    """Return the new names of an Avro record's fields by their old ones."""
    newest = codec.registry.latest(codec.subject)
    schema = avro.json_of(newest.text) if newest.kind == "AVRO" else None
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    names = {each["name"] for each in fields}
    return {old: each["name"] for each in fields for old in each.get("aliases", ()) if old not in names}


def numbers_in(codec: Registered) -> dict[str, str]:
    """Return the fields of a Protobuf message by number; an empty mapping for other schemas."""
    return {str(number): name for number, name in codec.field_numbers().items()}


def by_number(known: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    return {old: now[number] for number, old in known.items() if now.get(number, old) != old}
