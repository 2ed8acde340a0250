"""JSON Schemas, drafts 4 to 2020-12. Pure."""

from collections.abc import Mapping

from barnabas.services.registry.formats import json_compatibility, json_text
from barnabas.services.registry.formats.json_changes import COMPATIBLE, COMPATIBLE_LENIENT, describe
from barnabas.services.registry.formats.json_model import Document
from barnabas.services.registry.formats.limits import SchemaError


class JsonSchema:
    schema_type = "JSON"

    def __init__(self, text: str, references: Mapping[str, str], *, as_new: bool) -> None:
        self._value = json_text.loads(text, decimals=True)
        if not isinstance(self._value, dict | bool):
            raise SchemaError("Invalid JSON schema: expected an object or boolean at the root")
        loaded = {name: json_text.loads(reference, decimals=True) for name, reference in references.items()}
        self._document = Document(self._value, loaded)
        if as_new:
            self._document.check()
        self._canonical = json_text.dumps(self._value)

    def canonical(self) -> str:
        return self._canonical

    def normalized(self) -> str:
        return json_text.dumps(json_text.sorted_keys(self._value))

    def formatted(self, wanted: str) -> str:
        return self._canonical

    def incompatibilities(
        self, writer: "JsonSchema", reader_name: str, writer_name: str, *, lenient: bool = False
    ) -> list[str]:
        compatible_changes = COMPATIBLE_LENIENT if lenient else COMPATIBLE
        found = json_compatibility.incompatible_changes(writer._document, self._document, compatible_changes)
        return [describe(change, path, reader_name, writer_name) for change, path in found]
