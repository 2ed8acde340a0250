"""The records of the topic `_schemas`, as Confluent's registry writes them: JSON keys and values, byte for byte. Pure.

Old versions of Confluent's registry wrote some keys in other ways (magic 0 for schemas, members in another order). All are
read; `is_own_form` marks keys in the current form, because a tombstone needs the exact bytes of the key that it removes.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from barnabas.services.registry.content import AVRO, BadContent, Content, metadata_of, references_of, rule_set_of

SCHEMA: Final = "SCHEMA"
CONFIG: Final = "CONFIG"
MODE: Final = "MODE"
NOOP: Final = "NOOP"
DELETE_SUBJECT: Final = "DELETE_SUBJECT"
CLEAR_SUBJECT: Final = "CLEAR_SUBJECT"
CONTEXT: Final = "CONTEXT"
#: Confluent's cloud has several tenants; a self-hosted registry has only this one.
TENANT: Final = "default"

_MAGIC: Final = {SCHEMA: 1}
#: Jackson writes the hexadecimal digits of escapes in upper case.
_ESCAPES: Final = re.compile(r"\\\\|\\u00[01][0-9a-f]")


class BadRecord(ValueError):
    """A record that no registry writes. It is skipped and logged."""


@dataclass(frozen=True, slots=True)
class Key:
    kind: str
    #: None: the global setting.
    subject: str | None = None
    version: int = 0
    #: Set for CONTEXT, and for the NOOP that stores the highest id.
    context: str = ""

    def to_bytes(self) -> bytes:
        document: dict[str, Any] = {"keytype": self.kind}
        if self.kind == CONTEXT:
            return dump(document | {"tenant": TENANT, "context": self.context, "magic": 0})
        if self.kind == NOOP and self.context:
            document["context"] = self.context
        elif self.kind != NOOP:
            document["subject"] = self.subject
        if self.kind == SCHEMA:
            document["version"] = self.version
        document["magic"] = _MAGIC.get(self.kind, 0)
        return dump(document)


@dataclass(frozen=True, slots=True)
class Record:
    """A record to write. `value` None is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a subject: the value of a SCHEMA record."""

    subject: str
    version: int
    id: int
    content: Content
    deleted: bool = False

    def to_bytes(self) -> bytes:
        document: dict[str, Any] = {"subject": self.subject, "version": self.version, "id": self.id}
        document |= self.content.to_json()
        document |= {"schema": self.content.text, "deleted": self.deleted}
        return dump(document)

    @property
    def key(self) -> Key:
        return Key(SCHEMA, self.subject, self.version)


def dump(document: object) -> bytes:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    if "\\u00" in text:
        text = _ESCAPES.sub(lambda found: found[0][:2] + found[0][2:].upper(), text)
    return text.encode("utf-8", "surrogatepass")


def key_of(data: bytes) -> Key:
    document = _json_object(data, "key")
    kind = document.get("keytype")
    if not isinstance(kind, str):
        raise BadRecord("a key without a keytype")
    subject = document.get("subject")
    if subject is not None and not isinstance(subject, str):
        raise BadRecord(f"a {kind} key with a subject that is no string")
    if kind in (SCHEMA, DELETE_SUBJECT) and subject is None:
        raise BadRecord(f"a {kind} key without a subject")
    version = 0
    if kind == SCHEMA:
        version = _number(document, "version")
        if document.get("magic") not in (0, 1):
            raise BadRecord(f"Can't deserialize schema for the magic byte {document.get('magic')}")
    context = document.get("context", "")
    if kind not in (CONTEXT, NOOP) or not isinstance(context, str):
        context = ""
    return Key(kind, None if kind in (CONTEXT, NOOP) else subject, version, context)


def schema_version_of(data: bytes) -> SchemaVersion:
    document = _json_object(data, "value")
    subject, text = document.get("subject"), document.get("schema")
    if not isinstance(subject, str) or not isinstance(text, str):
        raise BadRecord("a schema without its subject or its text")
    schema_type = document.get("schemaType") or AVRO
    try:
        content = Content(
            schema_type=str(schema_type),
            text=text,
            references=references_of(document.get("references")),
            metadata=metadata_of(document.get("metadata")),
            rule_set=rule_set_of(document.get("ruleSet")),
        )
    except BadContent as error:
        raise BadRecord(str(error)) from None
    return SchemaVersion(
        subject=subject,
        version=_number(document, "version"),
        id=_number(document, "id"),
        content=content,
        deleted=bool(document.get("deleted", False)),
    )


def check(record: Record) -> None:
    """:raises BadRecord: for a record that a reader of the log would skip."""
    key = key_of(record.key)
    if record.value is None:
        return
    if key.kind != SCHEMA:
        value_of(record.value)
        return
    version = schema_version_of(record.value)
    if version.key != key:
        raise BadRecord("a schema whose key names another version")


def value_of(data: bytes) -> dict[str, Any]:
    """Return the value of a record of any kind but SCHEMA."""
    return _json_object(data, "value")


def delete_subject_record(subject: str, version: int) -> Record:
    return Record(Key(DELETE_SUBJECT, subject).to_bytes(), dump({"subject": subject, "version": version}))


def clear_subject_record(subject: str | None) -> Record:
    value = {} if subject is None else {"subject": subject}
    return Record(Key(CLEAR_SUBJECT, subject).to_bytes(), dump(value))


def context_record(context: str) -> Record:
    return Record(Key(CONTEXT, context=context).to_bytes(), dump({"tenant": TENANT, "context": context}))


def mode_record(subject: str | None, mode: str) -> Record:
    value = {"mode": mode} if subject is None else {"subject": subject, "mode": mode}
    return Record(Key(MODE, subject).to_bytes(), dump(value))


def config_record(subject: str | None, config: dict[str, Any]) -> Record:
    value = config if subject is None else {"subject": subject, **config}
    return Record(Key(CONFIG, subject).to_bytes(), dump(value))


def noop_record() -> Record:
    return Record(Key(NOOP).to_bytes(), None)


def highest_id_record(context: str, schema_id: int) -> Record:
    """A record that stores the highest id given so far, for when the schema with that id is deleted permanently.

    Other registries skip NOOP records, whatever they contain.
    """
    return Record(Key(NOOP, context=context).to_bytes(), dump({"maxId": schema_id}))


def _json_object(data: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise BadRecord(f"a {what} that is not JSON") from None
    if not isinstance(document, dict):
        raise BadRecord(f"a {what} that is no object")
    return document


def _number(document: dict[str, Any], name: str) -> int:
    value = document.get(name)
    if type(value) is not int or not 0 <= value < 2**31:
        raise BadRecord(f"{name} is not a number in range")
    return value
