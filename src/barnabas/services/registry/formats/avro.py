"""Avro schemas. Pure."""

from collections.abc import Mapping
from functools import cached_property

from barnabas.services.registry.formats import avro_compatibility, avro_text, avro_types


class AvroSchema:
    schema_type = "AVRO"

    def __init__(self, text: str, references: Mapping[str, str], *, as_new: bool) -> None:
        self._root, self._known = avro_types.parse(text, references.values(), as_new=as_new)

    def canonical(self) -> str:
        return self._canonical

    def normalized(self) -> str:
        return avro_text.normalized(self._root, self._known)

    def formatted(self, wanted: str) -> str:
        """Return the text; `resolved` has the types of other schemas in place."""
        return avro_text.canonical(self._root, ()) if wanted == "resolved" else self._canonical

    def incompatibilities(self, writer: "AvroSchema", reader_name: str, writer_name: str) -> list[str]:
        found = avro_compatibility.differences(self._root, writer._root)
        return [difference.text(reader_name, writer_name) for difference in found]

    @cached_property
    def _canonical(self) -> str:
        return avro_text.canonical(self._root, self._known)
