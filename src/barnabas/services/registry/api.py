"""The REST API, as Confluent's clients use it: translates requests into calls of the node, and results into JSON."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from barnabas import __version__
from barnabas.services.registry import errors, names, reads, settings, writes
from barnabas.services.registry.access import Access
from barnabas.services.registry.content import (
    AVRO,
    SCHEMA_TYPES,
    BadContent,
    Content,
    metadata_of,
    references_of,
    rule_set_of,
)
from barnabas.services.registry.errors import Refusal
from barnabas.services.registry.forwarding import FORWARDED, OFFSET, Forwarder, Unreachable
from barnabas.services.registry.node import PRIMARY_WAIT_S, Node
from barnabas.services.registry.reads import CheckReadable, Filter
from barnabas.services.registry.records import SchemaVersion
from barnabas.services.registry.store import Store
from barnabas.services.registry.web import Application, Request, Response, Route, json_response
from barnabas.services.registry.writes import Decision, Registration

#: Limit of a request's body: a schema of 1 MiB, escaped as JSON within JSON.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
_PRIMARY_UNKNOWN: Final = 50004
_ID_MAX: Final = 2**31 - 1

Operation = Callable[[], Awaitable[tuple[Any, int | None]]]


class Api:
    def __init__(self, node: Node, forwarder: Forwarder, access: Access) -> None:
        self._node = node
        self._forwarder = forwarder
        self._access = access
        self._store: Store = node.store

    def application(
        self, *, body_bytes_max: int = BODY_BYTES_MAX, only_names: Collection[str] | None = None
    ) -> Application:
        return Application(self.routes(), prepare=self._prepare, body_bytes_max=body_bytes_max, only_names=only_names)

    def routes(self) -> list[Route]:
        return [
            Route("GET", "", self._root),
            Route("GET", "subjects", self._list_subjects),
            Route("POST", "subjects/{subject}", self._look_up),
            Route("DELETE", "subjects/{subject}", self._delete_subject),
            Route("GET", "subjects/{subject}/metadata", self._latest_with_metadata),
            Route("GET", "subjects/{subject}/versions", self._list_versions),
            Route("POST", "subjects/{subject}/versions", self._register),
            Route("GET", "subjects/{subject}/versions/{version}", self._get_version),
            Route("DELETE", "subjects/{subject}/versions/{version}", self._delete_version),
            Route("GET", "subjects/{subject}/versions/{version}/schema", self._get_version_text),
            Route("GET", "subjects/{subject}/versions/{version}/referencedby", self._referenced_by),
            Route("GET", "schemas", self._list_schemas),
            Route("GET", "schemas/types", self._list_types),
            Route("GET", "schemas/ids/{id}", self._get_by_id),
            Route("GET", "schemas/ids/{id}/schema", self._get_text_by_id),
            Route("GET", "schemas/ids/{id}/subjects", self._subjects_of_id),
            Route("GET", "schemas/ids/{id}/versions", self._versions_of_id),
            Route("GET", "schemas/guids/{guid}", self._get_by_guid),
            Route("GET", "schemas/guids/{guid}/ids", self._ids_of_guid),
            Route("POST", "compatibility/subjects/{subject}/versions", self._compare),
            Route("POST", "compatibility/subjects/{subject}/versions/{version}", self._compare),
            Route("GET", "config", self._get_config),
            Route("PUT", "config", self._set_config),
            Route("DELETE", "config", self._delete_config),
            Route("GET", "config/{subject}", self._get_config),
            Route("PUT", "config/{subject}", self._set_config),
            Route("DELETE", "config/{subject}", self._delete_config),
            Route("GET", "mode", self._get_mode),
            Route("PUT", "mode", self._set_mode),
            Route("DELETE", "mode", self._delete_mode),
            Route("GET", "mode/{subject}", self._get_mode),
            Route("PUT", "mode/{subject}", self._set_mode),
            Route("DELETE", "mode/{subject}", self._delete_mode),
            Route("GET", "contexts", self._list_contexts),
            Route("DELETE", "contexts/{context}", self._delete_context),
            Route("GET", "v1/metadata/id", self._metadata_id),
            Route("GET", "v1/metadata/version", self._metadata_version),
        ]

    # -- before a request is routed -------------------------------------------------------------------------------------

    async def _prepare(self, request: Request) -> Request:
        request.user = await self._access.sign_in(request.headers.get("authorization"), request.peer_host)
        if request.segments[:1] == ("contexts",) and len(request.segments) > 2:
            _move_to_context(request)
        return request

    async def _subject(self, request: Request, *, writes: bool = False) -> str:
        """Return the subject of the path, its alias resolved. Refuse it if the user may not use it. Reads catch up first."""
        if not writes:
            await self._node.catch_up()
        subject = names.normal(request.path["subject"])
        alias = self._store.configs.get(subject, {}).get("alias")
        if isinstance(alias, str) and alias:
            subject = names.beside(subject, alias)
        self._check(request, subject, writes=writes)
        return subject

    def _settings_subject(self, request: Request, *, writes: bool = False) -> str | None:
        """Return the subject whose settings the path names; None for the default context, which applies to the rest."""
        text = request.path.get("subject")
        subject = None if text is None or text in (":.:", ".", ":.") else names.normal(text)
        if writes or subject is not None:
            self._check(request, subject, writes=writes)
        return subject

    def _check(self, request: Request, subject: str | None, *, writes: bool) -> None:
        if writes or subject is None:
            allowed = self._access.may_write(request.user, subject)
        else:
            allowed = self._access.may_read(request.user, subject)
        if not allowed:
            what = "write" if writes else "read"
            raise Refusal(403, 40301, f"User {request.user} may not {what} {subject or 'what concerns all subjects'}")

    def _may_read(self, request: Request, subject: str) -> bool:
        return self._access.may_read(request.user, subject)

    def _checks(self, request: Request) -> CheckReadable:
        """Return a check for the subjects that references lead to."""
        return partial(self._check, request, writes=False)

    def _readable(self, request: Request, context: str, schema_id: int) -> str | None:
        """Return a subject that has this id and that the user may read."""
        holders = self._store.places_of_id(context, schema_id)
        return next((each for each in holders if self._may_read(request, each)), None)

    # -- writes ---------------------------------------------------------------------------------------------------------

    async def _write(
        self, request: Request, operation: Operation, answer: Callable[[Any], Any] = lambda it: it
    ) -> Response:
        """Write here if this instance is the primary, else forward. Retry during an election: nothing is written yet."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PRIMARY_WAIT_S
        while True:
            primary = await self._node.primary(wait_s=max(deadline_s - loop.time(), 0))
            try:
                if self._node.is_primary:
                    result, offset = await operation()
                    response = json_response(answer(result))
                    if offset is not None:
                        response.headers[OFFSET] = str(offset)
                    return response
                if FORWARDED in request.headers:
                    raise errors.primary_unknown()
                response = await self._forwarder.send(primary, request)
                if not _knows_no_primary(response):
                    return await self._forwarded(response)
                trouble: Exception = errors.primary_unknown()
            except Unreachable as error:
                trouble = errors.forwarding_failed(f"the primary at {error}")
            except Refusal as refusal:
                if refusal.code != _PRIMARY_UNKNOWN:
                    raise
                trouble = refusal
            if FORWARDED in request.headers or loop.time() >= deadline_s:
                raise trouble
            await self._node.other_primary(primary, wait_s=min(0.5, max(deadline_s - loop.time(), 0)))

    async def _forwarded(self, response: Response) -> Response:
        """Wait until this instance has applied the forwarded write, so that the client can read it here at once."""
        if response.status < 300:
            offset = response.headers.pop(OFFSET, None)
            await self._node.applied(int(offset) if offset is not None else None)
        return response

    async def _decide(self, request: Request, operation: Callable[[Store], Decision]) -> Response:
        return await self._write(request, partial(self._node.decide, operation))

    # -- subjects -------------------------------------------------------------------------------------------------------

    async def _root(self, request: Request) -> Response:
        return json_response({})

    async def _list_subjects(self, request: Request) -> Response:
        await self._node.catch_up()
        found = reads.list_subjects(self._store, request.text("subjectPrefix", names.ALL_CONTEXTS), _filter(request))
        return json_response(request.page([each for each in found if self._may_read(request, each)]))

    async def _look_up(self, request: Request) -> Response:
        subject = await self._subject(request)
        content, _, _ = _schema_of(request.json())
        found = await self._node.look_up(
            subject,
            content,
            partial(self._may_read, request),
            self._checks(request),
            normalize=request.flag("normalize"),
            deleted=request.flag("deleted"),
        )
        return json_response(_version_json(found))

    async def _delete_subject(self, request: Request) -> Response:
        subject = await self._subject(request, writes=True)
        permanent = request.flag("permanent")
        return await self._decide(request, lambda store: writes.delete_subject(store, subject, permanent=permanent))

    async def _latest_with_metadata(self, request: Request) -> Response:
        subject = await self._subject(request)
        wanted = dict(zip(request.query.get("key", ()), request.query.get("value", ()), strict=False))
        found = reads.latest_with_metadata(self._store, subject, wanted, deleted=request.flag("deleted"))
        return json_response(_version_json(found))

    # -- versions -------------------------------------------------------------------------------------------------------

    async def _list_versions(self, request: Request) -> Response:
        subject = await self._subject(request)
        found = reads.list_versions(
            self._store, subject, _filter(request), deleted_as_negative=request.flag("deletedAsNegative")
        )
        return json_response(request.page(found))

    async def _register(self, request: Request) -> Response:
        subject = await self._subject(request, writes=True)
        content, version, schema_id = _schema_of(request.json())
        wanted = Registration(subject=subject, content=content, version=version, id=schema_id)
        normalize, check = request.flag("normalize"), self._checks(request)
        if not self._node.is_primary:
            await self._node.catch_up()  # the version may have been deleted meanwhile
            known = await self._node.known_registration(wanted, check, normalize=normalize)
            if known is not None:
                return json_response(_registered_json(content, known))
        register = partial(self._node.register, wanted, check, normalize=normalize, force=request.flag("force"))
        return await self._write(request, register, partial(_registered_json, content))

    async def _find_version(self, request: Request, *, deleted: bool) -> SchemaVersion:
        version = reads.parse_version(request.path["version"])
        subject = await self._subject(request)
        return reads.get_version(self._store, subject, version, deleted=deleted)

    async def _get_version(self, request: Request) -> Response:
        found = await self._find_version(request, deleted=request.flag("deleted"))
        document = _version_json(found)
        document["schema"] = await self._formatted(request, found.subject, found.content)
        return json_response(document)

    async def _get_version_text(self, request: Request) -> Response:
        found = await self._find_version(request, deleted=request.flag("deleted"))
        return Response((await self._formatted(request, found.subject, found.content)).encode("utf-8", "surrogatepass"))

    async def _delete_version(self, request: Request) -> Response:
        subject = await self._subject(request, writes=True)
        version = reads.parse_version(request.path["version"])
        permanent = request.flag("permanent")
        return await self._decide(
            request, lambda store: writes.delete_version(store, subject, version, permanent=permanent)
        )

    async def _referenced_by(self, request: Request) -> Response:
        found = await self._find_version(request, deleted=True)
        referrers = reads.referenced_by(self._store, found.subject, found.version, deleted=request.flag("deleted"))
        ids = {each.id for each in referrers if self._may_read(request, each.subject)}
        return json_response(request.page(sorted(ids)))

    # -- schemas --------------------------------------------------------------------------------------------------------

    async def _list_schemas(self, request: Request) -> Response:
        await self._node.catch_up()
        found = reads.list_schemas(
            self._store,
            request.text("subjectPrefix"),
            deleted=request.flag("deleted"),
            latest_only=request.flag("latestOnly"),
            rule_type=request.text("ruleType"),
        )
        readable = [each for each in found if self._may_read(request, each.subject)]
        return json_response([_version_json(each) for each in request.page(readable)])

    async def _list_types(self, request: Request) -> Response:
        return json_response(["JSON", "PROTOBUF", "AVRO"])

    async def _of_id(self, request: Request) -> tuple[str, int, Content]:
        schema_id = _id(request.path["id"])
        subject = request.text("subject") or None
        context, content = await self._node.by_id(lambda: reads.content_of_id(self._store, schema_id, subject))
        readable = self._readable(request, context, schema_id)
        if readable is None:
            raise errors.schema_not_found(schema_id)
        return readable, schema_id, content

    async def _get_by_id(self, request: Request) -> Response:
        subject, _, content = await self._of_id(request)
        document = {"guid": content.guid, **content.to_json()}
        document["schema"] = await self._formatted(request, subject, content)
        context = names.context_of(subject)
        if request.flag("fetchMaxId") and self._access.may_read_all(request.user, context):
            document["maxId"] = self._store.highest_id(context)
        return json_response(document)

    async def _get_text_by_id(self, request: Request) -> Response:
        subject, _, content = await self._of_id(request)
        return Response((await self._formatted(request, subject, content)).encode("utf-8", "surrogatepass"))

    async def _formatted(self, request: Request, subject: str, content: Content) -> str:
        wanted = request.text("format").strip()
        return (
            content.text if not wanted else await self._node.formatted(subject, content, wanted, self._checks(request))
        )

    async def _places(self, request: Request) -> list[tuple[str, int]]:
        schema_id = _id(request.path["id"])
        await self._node.catch_up()
        found = reads.versions_of_id(
            self._store, schema_id, request.text("subject") or None, deleted=request.flag("deleted")
        )
        context = reads.context_with_id(self._store, schema_id, request.text("subject") or None)
        if context is None or self._readable(request, context, schema_id) is None:
            raise errors.schema_not_found()  # the same answer as for an unknown id: it reveals nothing about other subjects
        return [place for place in found if self._may_read(request, place[0])]

    async def _subjects_of_id(self, request: Request) -> Response:
        found = dict.fromkeys(subject for subject, _ in await self._places(request))
        return json_response(request.page(list(found)))

    async def _versions_of_id(self, request: Request) -> Response:
        found = [{"subject": subject, "version": version} for subject, version in await self._places(request)]
        return json_response(request.page(found))

    async def _get_by_guid(self, request: Request) -> Response:
        guid = request.path["guid"]
        subject, content = await self._node.by_id(partial(self._of_guid, request, guid))
        document = {"guid": content.guid, **content.to_json()}
        document["schema"] = await self._formatted(request, subject, content)
        return json_response(document)

    def _of_guid(self, request: Request, guid: str) -> tuple[str, Content]:
        for context, schema_id in reads.places_of_guid(self._store, guid):
            subject = self._readable(request, context, schema_id)
            content = self._store.content_by_id(context, schema_id)
            if subject is not None and content is not None:
                return subject, content
        raise errors.schema_not_found(guid)

    async def _ids_of_guid(self, request: Request) -> Response:
        await self._node.catch_up()
        found = [
            {"context": context, "id": schema_id}
            for context, schema_id in reads.places_of_guid(self._store, request.path["guid"])
            if self._readable(request, context, schema_id) is not None
        ]
        return json_response(found)

    # -- compatibility --------------------------------------------------------------------------------------------------

    async def _compare(self, request: Request) -> Response:
        subject = await self._subject(request)
        text = request.path.get("version")
        version = None if text is None else reads.parse_version(text)
        content, _, _ = _schema_of(request.json())
        verbose = request.flag("verbose")
        try:
            messages = await self._node.compare(
                subject, content, version, self._checks(request), normalize=request.flag("normalize")
            )
        except Refusal as refusal:
            if not verbose or refusal.code != 42201:
                raise
            messages = [refusal.message]
        answer: dict[str, Any] = {"is_compatible": not messages}
        if verbose:
            answer["messages"] = messages
        return json_response(answer)

    # -- settings -------------------------------------------------------------------------------------------------------

    async def _get_config(self, request: Request) -> Response:
        subject = self._settings_subject(request)
        await self._node.catch_up()
        in_scope = request.flag("defaultToGlobal")
        found = (settings.config_in_scope if in_scope else settings.config)(self._store, subject)
        if found is None:
            raise errors.no_subject_config(str(subject))
        return json_response(found)

    async def _set_config(self, request: Request) -> Response:
        subject = self._settings_subject(request, writes=True)
        document = request.json()
        return await self._decide(request, lambda store: writes.set_config(store, subject, document))

    async def _delete_config(self, request: Request) -> Response:
        subject = self._settings_subject(request, writes=True)
        return await self._decide(request, lambda store: writes.delete_config(store, subject))

    async def _get_mode(self, request: Request) -> Response:
        subject = self._settings_subject(request)
        await self._node.catch_up()
        found = (settings.mode_in_scope if request.flag("defaultToGlobal") else settings.mode)(self._store, subject)
        if found is None:
            raise errors.no_subject_mode(str(subject))
        return json_response({"mode": found})

    async def _set_mode(self, request: Request) -> Response:
        subject = self._settings_subject(request, writes=True)
        mode, force = request.json().get("mode"), request.flag("force")
        return await self._write(request, partial(self._node.set_mode, subject, mode, force=force))

    async def _delete_mode(self, request: Request) -> Response:
        subject = self._settings_subject(request, writes=True)
        recursive = request.flag("recursive")
        return await self._decide(request, lambda store: writes.delete_mode(store, subject, recursive=recursive))

    # -- contexts and the server ----------------------------------------------------------------------------------------

    async def _list_contexts(self, request: Request) -> Response:
        await self._node.catch_up()
        prefix = request.text("contextPrefix")
        found = [each for each in self._store.context_ids() if each.startswith(prefix)]
        with_readable = {names.context_of(each) for each in self._store.subjects if self._may_read(request, each)}
        shown = {names.DEFAULT_CONTEXT} | with_readable
        return json_response(
            request.page([each for each in found if each in shown or self._access.may_read_all(request.user, each)])
        )

    async def _delete_context(self, request: Request) -> Response:
        self._check(request, None, writes=True)
        context = names.context_named(request.path["context"])
        return await self._decide(request, lambda store: writes.delete_context(store, context))

    async def _metadata_id(self, request: Request) -> Response:
        clusters = {"kafka-cluster": self._node.cluster_id, "schema-registry-cluster": self._node.group_id}
        return json_response({"id": "", "scope": {"path": [], "clusters": clusters}})

    async def _metadata_version(self, request: Request) -> Response:
        return json_response({"version": f"barnabas-{__version__}", "commitId": ""})


# -- JSON -------------------------------------------------------------------------------------------------------------------


def _schema_of(document: Mapping[str, Any]) -> tuple[Content, int, int]:
    """Return the schema of a request, its version (0 if the request has none) and its id (-1 if it has none)."""
    text = document.get("schema") or ""
    schema_type = document.get("schemaType") or AVRO
    if isinstance(text, dict | list):
        text = json.dumps(text)  # Confluent also accepts a JSON object in place of a text
    if not isinstance(text, str):
        raise BadContent("schema must be a string")
    if schema_type not in SCHEMA_TYPES:
        raise errors.invalid_schema(f"Invalid schema type {schema_type}")
    content = Content(
        schema_type=schema_type,
        text=text,
        references=references_of(document.get("references")),
        metadata=metadata_of(document.get("metadata")),
        rule_set=rule_set_of(document.get("ruleSet")),
    )
    version, schema_id = _integer(document, "version", 0), _integer(document, "id", -1)
    return content, version, schema_id


def _integer(document: Mapping[str, Any], name: str, default: int) -> int:
    value = document.get(name)
    if value is None:
        return default
    if type(value) is not int or not -1 <= value <= _ID_MAX:
        raise BadContent(f"{name} must be a number")
    return value


def _version_json(version: SchemaVersion) -> dict[str, Any]:
    content = version.content
    document = {
        "subject": version.subject,
        "version": version.version,
        "id": version.id,
        "guid": content.guid,
        **content.to_json(),
        "schema": content.text,
    }
    if version.deleted:
        document["deleted"] = True
    return document


def _registered_json(asked: Content, version: SchemaVersion) -> dict[str, Any]:
    """The answer contains the schema only if settings or the previous version changed it; else a client keeps its own text."""
    content = version.content
    document = {"id": version.id, "version": version.version, "guid": content.guid}
    if not asked.text or (asked.metadata, asked.rule_set) != (content.metadata, content.rule_set):
        document |= {**content.to_json(), "schema": content.text}
    return document


def _id(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,10}", text) or abs(int(text)) > _ID_MAX:
        raise Refusal(404, 404, "HTTP 404 Not Found")
    return int(text)


def _filter(request: Request) -> Filter:
    return Filter(included=request.flag("deleted"), only=request.flag("deletedOnly"))


def _knows_no_primary(response: Response) -> bool:
    return response.status == 500 and f'"error_code":{_PRIMARY_UNKNOWN}'.encode() in response.body


def _move_to_context(request: Request) -> None:
    """Rewrite `/contexts/{context}/subjects/x` to `/subjects/:.{context}:x`; lists and ids are limited to the context."""
    context, rest = request.segments[1], list(request.segments[2:])
    prefix = str(names.Subject(names.context_named(context), ""))
    if rest[0] in ("subjects", "config", "mode") or rest[:2] == ["compatibility", "subjects"]:
        at = 2 if rest[0] == "compatibility" else 1
        if len(rest) > at:
            rest[at] = names.in_context(context, rest[at])
        elif rest[0] in ("config", "mode") and prefix:
            rest.append(prefix)
    if rest[:2] == ["schemas", "ids"]:
        request.query["subject"] = [names.in_context(context, request.text("subject"))]
    elif rest in (["schemas"], ["subjects"]):
        wanted = request.text("subjectPrefix")
        request.query["subjectPrefix"] = [wanted if wanted.startswith(":") else prefix + wanted]
    request.segments = tuple(rest)
