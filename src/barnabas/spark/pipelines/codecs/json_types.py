"""The Spark type of a JSON Schema."""

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from barnabas.services.registry.formats import json_text
from barnabas.services.registry.formats.json_model import Document, Node
from barnabas.services.registry.values.bounds import TYPES_MAX
from barnabas.spark.pipelines.codecs.base import CodecError


def spark_type(text: str, references: Mapping[str, str]) -> DataType:
    """Return the type. A part without a Spark type (a union, a schema within itself) becomes a string: its JSON."""
    loaded = {name: json_text.loads(reference, decimals=True) for name, reference in references.items()}
    document = Document(json_text.loads(text, decimals=True), loaded)
    return _Types(document).of(document.root, frozenset())[0]


class _Types:
    """The types of one document's parts. A part that is used in many places is a column in each, so uses are counted."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = TYPES_MAX

    def of(self, node: Node, above: frozenset[int]) -> tuple[DataType, bool]:
        """Return the type of a part, and whether it may be null."""
        self._left -= 1
        if self._left < 0:
            raise CodecError(f"JSON: the schema has more than {TYPES_MAX:,} types, each counted as often as it is used")
        node = self._document.resolve(node)
        if id(node) in above:
            return StringType(), True
        inside = above | {id(node)}
        match node.kind:
            case "object":
                return self._object(node, inside), False
            case "array":
                items = node.parts.get("items")
                kind, null = self.of(items, inside) if items is not None else (StringType(), True)
                return ArrayType(kind, null), False
            case "string":
                return StringType(), False
            case "number":
                return LongType() if node.bounds["integer"] else DoubleType(), False
            case "boolean":
                return BooleanType(), False
            case "combined":
                return self._combined(node, inside)
            case _:
                return StringType(), True

    def _object(self, node: Node, inside: frozenset[int]) -> DataType:
        if node.properties:
            fields = []
            for name, inner in node.properties.items():
                kind, null = self.of(inner, inside)
                fields.append(StructField(name, kind, null or name not in node.required))
            return StructType(fields)
        rest = node.parts.get("rest")
        if rest is None:
            return StringType()
        return MapType(StringType(), *self.of(rest, inside))

    def _combined(self, node: Node, inside: frozenset[int]) -> tuple[DataType, bool]:
        """Combine types: one type besides null; or, if all must hold, the one that has a type."""
        children = [self._document.resolve(child) for child in node.children]
        shapes = ("object", "array", "string", "number", "boolean", "combined")
        others = [child for child in children if child.kind in shapes]
        nulls = [child for child in children if child.kind == "null"]
        if node.word == "allOf" and len(others) == 1:
            return self.of(others[0], inside)
        if node.word != "allOf" and len(others) == 1 and len(others) + len(nulls) == len(children):
            kind, null = self.of(others[0], inside)
            return kind, null or bool(nulls)
        return StringType(), True
