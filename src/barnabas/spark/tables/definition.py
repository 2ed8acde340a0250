"""The definition of a topic's table: where it is, in which format, and how records become rows. Pure; no Spark here."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from barnabas.base.errors import BarnabasError, Refused
from barnabas.base.names import did_you_mean
from barnabas.base.topics import check_topic_name

FORMATS: Final = ("delta", "iceberg")
MODES: Final = ("append", "upsert")
SCHEMAS: Final = ("json", "registry", "raw")
ENVELOPES: Final = ("none", "debezium")
ON_ERROR: Final = ("keep", "stop")
ON_LOSS: Final = ("stop", "skip")

#: Columns beside those of the value in every row.
KEY, HEADERS, PARTITION, OFFSET, TIMESTAMP = "_key", "_headers", "_partition", "_offset", "_timestamp"
BESIDE: Final = (KEY, HEADERS, PARTITION, OFFSET, TIMESTAMP)
ERRORS_SUFFIX: Final = "_errors"

#: Names of the numbers with which a table remembers the topic of its rows, and the version before the last batch.
SOURCE_MARK: Final = "barnabas/source"
VERSION_MARK: Final = "barnabas/version"

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_VERSION: Final = 1


class BadDefinition(BarnabasError):
    """A definition that is not valid. The message names the option, and says what would be valid."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One table, with everything that a run has to know."""

    name: str
    topic: str
    #: In hexadecimal digits: a topic that was deleted and created again has another id. Empty if the cluster has no ids.
    topic_id: str = ""
    format: str = "delta"
    url: str = ""
    mode: str = "append"
    #: Columns by which rows are replaced and deleted (mode upsert); if empty, the record's key is used.
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    schema: str = "json"
    envelope: str = "none"
    #: Settings with the names of Confluent's clients: schema.registry.url, basic.auth.user.info, …
    registry: Mapping[str, str] = field(default_factory=dict)
    subject: str = ""
    #: Iceberg: `namespace.name`, and the settings of pyiceberg's `load_catalog`.
    table: str = ""
    catalog: Mapping[str, str] = field(default_factory=dict)
    on_error: str = "keep"
    on_loss: str = "stop"
    #: Number of small files at which they are put together; 0 for never.
    compact_files: int = 64
    #: Age of versions and snapshots at which they are removed, and their files deleted.
    keep_hours: int = 168
    paused: bool = False
    #: Time of the last request to rebuild the table, in milliseconds since 1970; 0 for never. The table remembers the requests
    #: that were carried out, even if its definition is removed: if a new definition began to count from 1, they would seem to
    #: be done.
    generation: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key or (KEY,)

    @property
    def where(self) -> str:
        return self.url if self.format == "delta" else f"{self.table} at {self.url}"

    def mark(self, partition: int) -> str:
        """Return the name under which the table remembers its position in a partition."""
        return f"barnabas/{self.topic}/{self.topic_id}/{partition}"

    @property
    def source(self) -> int:
        """Return the topic of the table's rows as a number, which the table remembers (`SOURCE_MARK`)."""
        digest = hashlib.sha256(f"{self.topic}\0{self.topic_id}".encode()).digest()
        return int.from_bytes(digest[:6])

    @property
    def rebuilt_mark(self) -> str:
        return f"barnabas/{self.topic}/generation"

    def rebuilt(self, topic_id: str, *, now_ms: int) -> Self:
        """Return the definition for a table that is emptied and filled again from the topic with this id."""
        return replace(self, generation=max(self.generation + 1, now_ms), topic_id=topic_id, paused=False)

    def errors(self) -> Self:
        """Return the definition of the table of records that do not fit."""
        return replace(
            self,
            url=self.url + ERRORS_SUFFIX,
            table=self.table + ERRORS_SUFFIX if self.table else "",
            mode="append",
            schema="raw",
            partition_by=(),
        )

    def to_json(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        try:
            document: dict[str, Any] = json.loads(data)
            version = document.pop("version")
            if version != _VERSION:
                raise BadDefinition(f"the definition is of version {version}; this program knows {_VERSION}")
            document |= {name: tuple(document[name]) for name in ("key", "partition_by")}
            return cls(**document)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadDefinition(f"not the definition of a table: {error}") from error


def checked(given: Definition) -> Definition:
    """Check the definition and fill in values that follow from others. Raises `BadDefinition`."""
    try:
        check_topic_name(given.topic)
    except Refused as refused:
        raise BadDefinition(str(refused.message)) from None
    if not _NAME.fullmatch(given.name):
        raise BadDefinition(f"--name {given.name!r} is not valid: use letters, digits, '.', '_' and '-'")
    for option, value, known in (
        ("--format", given.format, FORMATS),
        ("--mode", given.mode, MODES),
        ("--schema", given.schema, SCHEMAS),
        ("--envelope", given.envelope, ENVELOPES),
        ("--on-error", given.on_error, ON_ERROR),
        ("--on-data-loss", given.on_loss, ON_LOSS),
    ):
        if value not in known:
            raise BadDefinition(
                f"{option} {value!r} is not valid: use one of {', '.join(known)}{did_you_mean(value, known)}"
            )
    if not given.url:
        raise BadDefinition("--to must name the table's folder or URL, such as file:///lake/orders or s3://lake/orders")
    _check_rows(given)
    if given.compact_files < 0 or given.keep_hours < 1:
        raise BadDefinition(
            "--compact-files must be at least 0, and --keep-hours at least 1: batches in progress have files, too"
        )
    return _with_catalog(replace(given, url=_url(given.url)))


def _check_rows(given: Definition) -> None:
    if given.mode == "append" and (given.key or given.envelope != "none"):
        raise BadDefinition("--key and --envelope are for --mode upsert")
    if given.schema == "raw" and (given.key or given.envelope != "none"):
        raise BadDefinition("--schema raw has no columns of the value: --key and --envelope need json or registry")
    if given.schema == "registry" and "schema.registry.url" not in given.registry:
        raise BadDefinition("--schema registry needs --schema-registry URL")
    if given.schema != "registry" and (given.registry or given.subject):
        raise BadDefinition("--schema-registry, --registry-config and --subject are for --schema registry")
    if given.format == "iceberg" and (dotted := [each for each in given.key if "." in each]):
        raise BadDefinition(
            f"--key {dotted[0]!r} is not valid: Iceberg takes a dot for the path to a field within a field"
        )
    if given.format == "delta" and any("(" in each for each in given.partition_by):
        raise BadDefinition(
            "--partition-by of a Delta table names columns; Iceberg also takes day(column) and the like"
        )


def _with_catalog(given: Definition) -> Definition:
    if given.format == "delta":
        if given.catalog or given.table:
            raise BadDefinition("--catalog and --table are for --format iceberg")
        return given
    table = given.table or f"default.{given.name.replace('.', '_').replace('-', '_')}"
    if table.count(".") < 1:
        raise BadDefinition(f"--table {table!r} is not namespace.name")
    if given.catalog:
        return replace(given, table=table)
    if not given.url.startswith("file://"):
        raise BadDefinition(
            "an Iceberg table in an object store needs a catalog: --catalog type=rest --catalog uri=https://…"
        )
    # On one machine a SQLite file beside the tables is catalog enough.
    folder = given.url.removeprefix("file://").rpartition("/")[0]
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/iceberg.db", "warehouse": f"file://{folder}"}
    return replace(given, table=table, catalog=catalog)


def _url(text: str) -> str:
    """Return a URL; a path of this machine becomes one, too."""
    if "://" in text:
        return text.rstrip("/")
    from pathlib import Path

    return f"file://{Path(text).expanduser().absolute()}"
