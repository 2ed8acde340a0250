"""Parse and compare schemas, with a cache of parsed ones. Runs on threads: the cache is the only state that it touches.

Each schema comes with the texts that it refers to, so that nothing here reads the store.
"""

import threading
from collections.abc import Sequence
from typing import Final

from barnabas.base.recent import Recent
from barnabas.services.registry import formats
from barnabas.services.registry.content import Previous, Resolved
from barnabas.services.registry.errors import invalid_schema

#: Length up to which a message quotes an old schema, as in Confluent's registry.
_QUOTED_MAX: Final = 10 * 1024
_DIFFERENT_TYPE: Final = "Incompatible because of different schema type"


class Parser:
    """Parses schemas and caches the most recently used ones, up to `cache_bytes_max` of text."""

    def __init__(self, *, cache_bytes_max: int = 2 * 1024 * 1024) -> None:
        self._cache: Recent[Resolved, formats.ParsedSchema] = Recent(
            cache_bytes_max, weigh=lambda schema, _: schema.size_bytes
        )
        self._lock = threading.Lock()

    def parse(self, schema: Resolved) -> formats.ParsedSchema:
        with self._lock:
            parsed = self._cache.use(schema)
        if parsed is not None:
            return parsed
        try:
            parsed = formats.parse(schema.schema_type, schema.text, dict(schema.references), as_new=schema.is_new)
        except formats.SchemaError as error:
            raise invalid_schema(f"Invalid schema of type {schema.schema_type}, details: {error}") from None
        with self._lock:
            self._cache.put(schema, parsed)
        return parsed

    def knows(self, schema: Resolved) -> bool:
        """Whether the parsed form is cached: then the canonical form is cheap enough for the event loop."""
        with self._lock:
            return schema in self._cache

    def canonical(self, schema: Resolved, *, normalize: bool) -> str:
        parsed = self.parse(schema)
        return parsed.normalized() if normalize else parsed.canonical()

    def formatted(self, schema: Resolved, wanted: str) -> str:
        """Return another form, such as `resolved` (Avro with its references in place) or `serialized` (a descriptor)."""
        return self.parse(schema).formatted(wanted)

    def incompatibilities(
        self, level: str, new: Resolved, previous: Sequence[Previous], *, lenient: bool = False
    ) -> list[str]:
        """Why `new` may not follow these versions (in ascending order); empty if it may."""
        if level == "NONE":
            return []
        newest_first = list(reversed(previous))
        for each in newest_first if level.endswith("_TRANSITIVE") else newest_first[:1]:
            messages = self._compare(level.removesuffix("_TRANSITIVE"), new, each, lenient=lenient)
            if messages:
                return messages
        return []

    def _compare(self, direction: str, new: Resolved, previous: Previous, *, lenient: bool) -> list[str]:
        if new.schema_type != previous.schema.schema_type:
            return [_DIFFERENT_TYPE]
        ours, theirs = self.parse(new), self.parse(previous.schema)
        messages: list[str] = []
        if direction in ("FORWARD", "FULL"):
            messages += formats.incompatibilities(theirs, ours, reader_name="old", writer_name="new", lenient=lenient)
        if direction in ("BACKWARD", "FULL"):
            messages += formats.incompatibilities(ours, theirs, reader_name="new", writer_name="old", lenient=lenient)
        if messages:
            text = previous.schema.text
            quoted = f"'{text}'" if len(text) <= _QUOTED_MAX else f"<truncated> '{text[:_QUOTED_MAX]}...'"
            messages += (f"{{oldSchemaVersion: {previous.version}}}", f"{{oldSchema: {quoted}}}")
        return messages
