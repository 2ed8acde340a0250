"""`barnabas schemas`: register, get, list, check, delete, export and import schemas of a registry."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json
from barnabas.cli._tool import check_action

if TYPE_CHECKING:
    from barnabas.client.registry import RegistryClient

_BY_SUFFIX: Final = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
_SCHEMA_MEMBERS: Final = ("schemaType", "references", "metadata", "ruleSet", "schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    words: list[str]
    type: str | None
    references: list[str]
    version: str | None
    schema_id: int | None
    normalize: bool
    deleted: bool
    permanent: bool
    json: bool

    def word(self, index: int, what: str) -> str:
        if len(self.words) <= index:
            raise UsageError(f"say {what}; barnabas schemas --help shows how")
        return self.words[index]


def command(
    action: Annotated[str, typer.Argument(help="register, get, list, check, delete, export or import.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="A subject, then a file where one is needed; - is standard input."),
    ] = None,
    url: Annotated[
        str,
        typer.Option(metavar="URL[,…]", envvar="SCHEMA_REGISTRY_URL", help="The registry's instances."),
    ] = "http://localhost:8081",
    schema_type: Annotated[
        str | None, typer.Option("--type", help="AVRO, JSON or PROTOBUF; without it, by the file's ending.")
    ] = None,
    reference: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SUBJECT:VERSION", help="A schema that this one refers to.")
    ] = None,
    version: Annotated[str | None, typer.Option(metavar="N|latest", help="A version of the subject.")] = None,
    schema_id: Annotated[int | None, typer.Option("--id", metavar="N", help="get: the schema with this id.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Normalize the schema first.")] = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="list: also what is soft-deleted.")] = False,
    permanent: Annotated[bool, typer.Option("--permanent", help="delete: for good, after a soft delete.")] = False,
    user: Annotated[
        str | None, typer.Option(metavar="NAME:PASSWORD", envvar="SCHEMA_REGISTRY_USER", help="Sign in.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="SCHEMA_REGISTRY_TOKEN", help="Sign in with a bearer token.")
    ] = None,
    ssl_ca: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="Authorities of the registry's certificate.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Work with the schemas of a registry that speaks Confluent's REST API.

    \b
    barnabas schemas register orders-value order.avsc
    barnabas schemas check orders-value order.avsc
    barnabas schemas get orders-value --version 2
    barnabas schemas export all.jsonl
    barnabas schemas import all.jsonl --url http://other:8081

    The exit status of check is 1 where the schema is not compatible; it prints the reasons.
    """
    from barnabas.client.registry import RegistryClient

    check_action(action, _ACTIONS)
    options = _Options(
        words=words or [],
        type=schema_type.upper() if schema_type else None,
        references=reference or [],
        version=version,
        schema_id=schema_id,
        normalize=normalize,
        deleted=deleted,
        permanent=permanent,
        json=as_json,
    )
    _ACTIONS[action](RegistryClient(url, user=user, token=token, ca=ssl_ca), options)


# -- one schema -------------------------------------------------------------------------------------------------------------


def _register(client: "RegistryClient", options: _Options) -> None:
    subject = options.word(0, "a subject and a file")
    answer = client.ask(
        "POST", "subjects", subject, "versions", body=_schema(options), normalize=options.normalize or None
    )
    if options.json:
        say_json(answer)
    else:
        version = f" version {answer['version']}" if "version" in answer else ""
        say(f"{subject}{version} id {answer['id']}")


def _get(client: "RegistryClient", options: _Options) -> None:
    if options.schema_id is not None:
        found = client.ask("GET", "schemas", "ids", options.schema_id)
    else:
        subject = options.word(0, "a subject, or --id")
        found = client.ask("GET", "subjects", subject, "versions", options.version or "latest")
    if options.json:
        say_json(found)
    else:
        say(found["schema"].rstrip("\n"))


def _list(client: "RegistryClient", options: _Options) -> None:
    if options.words:
        found = client.ask("GET", "subjects", options.words[0], "versions", deleted=options.deleted or None)
    else:
        found = client.ask("GET", "subjects", deleted=options.deleted or None)
    if options.json:
        say_json(found)
    else:
        for each in found:
            say(str(each))


def _check(client: "RegistryClient", options: _Options) -> None:
    subject = options.word(0, "a subject and a file")
    path = ["compatibility", "subjects", subject, "versions", *([options.version] if options.version else [])]
    answer = client.ask("POST", *path, body=_schema(options), verbose=True, normalize=options.normalize or None)
    if options.json:
        say_json(answer)
    elif answer["is_compatible"]:
        say("compatible")
    else:
        for message in answer.get("messages", ()):
            say(message)
    if not answer["is_compatible"]:
        raise typer.Exit(1)


def _delete(client: "RegistryClient", options: _Options) -> None:
    subject = options.word(0, "a subject")
    path = ["subjects", subject, *(["versions", options.version] if options.version else [])]
    deleted = client.ask("DELETE", *path, permanent=options.permanent or None)
    if options.json:
        say_json(deleted)
    else:
        numbers = deleted if isinstance(deleted, list) else [deleted]
        say(f"{subject}: {', '.join(map(str, numbers))} {'gone for good' if options.permanent else 'deleted'}")


def _schema(options: _Options) -> dict[str, Any]:
    file = options.word(1, "a subject and a file")
    text = _read(file)
    kind = options.type or _BY_SUFFIX.get(Path(file).suffix.lower())
    if kind is None:
        raise UsageError(f"the ending of {file} does not say what it is: give --type AVRO, JSON or PROTOBUF")
    body: dict[str, Any] = {"schema": text, "schemaType": kind}
    if options.references:
        body["references"] = [_reference(each) for each in options.references]
    return body


def _reference(text: str) -> dict[str, Any]:
    name, _, place = text.partition("=")
    subject, _, version = place.rpartition(":")
    if not name or not subject or not version.isdigit():
        raise UsageError(f"--reference {text}: write NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(version)}


# -- all of them ------------------------------------------------------------------------------------------------------------


def _export(client: "RegistryClient", options: _Options) -> None:
    """Write one JSON object per line: settings first, then schemas by id, so that references precede the schemas that use
    them."""
    lines = list(_exported(client))
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    if options.words and options.words[0] != "-":
        Path(options.words[0]).write_text(text)
        say(f"{sum('schema' in line for line in lines)} schemas in {options.words[0]}")
    else:
        sys.stdout.write(text)


def _exported(client: "RegistryClient") -> Iterator[dict[str, Any]]:
    from barnabas.client.registry import RegistryRefused

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


def _import(client: "RegistryClient", options: _Options) -> None:
    """Import schemas with their ids and versions. Each subject is in IMPORT mode meanwhile, so it must be new to the
    registry."""
    lines = [json.loads(line) for line in _read(options.word(0, "a file")).splitlines() if line.strip()]
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


_ACTIONS: Final[dict[str, Callable[["RegistryClient", _Options], None]]] = {
    "register": _register,
    "get": _get,
    "list": _list,
    "check": _check,
    "delete": _delete,
    "export": _export,
    "import": _import,
}
