"""Every place where bytes from outside reach code of ours, with the bound that holds there.

The places are found in the source: calls that listen, calls that connect, and decoders. A place that is not in `ENTRIES` fails
this test, and so does an entry without its place. If you add a place, find out what bounds it, and write that down here.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import barnabas

#: Names of constants.
LIMIT: Final = re.compile(r"\b_?[A-Z]+_[A-Z_]+\b")
ROOT: Final = Path(barnabas.__file__).parent

LISTENS: Final = frozenset(
    {"start_server", "start_unix_server", "create_server", "create_unix_server", "connect_accepted_socket", "listen",
     "create_datagram_endpoint", "HTTPServer", "ThreadingHTTPServer"}
)  # fmt: skip
CONNECTS: Final = frozenset(
    {"open_connection", "open_unix_connection", "create_connection", "create_unix_connection", "sock_connect", "urlopen",
     "build_opener", "OpenerDirector", "HTTPConnection", "HTTPSConnection", "KazooClient", "connect", "connect_ex"}
)  # fmt: skip
#: Methods of these modules; `*` for what decodes whatever it is called.
DECODES: Final = {
    "json": {"load", "loads", "JSONDecoder"},
    "pickle": {"*"},
    "marshal": {"*"},
    "plistlib": {"*"},
    "zlib": {"decompress", "decompressobj"},
    "gzip": {"*"},
    "bz2": {"*"},
    "lzma": {"*"},
    "ast": {"literal_eval"},
    "otlp": {"read"},
}
#: Packages that speak a protocol or a format in their own code.
PACKAGES: Final = frozenset(
    {"adbc_driver_manager", "adbc_driver_postgresql", "adbc_driver_sqlite", "aiohttp", "asyncpg", "avro", "celpy", "cramjam",
     "csv", "deltalake", "fastavro", "google", "grpc", "html", "httpx", "jsonschema", "jwt", "kazoo", "lz4", "msgpack",
     "obstore", "orjson", "psycopg", "pyiceberg", "requests", "shelve", "snappy", "socketserver", "starlette", "tarfile",
     "tomllib", "uvicorn", "websockets", "xml", "yaml", "zipfile", "zstandard"}
)  # fmt: skip
#: Parts of packages that are otherwise harmless.
PARTS: Final = frozenset({"pyarrow.json", "pyarrow.csv", "pyarrow.parquet", "http.server", "cryptography.x509"})


def found_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (f"import {name}" for each in names if (name := _foreign(each.name)))
            case ast.ImportFrom(module=str(module), level=0, names=names):
                parts = {module, *(f"{module}.{each.name}" for each in names)}
                yield from (f"import {name}" for part in parts if (name := _foreign(part)))
                methods = DECODES.get(module, set())
                yield from (f"{module}.{each.name}" for each in names if each.name in methods)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if module in DECODES:
                if name in DECODES[module] or "*" in DECODES[module]:
                    yield f"{module}.{name}"
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in LISTENS | CONNECTS:
                yield name


def _foreign(module: str) -> str:
    package = module.partition(".")[0]
    if package in PACKAGES:
        return package
    return module if module in PARTS else ""


def found() -> dict[str, set[str]]:
    places = {}
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        if not module.startswith("wire/messages/") and (entries := set(found_in(path.read_text()))):
            places[module] = entries
    return places


OURS: Final = "bytes that this process, or one of its own on this machine, wrote"
SIMULATED: Final = "the simulated network of a test: no socket is opened"
OWNER: Final = "files and options of the user that starts the program: this user may do worse"
CLIENT: Final = (
    "answers: client.config.DEFAULT_RESPONSE_BYTES_MAX, generated readers that check counts, request.timeout.ms"
)
TARGET: Final = "tables of the pipeline's owner, by the format's own library; its schema is compared before it is used"
DATABASE: Final = "the database of the pipeline's owner, by ADBC; a batch is as large as the owner's query"
TABLES: Final = "records of the tables' own topic: a user who may write there may redefine every table"
ENSEMBLE: Final = "answers of the ZooKeeper ensemble that an administrator names, which is trusted"
WEB: Final = "connections by address and in all, HEAD_S, KEEP_ALIVE_S, STALL_S, BODY_S: services.http"
VALUES: Final = "services.registry.values: depth, values and decimals before fastavro, fields before rows of Protobuf"

ENTRIES: Final[dict[str, dict[str, str]]] = {
    "base/json_reader.py": {
        "json.loads": "DEPTH_MAX before Python reads it; the callers bound the text",
    },
    "base/tls/stores.py": {
        "import cryptography.x509": OWNER,
    },
    "broker/features/client_metrics/api.py": {
        "otlp.read": "metrics of a client: telemetry.max.bytes, EXPANSION_MAX, FIELDS_MAX and SERIES_MAX, on a thread",
    },
    "broker/features/tiered/store.py": {
        "import obstore": "records by ranges that our own metadata has, indexes up to its sizes and _OTHER_PARTS_BYTES_MAX; a"
        " wrong checksum fails the read",
    },
    "broker/parts/listeners.py": {
        "open_connection": CLIENT,
    },
    "broker/server/fault_injection.py": {
        "start_unix_server": "only for tests: a socket in a folder of mode 0700, COMMAND_BYTES_MAX a line",
        "json.loads": "lines of that socket, COMMAND_BYTES_MAX each",
    },
    "broker/features/inside/znodes.py": {
        "json.loads": "a znode, jute.maxbuffer; RecursionError is taken for text",
    },
    "broker/server/listener.py": {
        "listen": "max.connections, by address and in all; socket.request.max.bytes; STRANGERS_BYTES_MAX before authentication",
        "connect_accepted_socket": "the same; AUTHENTICATION_TIMEOUT_S for handshakes",
    },
    "broker/server/metrics_http.py": {
        "start_server": "CONNECTIONS_MAX at once, REQUEST_BYTES_MAX for the head, REQUEST_TIMEOUT_S for all of it",
    },
    "broker/features/schema_checks/names.py": {
        "json.loads": "schemas out of such an answer: RecursionError is taken for no names",
    },
    "broker/parts/listening.py": {
        "listen": "opens what broker/server/listener.py bounds",
    },
    "broker/storage/checkpoints.py": {
        "json.loads": OURS,
    },
    "broker/storage/cleaner/job.py": {
        "json.loads": OURS,
    },
    "broker/zookeeper_client/ensemble.py": {
        "open_connection": "_ANSWER_BYTES_MAX, and MEMBER_TIMEOUT_S for a four-letter word and its answer",
    },
    "broker/zookeeper_client/json_data.py": {
        "json.loads": "znodes, jute.maxbuffer; whatever they hold, only Malformed is raised",
    },
    "broker/zookeeper_client/kazoo_client.py": {
        "import kazoo": "answers of ZooKeeper: jute.maxbuffer of its server; the ensemble is trusted",
        "create_connection": "the same, with the time of the session for connecting",
    },
    "broker/zookeeper_client/security_migration.py": {
        "import kazoo": ENSEMBLE,
        "KazooClient": "the same; a tool of an administrator",
    },
    "cli/_json_files.py": {
        "json.loads": OWNER,
    },
    "cli/_reset_offsets.py": {
        "import csv": OWNER,
    },
    "cli/backup/document.py": {
        "json.loads": OWNER,
    },
    "cli/faults/cluster.py": {
        "connect": OURS,
        "json.loads": OURS,
    },
    "cli/faults/endpoint.py": {
        "import http.server": "on loopback, for `up --faults` alone: CONNECTIONS_MAX at once, WAIT_S for each piece, 64 KiB a"
        " line and 100 lines of head by http.server; nothing is read behind it before the token is right",
        "json.loads": "BODY_BYTES_MAX, after the token; RecursionError is taken for no JSON",
    },
    "cli/fork_server.py": {
        "json.loads": OURS,
    },
    "cli/host/supervisor.py": {
        "urlopen": "pages of its own brokers on this machine, PAGE_TIMEOUT_S",
    },
    "cli/launcher.py": {
        "json.loads": OURS,
    },
    "cli/local_security.py": {
        "json.loads": OURS,
    },
    "cli/running.py": {
        "listen": "a socket in a folder of the user, mode 0700; _REQUEST_BYTES_MAX, _CONNECT_TIMEOUT_S",
        "connect": OURS,
        "json.loads": "lines of that socket and files beside it: the user of the cluster alone can write them",
    },
    "cli/schemas.py": {
        "json.loads": OWNER,
    },
    "cli/snapshots.py": {
        "json.loads": OURS,
    },
    "cli/zookeeper_prompt.py": {
        "import kazoo": "answers of ZooKeeper, for an administrator",
        "KazooClient": ENSEMBLE,
    },
    "cli/zookeeper_shell.py": {
        "connect": ENSEMBLE,
    },
    "client/asynchronous.py": {
        "open_connection": CLIENT,
    },
    "client/blocking.py": {
        "create_connection": CLIENT,
    },
    "client/connection.py": {
        "create_connection": CLIENT,
    },
    "client/core.py": {
        "connect": "decides only: the shells above connect",
    },
    "client/oauth_login.py": {
        "json.loads": "a token of client.web: DOCUMENT_BYTES_MAX; RecursionError is taken for no token",
    },
    "client/web_http.py": {
        "OpenerDirector": "bytes_max of each caller, no redirects, a time for each step and for the whole answer",
        "create_connection": "the sockets of these requests, with a time for the whole answer",
    },
    "services/console/app.py": {
        "import starlette": WEB,
    },
    "services/console/events.py": {
        "import starlette": WEB,
    },
    "services/console/export.py": {
        "import starlette": WEB,
    },
    "services/console/expressions.py": {
        "import celpy": "EXPRESSION_CHARS_MAX; compiled in one thread; elements, work and seconds for each record",
    },
    "services/console/guard.py": {
        "import starlette": WEB,
    },
    "services/console/inside_sources.py": {
        "import httpx": "pages of brokers: _ANSWER_BYTES_MAX, _TIMEOUT_S, no redirects, the depth of json_values",
    },
    "services/console/messages.py": {
        "import starlette": WEB,
    },
    "services/console/parquet.py": {
        "json.loads": OURS,
        "import pyarrow.parquet": "writes what this process has decoded",
    },
    "services/console/server.py": {
        "listen": WEB,
    },
    "services/console/session.py": {
        "import starlette": WEB,
    },
    "services/console/web.py": {
        "import starlette": WEB,
    },
    "services/doctor/files.py": {
        "create_connection": "PROBE_TIMEOUT_S, and nothing is read",
    },
    "services/doctor/zookeeper.py": {
        "open_connection": "CONNECT_TIMEOUT_MS for a four-letter word and its answer",
    },
    "services/registry/access.py": {
        "import tomllib": OWNER,
    },
    "services/registry/election.py": {
        "json.loads": "the size of a request; a member whose metadata is _UNREADABLE is no candidate",
    },
    "services/registry/formats/proto_descriptor.py": {
        "import google": "CHARS_MAX; upb recurses at most 100 deep",
    },
    "services/registry/forwarding.py": {
        "import httpx": "answers of the primary, which the group elected: _CONNECTIONS_MAX, a time, no redirects",
    },
    "services/http/protocol.py": {
        "import uvicorn": WEB,
    },
    "services/http/server.py": {
        "connect_accepted_socket": WEB,
        "import uvicorn": WEB,
        "listen": WEB,
    },
    "services/registry/records.py": {
        "json.loads": "records of _schemas: max.message.bytes; RecursionError is a bad record",
    },
    "services/registry/server.py": {
        "listen": WEB,
    },
    "services/registry/values/avro.py": {
        "import fastavro": VALUES,
    },
    "services/registry/values/protobuf.py": {
        "import google": VALUES,
    },
    "spark/batch_identity.py": {
        "json.loads": OURS,
    },
    "spark/checkpoint.py": {
        "json.loads": OURS,
    },
    "spark/checkpoint_replan.py": {
        "json.loads": OURS,
    },
    "spark/options.py": {
        "json.loads": OWNER,
    },
    "spark/early_worker.py": {
        "connect": OURS,
        "create_connection": OURS,
        "json.loads": OURS,
        "listen": OURS,
    },
    "spark/connect/converters/avro.py": {
        "import fastavro": "writes values of records; their schemas are made here",
    },
    "spark/connect/converters/json_converter.py": {
        "json.loads": "a schema of an envelope that json_reader has read, printed as the key of a cache",
    },
    "spark/connect/debezium/source.py": {
        "connect": "the database that an administrator names",
    },
    "spark/connect/herder.py": {
        "json.loads": "a connector's file that this module wrote",
    },
    "spark/connect/jdbc/sink.py": {
        "connect": "the database that an administrator names",
        "json.loads": "the shape of a row, of the batch's first step",
        "pickle.dumps": "a row that its own second step reads",
        "pickle.loads": "a row of the batch's first step, which this module wrote",
    },
    "spark/connect/jdbc/source.py": {
        "connect": "the database that an administrator names",
    },
    "spark/connect/rest.py": {
        "listen": "_CONNECTIONS_MAX; _BODY_BYTES_MAX a request; HEAD_S and BODY_S of services.http",
    },
    "spark/pipelines/codecs/avro.py": {
        "import fastavro": "writes only; reading is in services.registry.values",
    },
    "spark/pipelines/codecs/avro_types.py": {
        "import fastavro": "validates values that were read within their bounds",
    },
    "spark/pipelines/codecs/protobuf.py": {
        "import google": VALUES,
    },
    "spark/pipelines/codecs/protobuf_types.py": {
        "import google": VALUES,
    },
    "spark/pipelines/database.py": {
        "connect": DATABASE,
    },
    "spark/pipelines/delta_upsert.py": {
        "import deltalake": TARGET,
        "import pyarrow.parquet": TARGET,
    },
    "spark/pipelines/events.py": {
        "json.loads": OURS,
    },
    "spark/pipelines/project.py": {
        "import yaml": OWNER,
    },
    "spark/pipelines/runner.py": {
        "json.loads": OURS,
    },
    "spark/pipelines/sinks/delta_table.py": {
        "import deltalake": TARGET,
        "import pyarrow.parquet": TARGET,
        "json.loads": TARGET,
    },
    "spark/pipelines/sinks/emptying.py": {
        "connect": DATABASE,
        "import deltalake": TARGET,
        "import pyiceberg": TARGET,
    },
    "spark/pipelines/sinks/files.py": {
        "import pyarrow.parquet": "writes what this process has decoded",
    },
    "spark/pipelines/sinks/iceberg_nulls.py": {
        "import pyiceberg": TARGET,
    },
    "spark/pipelines/sinks/iceberg_table.py": {
        "import pyarrow.parquet": TARGET,
        "import pyiceberg": TARGET,
    },
    "spark/pipelines/sinks/sql_table.py": {
        "connect": DATABASE,
    },
    "spark/pipelines/sources/generator.py": {
        "json.loads": OWNER,
    },
    "spark/pipelines/sources/sql_query.py": {
        "connect": DATABASE,
    },
    "spark/pipelines/sources/watched_table.py": {
        "json.loads": "the columns of a publication, as PostgreSQL's catalogue has them",
        "connect": DATABASE,
    },
    "spark/pipelines/sources/watched_tables.py": {
        "connect": "the database that an administrator names",
    },
    "spark/pipelines/status.py": {
        "json.loads": OURS,
    },
    "spark/pipelines/topic_ids.py": {
        "json.loads": OURS,
    },
    "spark/progress.py": {
        "json.loads": OURS,
    },
    "spark/report.py": {
        "json.loads": OURS,
    },
    "spark/segments.py": {
        "json.loads": OWNER,
    },
    "spark/tables/names.py": {
        "json.loads": "a value of the topic; RecursionError leaves the record out of the count",
    },
    "spark/tables/catalogue.py": {
        "json.loads": TABLES,
    },
    "spark/tables/definition.py": {
        "json.loads": TABLES,
    },
    "spark/tables/direct.py": {
        "import pyarrow.json": "columns that are known; unknown ones only where STRUCT_LEVELS_MAX and _NAMES_MAX allow it",
    },
    "spark/tables/filling.py": {
        "json.loads": OURS,
    },
    "spark/tables/places.py": {
        "import deltalake": TARGET,
        "import pyiceberg": TARGET,
        "json.loads": TARGET,
    },
    "spark/tables/renames.py": {
        "json.loads": TARGET,
    },
    "spark/tables/targets.py": {
        "import pyarrow.parquet": TARGET,
        "import pyiceberg": TARGET,
    },
    "spark/tables/upkeep.py": {
        "import deltalake": TARGET,
        "import pyiceberg": TARGET,
    },
    "testing/simulation/guests.py": {
        "connect": SIMULATED,
    },
    "testing/simulation/loop.py": {
        "connect": SIMULATED,
    },
    "testing/simulation/network.py": {
        "listen": SIMULATED,
    },
    "testing/simulation/services.py": {
        "json.loads": SIMULATED,
        "start_server": SIMULATED,
    },
    "testing/simulation/worker.py": {
        "pickle.dumps": OURS,
        "pickle.loads": OURS,
    },
    "testing/simulation/zookeeper.py": {
        "create_connection": SIMULATED,
        "import kazoo": SIMULATED,
    },
    "wire/auth/authority.py": {
        "import cryptography.x509": OURS,
    },
    "wire/auth/jwt.py": {
        "import jwt": "tokens of the size of a SASL message, key sets of DOCUMENT_BYTES_MAX",
        "json.loads": "the same; RecursionError is a token that cannot be read",
    },
    "wire/compression.py": {
        "import cramjam": "max_bytes of what comes out, looked up in the frame or found in small pieces",
        "zlib.decompressobj": "max_bytes of what comes out",
    },
    "zookeeper/server.py": {
        "create_server": "maxClientCnxns by address; jute.maxbuffer; a time without a session; _TURN_BYTES_MAX a turn",
    },
    "zookeeper/takeover.py": {
        "create_connection": "the ensemble that an administrator names: _TIMEOUT_S",
    },
}


def test_every_entry_is_listed_with_its_bound() -> None:
    places, listed = found(), {module: set(entries) for module, entries in ENTRIES.items()}
    new = {f"{module}: {each}" for module, entries in places.items() for each in entries - listed.get(module, set())}
    assert not new, "bytes from outside come in here: write the bound into ENTRIES, once it is true"
    gone = {f"{module}: {each}" for module, entries in listed.items() for each in entries - places.get(module, set())}
    assert not gone, "nothing comes in here any more: take the entry out"


def test_every_entry_says_what_bounds_it() -> None:
    assert not [module for module, entries in ENTRIES.items() if not all(len(bound) > 20 for bound in entries.values())]


def test_the_limits_that_entries_name_are_in_the_source() -> None:
    named = {name for entries in ENTRIES.values() for bound in entries.values() for name in LIMIT.findall(bound)}
    assert len(named) > 15
    text = "\n".join(path.read_text() for path in sorted(ROOT.rglob("*.py")))
    assert not [name for name in sorted(named) if not re.search(rf"^ *{name}\b.*=", text, re.MULTILINE)]


def test_a_new_listener_client_or_decoder_is_found() -> None:
    source = """
import asyncio, fastavro, json
from pickle import loads
from google.protobuf import json_format
from http import server
import xml.etree.ElementTree as tree

async def main():
    await asyncio.start_server(print, port=1)
    reader, writer = await asyncio.open_connection("a", 1)
    json.loads(await reader.read())
    pickle.Unpickler(reader)
    import httpx
"""
    assert set(found_in(source)) >= {
        "start_server", "open_connection", "json.loads", "import fastavro", "import google", "import http.server",
        "import xml", "pickle.Unpickler", "import httpx",
    }  # fmt: skip
