"""Write src/barnabas/wire/messages/<api>.py from kio's message schemas.

kio (a development dependency) has one frozen class for each struct *and version*. Here the versions of a struct become one
class.
Each field has the range of its versions, in an order that agrees with all of them. Names are Kafka's own: if kio turned
milliseconds into a timedelta or datetime and dropped the unit from the name, the unit comes back.

    python scripts/generate_messages.py            # rewrites the modules and the index
    python scripts/generate_messages.py --check    # says whether they are up to date

The messages that kio lacks (it follows Kafka 4: no LeaderAndIsr and the like, no records of internal topics) are written by
hand beside the generated modules, which name this script in their first line.
"""

import argparse
import datetime
import subprocess
import sys
import tempfile
import types
import uuid
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from graphlib import TopologicalSorter
from importlib.metadata import version as package_version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from kio.index import load_entity_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

TARGET = Path(__file__).resolve().parent.parent / "src/barnabas/wire/messages"

#: Schemas without an API key that a broker in ZooKeeper mode uses. The others belong to KRaft.
DATA_SCHEMAS = (
    "consumer_protocol_assignment",
    "consumer_protocol_subscription",
    "default_principal_data",
    "end_txn_marker",
)

#: Messages of Kafka 3.9 that Kafka 4 lacks, and our own, written by hand in modules with these names.
HAND_WRITTEN = {
    4: ("leader_and_isr", "LeaderAndIsr", 0, 7, 4, 4),
    5: ("stop_replica", "StopReplica", 0, 4, 2, 2),
    6: ("update_metadata", "UpdateMetadata", 0, 8, 6, 6),
    7: ("controlled_shutdown", "ControlledShutdown", 0, 3, 3, 3),
    # Our own messages: links, metrics of clients, brokers about each other. Far above Kafka's keys, because other brokers also
    # number their own messages.
    10000: ("create_link", "CreateLink", 0, 0, 0, 0),
    10001: ("describe_links", "DescribeLinks", 0, 0, 0, 0),
    10002: ("alter_link", "AlterLink", 0, 0, 0, 0),
    10003: ("delete_link", "DeleteLink", 0, 0, 0, 0),
    10004: ("renew_leader_epoch", "RenewLeaderEpoch", 0, 0, 0, 0),
    10005: ("describe_client_metrics", "DescribeClientMetrics", 0, 0, 0, 0),
    10006: ("report_to_neighbour", "ReportToNeighbour", 0, 0, 0, 0),
    10007: ("describe_neighbours", "DescribeNeighbours", 0, 0, 0, 0),
}

#: Lists of structs that are null by default: kio does not keep that default.
NULL_BY_DEFAULT = {
    ("ListPartitionReassignmentsRequest", "topics"),
    ("ConsumerGroupHeartbeatRequest", "topic_partitions"),
    ("StreamsGroupHeartbeatRequest", "active_tasks"),
    ("StreamsGroupHeartbeatRequest", "standby_tasks"),
    ("StreamsGroupHeartbeatRequest", "warmup_tasks"),
    ("StreamsGroupHeartbeatRequest", "client_tags"),
    ("StreamsGroupHeartbeatRequest", "task_offsets"),
    ("StreamsGroupHeartbeatRequest", "task_end_offsets"),
    ("StreamsGroupHeartbeatResponse", "status"),
    ("StreamsGroupHeartbeatResponse", "active_tasks"),
    ("StreamsGroupHeartbeatResponse", "standby_tasks"),
    ("StreamsGroupHeartbeatResponse", "warmup_tasks"),
    ("StreamsGroupHeartbeatResponse", "partitions_by_user_endpoint"),
}

#: Converts kio's kafka_type. Its error codes, durations and times are plain integers on the wire.
PRIMITIVES = {
    "bool": "bool",
    "int8": "int8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "int64": "int64",
    "float64": "float64",
    "uuid": "uuid",
    "string": "string",
    "bytes": "bytes",
    "records": "records",
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
IN_MILLISECONDS = {"timedelta_i32", "timedelta_i64", "datetime_i64"}
PYTHON_TYPES = {
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes | memoryview | RecordsRef",
}
IMPLICIT_DEFAULTS = {
    "bool": False,
    "float64": 0.0,
    "uuid": bytes(16),
    "string": "",
    "bytes": b"",
    "records": None,
}


class NewField(NamedTuple):
    struct: str
    name: str
    type: str
    #: The field before it.
    after: str
    default: object
    is_nullable: bool = False


class NewVersion(NamedTuple):
    """A version that follows the last one of kio: the same message, with more fields and without some."""

    version: int
    fields: tuple[NewField, ...] = ()
    #: Structs and names.
    gone: tuple[tuple[str, str], ...] = ()


#: Versions of Kafka 4.4, which kio lacks so far, by schema and kind.
NEWER: dict[tuple[str, EntityType], NewVersion] = {
    # KIP-1242: the broker that the client means to connect to.
    ("api_versions", EntityType.request): NewVersion(
        5,
        (
            NewField("ApiVersionsRequest", "cluster_id", "string", "client_software_version", None, is_nullable=True),
            NewField("ApiVersionsRequest", "node_id", "int32", "cluster_id", -1),
        ),
    ),
    ("api_versions", EntityType.response): NewVersion(5),
    # KIP-1319: topics have ids instead of names.
    ("txn_offset_commit", EntityType.request): NewVersion(
        6,
        (NewField("TxnOffsetCommitRequestTopic", "topic_id", "uuid", "name", bytes(16)),),
        gone=(("TxnOffsetCommitRequestTopic", "name"),),
    ),
    ("txn_offset_commit", EntityType.response): NewVersion(
        6,
        (NewField("TxnOffsetCommitResponseTopic", "topic_id", "uuid", "name", bytes(16)),),
        gone=(("TxnOffsetCommitResponseTopic", "name"),),
    ),
    # KIP-1331.
    ("delete_groups", EntityType.request): NewVersion(3),
    ("delete_groups", EntityType.response): NewVersion(
        3, (NewField("DeletableGroupResult", "error_message", "string", "error_code", None, is_nullable=True),)
    ),
}


@dataclass
class FieldOverVersions:
    name: str
    type: str  # a primitive's name, or a struct's
    is_struct: bool
    is_array: bool
    default: object
    tag: int | None
    versions: list[int] = field(default_factory=list)
    nullable: list[int] = field(default_factory=list)


@dataclass
class StructOverVersions:
    name: str
    fields: dict[str, FieldOverVersions] = field(default_factory=dict)
    #: The field names of each version in order; the canonical order must agree with all of them.
    orders: list[list[str]] = field(default_factory=list)

    def ordered_fields(self) -> list[FieldOverVersions]:
        sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(self.fields, ()))
        for order in self.orders:
            for before, after in pairwise(order):
                sorter.add(after, before)
        # Deterministic: among the names that may come next, take the one seen first (in the oldest version).
        rank = {name: at for at, name in enumerate(self.fields)}
        sorter.prepare()
        ready: list[str] = []
        result = []
        while sorter.is_active():
            ready.extend(sorter.get_ready())
            ready.sort(key=rank.__getitem__)
            name = ready.pop(0)
            result.append(self.fields[name])
            sorter.done(name)
        return result


@dataclass
class MessageOverVersions:
    """A request, a response or a data schema, with its structs: the innermost first, itself last."""

    structs: dict[str, StructOverVersions] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    flexible: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return list(self.structs)[-1]

    @property
    def flexible_from(self) -> int:
        return min(self.flexible, default=max(self.versions) + 1)


def split_type(annotation: Any) -> tuple[Any, bool, bool]:
    """Convert `tuple[X, ...] | None` to X, whether it is an array, and whether it can be null."""
    nullable = False
    if get_origin(annotation) is types.UnionType:
        inner = [each for each in get_args(annotation) if each is not types.NoneType]
        nullable = len(inner) < len(get_args(annotation))
        (annotation,) = inner
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0], True, nullable
    return annotation, False, nullable


def plain_value(value: object) -> object:
    """Convert kio's value to the value on the wire."""
    match value:
        case bool() | float():
            return value
        case int():
            return int(value)
        case str():
            return str(value)
        case datetime.timedelta():
            return round(value / datetime.timedelta(milliseconds=1))
        case uuid.UUID():
            return value.bytes
        case tuple() if not value:
            return list
        case bytes():
            return bytes(value)
    raise TypeError(f"no plain form of {value!r}")


def default_of(entry: Field[Any], type_: str, *, is_array: bool, is_struct: bool) -> object:
    """Return the schema's default: an explicit one, else empty. `list` means a new list, `...` a new struct."""
    tagged = "tag" in entry.metadata
    if is_struct and not is_array and (tagged or entry.default is None):
        return None
    if entry.default is MISSING:
        if is_array:
            return list
        return ... if is_struct else IMPLICIT_DEFAULTS.get(type_, 0)
    if entry.default is None:
        # kio uses None for -1 (times) or zeros (uuids) on the wire.
        return None if is_array or type_ in ("string", "bytes", "records") else {"uuid": bytes(16)}.get(type_, -1)
    return plain_value(entry.default)


def collect(message: MessageOverVersions, cls: type, version: int) -> None:
    """Add one version of a struct, after its inner structs."""
    order = []
    for entry in fields(cls):
        inner, is_array, nullable = split_type(entry.type)
        is_struct = is_dataclass(inner)
        if is_struct:
            collect(message, inner, version)
        kafka_type: str = entry.metadata.get("kafka_type", "")
        type_ = inner.__name__ if is_struct else PRIMITIVES[kafka_type]
        # kio avoids the names of builtins (`type_`), and splits KRaft into two words.
        name = entry.name.removesuffix("_").replace("k_raft_", "kraft_")
        if kafka_type in IN_MILLISECONDS and not name.endswith("_ms"):
            name += "_ms"
        tag = entry.metadata.get("tag")
        default = default_of(entry, type_, is_array=is_array, is_struct=is_struct)
        if (cls.__name__, name) in NULL_BY_DEFAULT:
            default = None
        struct = message.structs.setdefault(cls.__name__, StructOverVersions(cls.__name__))
        ours = struct.fields.setdefault(name, FieldOverVersions(name, type_, is_struct, is_array, default, tag))
        if (ours.type, ours.is_array, ours.default, ours.tag) != (type_, is_array, default, tag):
            raise SystemExit(f"{cls.__module__}.{cls.__name__}.{entry.name} is not what it was in another version")
        if version not in ours.versions:
            ours.versions.append(version)
        # In kio an optional uuid or time has a sentinel, and an optional tagged struct may be absent.
        can_be_null = is_array or type_ in ("string", "bytes", "records") or (is_struct and tag is None)
        if nullable and can_be_null and version not in ours.nullable:
            ours.nullable.append(version)
        order.append(name)
    struct = message.structs.setdefault(cls.__name__, StructOverVersions(cls.__name__))
    struct.orders.append(order)


def load_message(schema: str, kind: EntityType) -> MessageOverVersions:
    message = MessageOverVersions()
    for version in sorted(schema_name_map[schema]):
        cls = load_entity_schema(schema, version, kind)  # type: ignore[arg-type]
        collect(message, cls, version)
        message.versions.append(version)
        if cls.__flexible__:
            message.flexible.append(version)
        # An inner struct may first appear in a later version, so put the message itself last again.
        message.structs[cls.__name__] = message.structs.pop(cls.__name__)
    newer = NEWER.get((schema, kind))
    if newer is not None:
        add_version(message, newer)
    return message


def add_version(message: MessageOverVersions, newer: NewVersion) -> None:
    last = message.versions[-1]
    if newer.version != last + 1:
        raise SystemExit(
            f"{message.name}: kio has version {last} by now, so version {newer.version} is no addition to it"
        )
    message.versions.append(newer.version)
    if last in message.flexible:
        message.flexible.append(newer.version)
    for struct in message.structs.values():
        for each in struct.fields.values():
            for versions in (each.versions, each.nullable):
                if last in versions and (struct.name, each.name) not in newer.gone:
                    versions.append(newer.version)
    for new in newer.fields:
        struct = message.structs[new.struct]
        added = FieldOverVersions(new.name, new.type, False, False, new.default, None, [newer.version])
        if new.is_nullable:
            added.nullable.append(newer.version)
        struct.fields[new.name] = added
        order = list(struct.orders[-1])
        order.insert(order.index(new.after) + 1, new.name)
        struct.orders.append(order)


def version_range(versions: list[int], message: MessageOverVersions, where: str) -> str:
    low, high = versions[0], versions[-1]
    if versions != list(range(low, high + 1)):
        raise SystemExit(f"{where}: versions {versions} have a hole")
    if high == message.versions[-1]:
        return f"{low}+"
    return f"{low}" if low == high else f"{low}-{high}"


class ModuleSource:
    """The source of one module under construction."""

    def __init__(self, first_line: str) -> None:
        self._first_line = first_line
        self._helpers: set[str] = set()
        self._classes: list[str] = []

    def add(self, message: MessageOverVersions, renames: dict[str, str], *, api_key: int | None) -> None:
        for name in sorted_structs(message):
            is_top = name == message.name
            base = "Message" if not is_top else "Record" if api_key is None else "ApiMessage"
            self._helpers.add(base)
            lines = [f"class {renames.get(name, name)}({base}):"]
            if is_top:
                if api_key is not None:
                    lines.append(f"    API_KEY: ClassVar[int] = {api_key}")
                lines += [
                    f"    MIN_VERSION: ClassVar[int] = {message.versions[0]}",
                    f"    MAX_VERSION: ClassVar[int] = {message.versions[-1]}",
                    f"    FLEXIBLE_FROM: ClassVar[int] = {message.flexible_from}",
                ]
            body = [self._field(each, message, name, renames) for each in message.structs[name].ordered_fields()]
            if is_top and body:
                lines.append("")
            if not is_top and not body:
                lines.append('    """No fields of its own in any version."""')
            self._classes.append("\n".join(lines + body))

    def _field(
        self, each: FieldOverVersions, message: MessageOverVersions, struct: str, renames: dict[str, str]
    ) -> str:
        where = f"{struct}.{each.name}"
        type_ = renames.get(each.type, each.type) if each.is_struct else repr(each.type)
        python = type_ if each.is_struct else PYTHON_TYPES.get(each.type, "int")
        if each.is_array:
            python = f"list[{python}]"
        if each.nullable or each.default is None:
            python += " | None"
        if each.type == "records":
            self._helpers.add("RecordsRef")
        helper = "array" if each.is_array else "struct" if each.is_struct else "wire"
        self._helpers.add(helper)
        arguments = [type_, repr(version_range(each.versions, message, where))]
        implicit: object
        if each.is_array:
            implicit = list
        elif each.is_struct:
            implicit = None if each.tag is not None else ...
        else:
            implicit = IMPLICIT_DEFAULTS.get(each.type, 0)
        if each.default != implicit:
            arguments.append(f"default={each.default!r}")
        if each.nullable:
            arguments.append(f"nullable={version_range(each.nullable, message, where)!r}")
        if each.tag is not None:
            arguments.append(f"tag={each.tag}")
        return f"    {each.name}: {python} = {helper}({', '.join(arguments)})"

    def text(self) -> str:
        lines = [f'"""{self._first_line}"""', "", "from typing import ClassVar", ""]
        lines.append(f"from barnabas.wire.messages.base import {', '.join(sorted(self._helpers))}")
        return "\n".join(lines) + "\n\n\n" + "\n\n\n".join(self._classes) + "\n"


def sorted_structs(message: MessageOverVersions) -> list[str]:
    """Put inner structs before the structs that use them; otherwise keep their order."""
    graph = {
        name: [each.type for each in struct.fields.values() if each.is_struct]
        for name, struct in message.structs.items()
    }
    return list(TopologicalSorter(graph).static_order())


def camel(schema: str) -> str:
    return "".join(word.title() for word in schema.split("_"))


def generate() -> dict[str, str]:
    """Return unformatted source by file name."""
    source = "Generated by scripts/generate_messages.py: do not edit."
    files: dict[str, str] = {}
    index: dict[int, tuple[str, str, int, int, int, int]] = dict(HAND_WRITTEN)
    for api_key, schema in sorted(api_key_map.items()):
        request = load_message(schema, EntityType.request)
        response = load_message(schema, EntityType.response)
        if request.versions != response.versions:
            raise SystemExit(f"{schema}: request and response have different versions")
        name = request.name.removesuffix("Request")
        module = ModuleSource(f"{name}, API key {api_key}. {source}")
        # Two structs with one name in one API get the direction as prefix.
        shared = request.structs.keys() & response.structs.keys()
        module.add(request, {each: f"Request{each}" for each in shared}, api_key=api_key)
        module.add(response, {each: f"Response{each}" for each in shared}, api_key=api_key)
        files[f"{schema}.py"] = module.text()
        index[api_key] = (
            schema,
            name,
            request.versions[0],
            request.versions[-1],
            request.flexible_from,
            response.flexible_from,
        )
    for schema in DATA_SCHEMAS:
        message = load_message(schema, EntityType.data)
        module = ModuleSource(f"{message.name}. {source}")
        module.add(message, {}, api_key=None)
        files[f"{schema}.py"] = module.text()
    files["index.py"] = index_text(index, source)
    return files


def index_text(index: dict[int, tuple[str, str, int, int, int, int]], source: str) -> str:
    lines = [
        f'"""Every API, without loading its messages. {source}"""',
        "",
        "from typing import NamedTuple",
        "",
        "",
        "class IndexEntry(NamedTuple):",
        "    module: str",
        "    name: str",
        "    min_version: int",
        "    max_version: int",
        "    request_flexible_from: int",
        "    response_flexible_from: int",
        "",
        "",
        "#: By API key.",
        "INDEX: dict[int, IndexEntry] = {",
        *(f"    {key}: IndexEntry{entry!r}," for key, entry in sorted(index.items())),
        "}",
    ]
    return "\n".join(lines) + "\n"


def formatted(files: dict[str, str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        ruff = [sys.executable, "-m", "ruff"]
        options = ["--quiet", "--config", str(TARGET.parents[3] / "pyproject.toml"), folder]
        subprocess.run([*ruff, "check", "--fix", "--select", "I", *options], check=True)
        subprocess.run([*ruff, "format", *options], check=True)
        return {name: (Path(folder) / name).read_text() for name in files}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file would change")
    arguments = parser.parse_args()
    files = formatted(generate())
    changed = [
        name for name, text in files.items() if not (TARGET / name).exists() or (TARGET / name).read_text() != text
    ]
    if not arguments.check:
        for name in changed:
            (TARGET / name).write_text(files[name])
    print(f"{len(files)} modules from kio {package_version('kio')}, {len(changed)} changed")
    return 1 if arguments.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
