"""Cache of schema ids and the subjects that they are registered under, so that a broker seldom asks the registry.

A registered id is cached for an hour and then looked up again in the background, while its records are still accepted: the
registry may be down. An unregistered id is cached for seconds, so that a schema is usable soon after its registration.
Owner: the event loop; threads ask the registry.
"""

import asyncio
import base64
import itertools
import logging
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from barnabas.base.clock import Clock
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.log_config import RECORD_NAME, TOPIC_NAME
from barnabas.base.errors import BarnabasError, ConfigError, Malformed
from barnabas.base.recent import Recent
from barnabas.broker.features.schema_checks.names import AVRO, PROTOBUF, message_names, record_names
from barnabas.broker.runtime.tasks import Spawn
from barnabas.client.registry import SCHEMA_BYTES_MAX, RegistryClient, RegistryError, RegistryRefused

log = logging.getLogger(__name__)

KNOWN_S: Final = 3600.0
UNKNOWN_S: Final = 5.0
#: How often to look up expired ids again, and how many at a time.
LOOK_AGAIN_S: Final = 60.0
_AGAIN_MAX: Final = 100
#: Pause after the registry could not be reached: each request to it may hang.
UNREACHABLE_S: Final = 1.0
_TIMEOUT_MS: Final = 5_000
#: Limit for a whole answer, because a registry could send it byte by byte.
_ANSWER_S: Final = 15.0
#: Limit for all topics together. Only registered ids are counted, so normal use stays below it.
KNOWN_MAX: Final = 100_000
UNKNOWN_MAX: Final = 10_000
#: Concurrent requests to the registry.
_QUESTIONS_MAX: Final = 4
#: "Schema not found", "Subject not found", "Subject does not have subject-level compatibility configured".
_NOT_FOUND: Final = frozenset({40401, 40403, 40408})


class Unreachable(BarnabasError):
    """The registry gave no usable answer about a schema."""


class Subjects(NamedTuple):
    """Identifies where the schemas of a topic's keys, or of its values, are registered."""

    topic: str
    is_key: bool
    #: The value of `barnabas.value.subject.name.strategy` (or of the key's).
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
        #: Prefixes of records with registered schemas, and when each has to be looked up again.
        self._known: dict[Subjects, dict[bytes, float]] = {}
        self._known_count = 0
        self._look_again_s = clock.monotonic_s() + LOOK_AGAIN_S
        #: Prefixes with unregistered ids, the oldest first, and when each entry expires.
        self._unknown: Recent[tuple[Subjects, bytes], float] = Recent(UNKNOWN_MAX)
        self._asked: dict[tuple[Subjects, bytes], asyncio.Future[bool]] = {}
        self._questions = asyncio.Semaphore(_QUESTIONS_MAX)
        self._unreachable_until_s = 0.0

    def known(self, subjects: Subjects) -> dict[bytes, float]:
        """Return the allowed prefixes of records. The dictionary is updated in place until `drop`."""
        return self._known.setdefault(subjects, {})

    def drop(self, subjects: Subjects) -> None:
        self._known_count -= len(self._known.pop(subjects, ()))

    def forget(self) -> None:
        """Drop all answers: there are too many, or the registry's address has changed."""
        for prefixes in self._known.values():
            prefixes.clear()
        self._known_count = 0
        self._unknown.clear()
        self._unreachable_until_s = 0.0

    def look_again(self) -> None:
        """Look up expired ids again, as their schemas may have been deleted. Called while records arrive."""
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
            log.warning(
                "[schema checks] cannot look up schema %d of %s, still accepting it: %s", id_of(prefix), subjects, error
            )

    async def is_registered(self, subjects: Subjects, prefix: bytes) -> bool:
        """:raises Unreachable: if no registry answers."""
        if prefix in self._known.get(subjects, ()):
            return True
        if (self._unknown.get((subjects, prefix)) or 0.0) > self._clock.monotonic_s():
            return False
        return await self._ask_once(subjects, prefix)

    async def _ask_once(self, subjects: Subjects, prefix: bytes) -> bool:
        """Look up an id. Concurrent callers share one request."""
        key = (subjects, prefix)
        pending = self._asked.get(key)
        if pending is None:
            pending = self._asked[key] = asyncio.get_running_loop().create_future()
            self._spawn(self._answer(key, pending), f"look up schema {id_of(prefix)}")
        return await asyncio.shield(pending)

    async def _answer(self, key: tuple[Subjects, bytes], asked: "asyncio.Future[bool]") -> None:
        try:
            async with self._questions:
                found = await self._ask(*key)
        except Unreachable as error:
            asked.set_exception(error)
            asked.exception()  # marks the error as retrieved: all callers may have gone
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
            return  # the topic is no longer checked
        if known.pop(prefix, None) is not None:
            self._known_count -= 1
        self._unknown.pop((subjects, prefix))
        if found:
            if self._known_count >= KNOWN_MAX:
                self.forget()
            known[prefix] = now_s + KNOWN_S
            self._known_count += 1
        else:
            self._unknown.put((subjects, prefix), now_s + UNKNOWN_S)

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
            log.warning(
                "[schema checks] the registry does not answer about schema %d of %s: %s", schema_id, subjects, error
            )
            raise error from None


def _look_up(config: BrokerConfig, subjects: Subjects, schema_id: int) -> bool:
    """Blocks; runs on a thread."""
    registry = _registry(config)
    found = _get(registry, "schemas", "ids", schema_id, "subjects")
    if found is None:
        return False
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise Unreachable("the schema registry's answer is not a list of subjects")
    names: set[str] = set()
    if subjects.strategy != TOPIC_NAME:
        names = _names(registry, schema_id)
    wanted = subjects.named(names)
    return not wanted.isdisjoint(found) or any(
        alias in found for subject in sorted(wanted) if (alias := _alias(registry, subject))
    )


def _names(registry: RegistryClient, schema_id: int) -> set[str]:
    schema = _get(registry, "schemas", "ids", schema_id)
    if not isinstance(schema, dict):
        return set()
    schema_type = str(schema.get("schemaType") or AVRO)
    if schema_type != PROTOBUF:
        return record_names(schema_type, str(schema.get("schema")))
    schema = _get(registry, "schemas", "ids", schema_id, format="serialized")
    if not isinstance(schema, dict):
        return set()
    try:
        return message_names(base64.b64decode(str(schema.get("schema")), validate=True))
    except (ValueError, Malformed) as error:
        raise Unreachable(f"cannot parse the schema registry's form of Protobuf schema {schema_id}: {error}") from None


def _alias(registry: RegistryClient, subject: str) -> str | None:
    settings = _get(registry, "config", subject)
    return settings.get("alias") if isinstance(settings, dict) else None


def _registry(config: BrokerConfig) -> RegistryClient:
    user, token = (
        config.barnabas_schema_registry_basic_auth_user_info,
        config.barnabas_schema_registry_bearer_auth_token,
    )
    if not config.barnabas_schema_registry_url:
        raise Unreachable("barnabas.schema.registry.url is not set on this broker")
    return RegistryClient(
        ",".join(config.barnabas_schema_registry_url),
        user=user.value if user is not None else None,
        token=token.value if token is not None else None,
        ca=config.barnabas_schema_registry_ssl_ca_location,
        timeout_ms=_TIMEOUT_MS,
        answer_bytes_max=SCHEMA_BYTES_MAX,
    )


def _get(registry: RegistryClient, *path: object, **query: object) -> Any:
    """Return the JSON of an answer; None if the registry says that the item does not exist."""
    try:
        return registry.ask("GET", *path, **query)
    except RegistryRefused as error:
        if error.code in _NOT_FOUND:
            return None
        raise Unreachable(f"{error.request}: {error}") from None
    except (RegistryError, ConfigError) as error:
        raise Unreachable(str(error)) from None
