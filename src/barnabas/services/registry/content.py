"""The content of a schema: its text and type, its references, its metadata and its rules. Pure.

Metadata and rule sets are stored and returned. No rule is run here: clients run those of kind CONDITION and ENCRYPT.
"""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from barnabas.services.registry.formats import Reference

AVRO: Final = "AVRO"
SCHEMA_TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
#: Confluent's name of a metadata property that holds the version.
VERSION_PROPERTY: Final = "confluent:version"

_RULE_LISTS: Final = ("migrationRules", "domainRules", "encodingRules")
_RULE_FIELDS: Final = ("name", "doc", "kind", "mode", "type", "tags", "params", "expr", "onSuccess", "onFailure")
_MODES: Final = {
    "migrationRules": ("UPGRADE", "DOWNGRADE", "UPDOWN"),
    "domainRules": ("WRITE", "READ", "WRITEREAD"),
    "encodingRules": ("WRITE", "READ", "WRITEREAD"),
}
_MODES_TEXT: Final = {
    "migrationRules": "Migration rules can only be UPGRADE, DOWNGRADE, UPDOWN",
    "domainRules": "Domain rules can only be WRITE, READ, WRITEREAD",
    "encodingRules": "Encoding rules can only be WRITE, READ, WRITEREAD",
}
_KINDS: Final = ("TRANSFORM", "CONDITION")
_RULE_NAME_MAX: Final = 64


class BadContent(ValueError):
    """A field of the request's JSON has a value that it may not have."""


@dataclass(frozen=True, slots=True)
class Content:
    """Two schemas with the same content have the same id, whatever their subjects."""

    schema_type: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: Mapping[str, Any] | None = None
    rule_set: Mapping[str, Any] | None = None
    digest: bytes = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", _digest(self))

    @property
    def key(self) -> tuple[str, bytes]:
        return (self.schema_type, self.digest)

    @property
    def guid(self) -> str:
        return str(uuid.UUID(bytes=self.digest))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of records and answers. `schemaType` is left out for Avro, as in Confluent's registry."""
        document: dict[str, Any] = {}
        if self.schema_type != AVRO:
            document["schemaType"] = self.schema_type
        if self.references:
            document["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version} for each in self.references
            ]
        if self.metadata is not None:
            document["metadata"] = self.metadata
        if self.rule_set is not None:
            document["ruleSet"] = self.rule_set
        return document

    def with_text(self, text: str) -> "Content":
        return replace(self, text=text)

    @property
    def size_bytes(self) -> int:
        """Roughly the memory that the content takes."""
        return len(self.text) + 200 * (1 + len(self.references))


@dataclass(frozen=True, slots=True)
class Resolved:
    """A schema and the texts behind its references, by name; each text comes after those that it refers to."""

    schema_type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    #: The schema is not stored yet and must pass all checks. A stored schema stays readable even if the checks become stricter.
    is_new: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.text) + sum(len(text) for _, text in self.references)


@dataclass(frozen=True, slots=True)
class Previous:
    version: int
    schema: Resolved


def _digest(content: Content) -> bytes:
    """Confluent's MD5, which is also the schema's GUID: the same in every registry that holds the schema."""
    md5 = hashlib.md5(content.text.encode("utf-8", "surrogatepass"), usedforsecurity=False)

    def add(*values: Any) -> None:
        for value in values:
            if value is not None:
                md5.update(str(value).encode("utf-8", "surrogatepass"))

    for reference in content.references:
        add(reference.name, reference.subject)
        md5.update(reference.version.to_bytes(4, "big", signed=True))
    if content.metadata is not None:
        md5.update(b"\x01")
        for name, values in sorted(content.metadata.get("tags", {}).items()):
            add(name, *sorted(values))
        for name, value in sorted(content.metadata.get("properties", {}).items()):
            add(name, value)
        add(*sorted(content.metadata.get("sensitive", ())))
    if content.rule_set is not None:
        md5.update(b"\x01")
        for kind in _RULE_LISTS:
            for rule in content.rule_set.get(kind, ()):
                add(*(rule.get(name) for name in ("name", "doc", "kind", "mode", "type")))
                add(*sorted(rule.get("tags", ())))
                for name, value in sorted(rule.get("params", {}).items()):
                    add(name, value)
                add(rule.get("expr"), rule.get("onSuccess"), rule.get("onFailure"))
                if rule.get("disabled"):
                    md5.update(b"\x01")
        add(content.rule_set.get("enableAt"))
    return md5.digest()


# -- from JSON --------------------------------------------------------------------------------------------------------------


def references_of(document: object) -> tuple[Reference, ...]:
    if document is None:
        return ()
    found = []
    for item in _list(document, "references"):
        one = _object(item, "a reference")
        name, subject, version = one.get("name"), one.get("subject"), one.get("version")
        if not isinstance(name, str) or not isinstance(subject, str) or type(version) is not int:
            raise BadContent("a reference needs a name, a subject and a version")
        if not -(2**31) <= version < 2**31:
            raise BadContent(f"reference {name}: version {version} is out of range")
        found.append(Reference(name, subject, version))
    return tuple(found)


def metadata_of(document: object) -> dict[str, Any] | None:
    """Return metadata as Confluent writes it: names sorted, empty members left out."""
    if document is None:
        return None
    given = _object(document, "metadata")
    metadata: dict[str, Any] = {}
    tags = {
        name: sorted(_strings(values, f"tags of {name}"))
        for name, values in sorted(_object(given.get("tags") or {}, "tags").items())
    }
    properties = _string_map(given.get("properties"), "properties")
    sensitive = sorted(_strings(given.get("sensitive"), "sensitive"))
    if tags:
        metadata["tags"] = tags
    if properties:
        metadata["properties"] = properties
    if sensitive:
        metadata["sensitive"] = sensitive
    return metadata


def rule_set_of(document: object) -> dict[str, Any] | None:
    if document is None:
        return None
    given = _object(document, "ruleSet")
    rule_set: dict[str, Any] = {}
    for kind in _RULE_LISTS:
        if rules := [_rule(rule) for rule in _list(given.get(kind) or [], kind)]:
            rule_set[kind] = rules
    if given.get("enableAt"):
        rule_set["enableAt"] = _string(given["enableAt"], "enableAt")
    return rule_set


def _rule(document: object) -> dict[str, Any]:
    given = _object(document, "a rule")
    rule: dict[str, Any] = {}
    for name in _RULE_FIELDS:
        value = given.get(name)
        if not value:
            continue
        if name == "tags":
            rule[name] = sorted(_strings(value, name))
        elif name == "params":
            rule[name] = _string_map(value, name)
        else:
            rule[name] = _string(value, name)
    rule["disabled"] = bool(given.get("disabled", False))
    return rule


def rule_set_trouble(rule_set: Mapping[str, Any] | None) -> str | None:
    """Why Confluent would refuse the rule set, or None."""
    names: set[str] = set()
    for kind in _RULE_LISTS:
        for rule in (rule_set or {}).get(kind, ()):
            name = rule.get("name", "")
            if name in names:
                return f"Found rule with duplicate name '{name}'"
            names.add(name)
            if trouble := _rule_trouble(rule, kind):
                return trouble
    return None


def _rule_trouble(rule: Mapping[str, Any], kind: str) -> str | None:
    name = rule.get("name", "")
    if not name:
        return "Missing rule name"
    if len(name) > _RULE_NAME_MAX:
        return "Rule name too long"
    if not (name[0].isalpha() or name[0] == "_"):
        return f"Illegal initial character in rule name: {name}"
    if not all(char.isalnum() or char in "_-" for char in name[1:]):
        return f"Illegal character in rule name: {name}"
    if "type" not in rule:
        return "Missing rule type"
    if rule.get("kind", _KINDS[0]) not in _KINDS:
        return f"Invalid rule kind: {rule['kind']}"
    if rule.get("mode") not in _MODES[kind]:
        return _MODES_TEXT[kind]
    return None


def merged_metadata(*layers: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Merge metadata; later layers win, name by name."""
    given = [layer for layer in layers if layer is not None]
    if not given:
        return None
    merged: dict[str, Any] = {}
    for layer in given:
        merged["tags"] = {**merged.get("tags", {}), **layer.get("tags", {})}
        merged["properties"] = {**merged.get("properties", {}), **layer.get("properties", {})}
        merged["sensitive"] = [*merged.get("sensitive", ()), *layer.get("sensitive", ())]
    merged["sensitive"] = list(dict.fromkeys(merged["sensitive"]))
    return metadata_of(merged)


def merged_rule_sets(*layers: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Merge rule sets. Of rules with the same name the later one wins and comes last."""
    given = [layer for layer in layers if layer is not None]
    if not given:
        return None
    merged: dict[str, Any] = {}
    for kind in _RULE_LISTS:
        rules: dict[str, Any] = {}
        for layer in given:
            for rule in layer.get(kind, ()):
                rules.pop(rule.get("name", ""), None)
                rules[rule.get("name", "")] = rule
        merged[kind] = list(rules.values())
    merged["enableAt"] = next((layer["enableAt"] for layer in reversed(given) if "enableAt" in layer), None)
    return rule_set_of(merged)


def with_version(metadata: Mapping[str, Any] | None, version: int) -> dict[str, Any]:
    """Add the version to the properties, as Confluent does if the request names one."""
    return merged_metadata(metadata, {"properties": {VERSION_PROPERTY: str(version)}}) or {}


def without_version(metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if metadata is None or VERSION_PROPERTY not in metadata.get("properties", {}):
        return metadata
    kept = {name: value for name, value in metadata["properties"].items() if name != VERSION_PROPERTY}
    return metadata_of({**metadata, "properties": kept}) or None


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadContent(f"{what} must be an object")
    return value


def _list(value: object, what: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise BadContent(f"{what} must be an array")
    return value


def _string(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise BadContent(f"{what} must be a string")
    return value


def _strings(value: object, what: str) -> list[str]:
    return [_string(item, what) for item in dict.fromkeys(_hashable(_list(value or [], what), what))]


def _hashable(items: Sequence[Any], what: str) -> Sequence[Any]:
    for item in items:
        _string(item, what)
    return items


def _string_map(value: object, what: str) -> dict[str, str]:
    return {name: _string(one, f"{what} {name}") for name, one in sorted(_object(value or {}, what).items())}
