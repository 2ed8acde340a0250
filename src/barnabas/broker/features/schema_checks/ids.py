"""Which schema ids the registry has under which subjects. Answers are kept, so that a broker seldom asks.

That an id is registered is kept for an hour, and then looked up again while records are still taken: the registry may be away.
That it is not is kept for seconds: whoever registers the schema then should not have to wait. Owner: the event loop; the
registry is asked on threads.
"""

import asyncio
import base64
import itertools
import json
import logging
import ssl
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from barnabas.base.clock import Clock
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.log_config import RECORD_NAME, TOPIC_NAME
from barnabas.base.errors import BarnabasError, Malformed
from barnabas.broker.features.schema_checks.names import AVRO, PROTOBUF, message_names, record_names
from barnabas.broker.runtime.tasks import Spawn
from barnabas.client.web import WebFailed, load

log = logging.getLogger(__name__)

KNOWN_S: Final = 3600.0
UNKNOWN_S: Final = 5.0
#: How often ids that were known for long enough are looked up again, and how many at a time.
LOOK_AGAIN_S: Final = 60.0
_AGAIN_MAX: Final = 100
#: After the registry could not be reached, it is left alone for so long: each request to it may hang.
UNREACHABLE_S: Final = 1.0
_TIMEOUT_MS: Final = 5_000
#: For all of an answer: who sends it byte by byte is not waited for.
_ANSWER_S: Final = 15.0
#: A schema of a megabyte, as JSON within JSON.
_ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
#: Of all topics together. Only what is registered counts as known, so nobody fills this up in normal use.
KNOWN_MAX: Final = 100_000
UNKNOWN_MAX: Final = 10_000
#: Questions to the registry at the same time.
_QUESTIONS_MAX: Final = 4
#: "Schema not found", "Subject not found", "Subject does not have subject-level compatibility configured".
_NOT_FOUND: Final = frozenset({40401, 40403, 40408})


class Unreachable(BarnabasError):
    """The registry gives no answer that says anything about a schema."""


class Subjects(NamedTuple):
    """Where the schemas of a topic's keys, or of its values, are registered."""

    topic: str
    is_key: bool
    #: Of `barnabas.value.subject.name.strategy`.
    strategy: str

    def named(self, record_names: Collection[str]) -> set[str]:
        if self.strategy == TOPIC_NAME:
            return {f"{self.topic}-{'key' if self.is_key else 'value'}"}
        if self.strategy == RECORD_NAME:
            return set(record_names)
        return {f"{self.topic}-{name}" for name in record_names}

    def __str__(self) -> str:
        if self.strategy == TOPIC_NAME:
            (subject,) = self.named(())
            return f"subject {subject}"
        return f"the subject of its {'key' if self.is_key else 'value'} ({self.strategy})"


def id_of(prefix: bytes) -> int:
    return int.from_bytes(prefix[1:], "big", signed=True)


class SchemaIds:
    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        self._config = config
        self._clock = clock
        self._spawn = spawn
        #: How records with registered schemas begin, and until when that is sure.
        self._known: dict[Subjects, dict[bytes, float]] = {}
        self._known_count = 0
        self._look_again_s = clock.monotonic_s() + LOOK_AGAIN_S
        #: Oldest first: until when an id is known not to be registered.
        self._unknown: dict[tuple[Subjects, bytes], float] = {}
        self._asked: dict[tuple[Subjects, bytes], asyncio.Future[bool]] = {}
        self._questions = asyncio.Semaphore(_QUESTIONS_MAX)
        self._unreachable_until_s = 0.0

    def known(self, subjects: Subjects) -> dict[bytes, float]:
        """How records may begin; it stays current until `drop`."""
        return self._known.setdefault(subjects, {})

    def drop(self, subjects: Subjects) -> None:
        self._known_count -= len(self._known.pop(subjects, ()))

    def forget(self) -> None:
        """All answers: there are too many, or the registry is another one now."""
        for prefixes in self._known.values():
            prefixes.clear()
        self._known_count = 0
        self._unknown.clear()
        self._unreachable_until_s = 0.0

    def look_again(self) -> None:
        """Now and then, while records come: ids that have been known for long may have been deleted."""
        now_s = self._clock.monotonic_s()
        if now_s < self._look_again_s:
            return
        self._look_again_s = now_s + LOOK_AGAIN_S
        old = (
            (each, prefix) for each, known in self._known.items() for prefix, until in known.items() if until <= now_s
        )
        for subjects, prefix in list(itertools.islice(old, _AGAIN_MAX)):
            self._known[subjects][prefix] = now_s + LOOK_AGAIN_S
            self._spawn(self._again(subjects, prefix), f"look up schema {prefix.hex()} again")

    async def _again(self, subjects: Subjects, prefix: bytes) -> None:
        try:
            await self._ask_once(subjects, prefix)
        except Unreachable as error:
            log.warning("schema %d of %s still counts as registered: %s", id_of(prefix), subjects, error)

    async def is_registered(self, subjects: Subjects, prefix: bytes) -> bool:
        """:raises Unreachable: where nobody can say."""
        if prefix in self._known.get(subjects, ()):
            return True
        if self._unknown.get((subjects, prefix), 0.0) > self._clock.monotonic_s():
            return False
        return await self._ask_once(subjects, prefix)

    async def _ask_once(self, subjects: Subjects, prefix: bytes) -> bool:
        """Those who ask the same at the same time get the same answer."""
        key = (subjects, prefix)
        under_way = self._asked.get(key)
        if under_way is None:
            under_way = self._asked[key] = asyncio.get_running_loop().create_future()
            self._spawn(self._answer(key, under_way), f"look up schema {id_of(prefix)}")
        return await asyncio.shield(under_way)

    async def _answer(self, key: tuple[Subjects, bytes], asked: "asyncio.Future[bool]") -> None:
        try:
            async with self._questions:
                found = await self._ask(*key)
        except Unreachable as error:
            asked.set_exception(error)
            asked.exception()  # whoever waits gets it; nobody may be waiting any more
        else:
            self._note(*key, found)
            asked.set_result(found)
        finally:
            del self._asked[key]
            asked.cancel()

    def _note(self, subjects: Subjects, prefix: bytes, found: bool) -> None:
        now_s = self._clock.monotonic_s()
        known = self._known.get(subjects)
        if known is None:
            return  # the topic is not checked any more
        if known.pop(prefix, None) is not None:
            self._known_count -= 1
        self._unknown.pop((subjects, prefix), None)
        if found:
            if self._known_count >= KNOWN_MAX:
                self.forget()
            known[prefix] = now_s + KNOWN_S
            self._known_count += 1
        else:
            if len(self._unknown) >= UNKNOWN_MAX:
                del self._unknown[next(iter(self._unknown))]
            self._unknown[subjects, prefix] = now_s + UNKNOWN_S

    # -- the registry -----------------------------------------------------------------------------------------------------

    async def _ask(self, subjects: Subjects, prefix: bytes) -> bool:
        schema_id = id_of(prefix)
        if self._clock.monotonic_s() < self._unreachable_until_s:
            raise Unreachable("the schema registry could not be reached a moment ago")
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await asyncio.to_thread(_look_up, self._config(), subjects, schema_id)
        except (Unreachable, TimeoutError) as cause:
            error = cause if isinstance(cause, Unreachable) else Unreachable(f"no answer within {_ANSWER_S:.0f} s")
            self._unreachable_until_s = self._clock.monotonic_s() + UNREACHABLE_S
            log.warning("no answer about schema %d of %s: %s", schema_id, subjects, error)
            raise error from None


def _look_up(config: BrokerConfig, subjects: Subjects, schema_id: int) -> bool:
    """Blocking: on a thread."""
    found = _get(config, f"schemas/ids/{schema_id}/subjects")
    if found is None:
        return False
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise Unreachable("the schema registry answers with something else than subjects")
    names: set[str] = set()
    if subjects.strategy != TOPIC_NAME:
        names = _names(config, schema_id)
    wanted = subjects.named(names)
    return not wanted.isdisjoint(found) or any(
        alias in found for subject in sorted(wanted) if (alias := _alias(config, subject))
    )


def _names(config: BrokerConfig, schema_id: int) -> set[str]:
    schema = _get(config, f"schemas/ids/{schema_id}")
    if not isinstance(schema, dict):
        return set()
    schema_type = str(schema.get("schemaType") or AVRO)
    if schema_type != PROTOBUF:
        return record_names(schema_type, str(schema.get("schema")))
    schema = _get(config, f"schemas/ids/{schema_id}?format=serialized")
    if not isinstance(schema, dict):
        return set()
    try:
        return message_names(base64.b64decode(str(schema.get("schema")), validate=True))
    except (ValueError, Malformed) as error:
        raise Unreachable(
            f"the schema registry's form of Protobuf schema {schema_id} cannot be read: {error}"
        ) from None


def _alias(config: BrokerConfig, subject: str) -> str | None:
    settings = _get(config, f"config/{quote(subject, safe='', errors='replace')}")
    return settings.get("alias") if isinstance(settings, dict) else None


def _get(config: BrokerConfig, path: str) -> Any:
    """JSON; None where the registry says that there is no such thing."""
    urls = config.barnabas_schema_registry_url
    reasons = [] if urls else ["barnabas.schema.registry.url is not set on this broker"]
    for url in urls:
        try:
            document = load(
                f"{url.rstrip('/')}/{path}",
                headers=_headers(config),
                timeout_ms=_TIMEOUT_MS,
                tls=_context(config.barnabas_schema_registry_ssl_ca_location),
                bytes_max=_ANSWER_BYTES_MAX,
            )
            return json.loads(document)
        except WebFailed as error:
            if _error_code(error.document) in _NOT_FOUND:
                return None
            reasons.append(str(error))
        except (ValueError, RecursionError):
            reasons.append(f"{url} does not answer as a registry does")
    raise Unreachable("; ".join(reasons))


@cache
def _context(path: str | None) -> ssl.SSLContext | None:
    if path is None:
        return None
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise Unreachable(f"barnabas.schema.registry.ssl.ca.location={path}: {error}") from None


def _headers(config: BrokerConfig) -> dict[str, str]:
    accept = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    token, user = (
        config.barnabas_schema_registry_bearer_auth_token,
        config.barnabas_schema_registry_basic_auth_user_info,
    )
    if token is not None:
        return accept | {"Authorization": f"Bearer {token.value}"}
    if user is not None:
        return accept | {"Authorization": f"Basic {base64.b64encode(user.value.encode()).decode()}"}
    return accept


def _error_code(document: bytes) -> int | None:
    try:
        answer = json.loads(document)
    except (ValueError, RecursionError):
        return None
    return answer.get("error_code") if isinstance(answer, dict) else None
