"""`barnabas schemas`: register, get, list, check, delete, export and import schemas of a registry."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json import dumps, loads
from pathlib import Path
from typing import Any, Final

from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json
from barnabas.cli.tool import JSON, Argument, Option, Tool, at_least_one
from barnabas.client.registry import RegistryClient, RegistryRefused

_BY_SUFFIX: Final = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
_SCHEMA_MEMBERS: Final = ("schemaType", "references", "metadata", "ruleSet", "schema")


def _connect(url: str, user: str | None, token: str | None, ssl_ca: Path | None) -> RegistryClient:
    return RegistryClient(url, user=user, token=token, ca=ssl_ca)


def _reference(text: str) -> dict[str, Any]:
    name, _, place = text.partition("=")
    subject, _, version = place.rpartition(":")
    if not name or not subject or not version.isdigit():
        raise UsageError(f"--reference {text}: write NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(version)}


TOOL = Tool(
    note="See [schema registry](schema-registry.md).",
    about="For a registry that speaks Confluent's REST API.",
    connect=_connect,
    arguments=(
        Argument("subject", "A subject.", what="a subject"),
        Argument("file", "A file; - is standard input, or output.", what="a file"),
    ),
    options=(
        Option(
            "--url",
            "The registry's instances.",
            metavar="URL[,…]",
            default="http://localhost:8081",
            env="SCHEMA_REGISTRY_URL",
        ),
        Option("--type", "AVRO, JSON or PROTOBUF; without it, by the file's ending."),
        Option(
            "--reference", "A schema that this one refers to.", _reference, metavar="NAME=SUBJECT:VERSION", many=True
        ),
        Option("--version", "A version of the subject.", metavar="N|latest"),
        Option("--id", "The schema with this id.", int, metavar="N", name="schema_id"),
        Option("--normalize", "Normalize the schema first.", bool),
        Option("--deleted", "Also what is soft-deleted.", bool),
        Option("--permanent", "For good, after a soft delete.", bool),
        Option("--user", "Sign in.", metavar="NAME:PASSWORD", env="SCHEMA_REGISTRY_USER"),
        Option("--token", "Sign in with a bearer token.", env="SCHEMA_REGISTRY_TOKEN"),
        Option("--ssl-ca", "Authorities of the registry's certificate.", Path, metavar="FILE.pem"),
        JSON,
    ),
    examples=(
        "barnabas schemas register orders-value order.avsc",
        "barnabas schemas check orders-value order.avsc",
        "barnabas schemas get orders-value --version 2",
        "barnabas schemas export all.jsonl",
        "barnabas schemas import all.jsonl --url http://other:8081",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The schema in a file, and what the options say of it."""

    file: str
    type: str | None
    reference: Sequence[dict[str, Any]]
    normalize: bool

    def body(self) -> dict[str, Any]:
        text = _read(self.file)
        kind = self.type.upper() if self.type else _BY_SUFFIX.get(Path(self.file).suffix.lower())
        if kind is None:
            raise UsageError(f"the ending of {self.file} does not say what it is: give --type AVRO, JSON or PROTOBUF")
        references = {"references": list(self.reference)} if self.reference else {}
        return {"schema": text, "schemaType": kind, **references}


# -- one schema -------------------------------------------------------------------------------------------------------------


@TOOL.action("register", "Register a schema.", needs=("subject", "file"))
def _register(client: RegistryClient, subject: str, schema: Schema, json: bool) -> None:
    answer = client.ask("POST", "subjects", subject, "versions", body=schema.body(), normalize=schema.normalize or None)
    if json:
        say_json(answer)
    else:
        version = f" version {answer['version']}" if "version" in answer else ""
        say(f"{subject}{version} id {answer['id']}")


@TOOL.action(
    "get",
    "Print a schema.",
    rules=(at_least_one("subject", "--id", says="say a subject, or --id and the schema's id"),),
)
def _get(client: RegistryClient, subject: str | None, schema_id: int | None, version: str | None, json: bool) -> None:
    if schema_id is not None:
        found = client.ask("GET", "schemas", "ids", schema_id)
    else:
        found = client.ask("GET", "subjects", subject or "", "versions", version or "latest")
    if json:
        say_json(found)
    else:
        say(found["schema"].rstrip("\n"))


@TOOL.action("list", "List the subjects, or the versions of one.")
def _list(client: RegistryClient, subject: str | None, deleted: bool, json: bool) -> None:
    path = ["subjects", subject, "versions"] if subject else ["subjects"]
    found = client.ask("GET", *path, deleted=deleted or None)
    if json:
        say_json(found)
    else:
        for each in found:
            say(str(each))


@TOOL.action(
    "check", "Say whether a schema is compatible. Exit status 1 and the reasons if not.", needs=("subject", "file")
)
def _check(client: RegistryClient, subject: str, schema: Schema, version: str | None, json: bool) -> int:
    path = ["compatibility", "subjects", subject, "versions", *([version] if version else [])]
    answer = client.ask("POST", *path, body=schema.body(), verbose=True, normalize=schema.normalize or None)
    if json:
        say_json(answer)
    elif answer["is_compatible"]:
        say("compatible")
    else:
        for message in answer.get("messages", ()):
            say(message)
    return int(not answer["is_compatible"])


@TOOL.action("delete", "Delete a subject, or a version of it.", needs=("subject",))
def _delete(client: RegistryClient, subject: str, version: str | None, permanent: bool, json: bool) -> None:
    path = ["subjects", subject, *(["versions", version] if version else [])]
    deleted = client.ask("DELETE", *path, permanent=permanent or None)
    if json:
        say_json(deleted)
    else:
        numbers = deleted if isinstance(deleted, list) else [deleted]
        say(f"{subject}: {', '.join(map(str, numbers))} {'gone for good' if permanent else 'deleted'}")


# -- all of them ------------------------------------------------------------------------------------------------------------


@TOOL.action("export", "Write all schemas and settings to a file.")
def _export(client: RegistryClient, file: str | None) -> None:
    """Write one JSON object per line: settings first, then schemas by id, so that references precede the schemas that use
    them."""
    lines = list(_exported(client))
    text = "".join(dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    if file is not None and file != "-":
        Path(file).write_text(text)
        say(f"{sum('schema' in line for line in lines)} schemas in {file}")
    else:
        sys.stdout.write(text)


def _exported(client: RegistryClient) -> Iterator[dict[str, Any]]:
    yield {"config": client.ask("GET", "config")}
    versions = client.ask("GET", "schemas", subjectPrefix=":*:", deleted=True)
    for subject in dict.fromkeys(version["subject"] for version in versions):
        try:
            yield {"subject": subject, "config": client.ask("GET", "config", subject)}
        except RegistryRefused as refused:
            if refused.code != 40408:
                raise
    for version in sorted(versions, key=lambda each: (each["id"], each["version"])):
        kept = {name: version[name] for name in _SCHEMA_MEMBERS if name in version}
        place = {name: version[name] for name in ("subject", "version", "id")}
        yield place | kept | ({"deleted": True} if version.get("deleted") else {})


@TOOL.action("import", "Register what `export` has written.", needs=("file",))
def _import(client: RegistryClient, file: str) -> None:
    """Import schemas with their ids and versions. Each subject is in IMPORT mode meanwhile, so it must be new to the
    registry."""
    lines = [loads(line) for line in _read(file).splitlines() if line.strip()]
    schemas = [line for line in lines if "schema" in line]
    subjects = dict.fromkeys(line["subject"] for line in schemas)
    for subject in subjects:
        client.ask("PUT", "mode", subject, body={"mode": "IMPORT"})
    for line in _in_order(schemas):
        body = {name: line[name] for name in (*_SCHEMA_MEMBERS, "id", "version") if name in line}
        client.ask("POST", "subjects", line["subject"], "versions", body=body)
    for line in schemas:
        if line.get("deleted"):
            client.ask("DELETE", "subjects", line["subject"], "versions", line["version"])
    for subject in subjects:
        client.ask("DELETE", "mode", subject)
    for line in lines:
        if "config" in line:
            config = dict(line["config"])
            if "compatibilityLevel" in config:
                config["compatibility"] = config.pop("compatibilityLevel")
            client.ask("PUT", "config", *([line["subject"]] if "subject" in line else []), body=config)
    say(f"{len(schemas)} schemas of {len(subjects)} subjects")


def _in_order(schemas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put references first. An old schema may refer to one with a higher id that was imported before."""
    waiting = {(each["subject"], each["version"]): each for each in schemas}
    ordered: list[dict[str, Any]] = []
    while waiting:
        ready = [
            place
            for place, each in waiting.items()
            if not any((ref["subject"], ref["version"]) in waiting for ref in each.get("references", ()))
        ]
        for place in ready or list(waiting):  # the registry refuses a circle with its own message
            ordered.append(waiting.pop(place))
    return ordered


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: it is not UTF-8") from None
