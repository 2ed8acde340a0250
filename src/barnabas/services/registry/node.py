"""One instance of a registry: the state, the log behind it, and its role (primary or not).

Reads answer from the state after it has caught up with all acknowledged writes. Writes go through the primary, one at a time:
decide, append, wait until the own reader has applied the records, answer. Owner: the event loop; schemas are parsed and
compared on threads.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from barnabas.base.clock import Clock, SystemClock
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.errors import ClientError
from barnabas.client.membership import GroupConfig
from barnabas.services.registry import errors, reads, settings, writes
from barnabas.services.registry.content import Content, Resolved
from barnabas.services.registry.election import Election, Identity
from barnabas.services.registry.log import Fenced, SchemaLog, SchemaLogConfig
from barnabas.services.registry.parsing import Parser
from barnabas.services.registry.reads import CheckReadable
from barnabas.services.registry.records import Record, SchemaVersion
from barnabas.services.registry.store import Store
from barnabas.services.registry.writes import Decision, Registration

log = logging.getLogger(__name__)

T = TypeVar("T")
MayRead = Callable[[str], bool]

#: How long a write waits while no primary is known.
PRIMARY_WAIT_S: Final = 20.0
#: While the cluster is unreachable, reads answer from the state as it is; one read per this interval tries to catch up.
_LOOK_AGAIN_S: Final = 5.0
_LEAVE_S: Final = 3.0
#: Limit for all schemas together, roughly as they are in memory.
STATE_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024


#: How often to repeat the preparation of a registration while other writes change its basis.
_PREPARED_MAX: Final = 10
#: Schemas above this size (with their references) are parsed two at a time, so that small ones always find a free thread.
_LARGE_CHARS: Final = 64 * 1024
_LARGE_TOGETHER: Final = 2


class _Outdated(Exception):
    """Another write changed the basis of a prepared registration."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A registration, parsed and compared. It is valid while `basis` is unchanged."""

    basis: object
    registration: Registration
    #: The subject has the schema already, so nothing was compared.
    is_known: bool = False
    refusal: errors.Refusal | None = None


class _Turns:
    """One lock for each name in use."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    client: ClientConfig
    identity: Identity
    topic: str = "_schemas"
    group_id: str = "schema-registry"
    default_compatibility: str = "BACKWARD"
    allow_mode_changes: bool = True
    #: Confluent's default. The group notices after this time that the primary is gone.
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    write_timeout_ms: int = 15_000
    #: How long a read waits for the end of the log before it answers from the current state.
    read_timeout_ms: int = 5_000
    state_bytes_max: int = STATE_BYTES_MAX
    clock: Clock = field(default_factory=SystemClock)


class Node:
    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.identity = config.identity
        self.store = Store(default_compatibility=config.default_compatibility)
        self.parser = Parser()
        self._cluster = AsyncClient(config.client)
        self._reader = AsyncClient(config.client)
        self._log = SchemaLog(
            self._cluster,
            self._reader,
            self.store,
            SchemaLogConfig(
                topic=config.topic, transactional_id=config.group_id, write_timeout_ms=config.write_timeout_ms
            ),
            clock=config.clock,
        )
        group = GroupConfig(
            group_id=config.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
        )
        self._election = Election(self._cluster, group, config.identity, changed=self._primary_changed)
        self._writing = asyncio.Lock()
        #: By subject: one registration of a subject is prepared and written at a time.
        self._registering = _Turns()
        self._large = asyncio.Semaphore(_LARGE_TOGETHER)
        self._known = asyncio.Condition()
        self._elected = asyncio.Event()
        #: The election's term in which this instance claimed the log.
        self._claimed_term = -1
        self._no_catch_up_until_s = 0.0
        self._writes: set[asyncio.Task[tuple[Any, int | None]]] = set()

    @property
    def is_primary(self) -> bool:
        return self._election.is_primary

    @property
    def group_id(self) -> str:
        return self._config.group_id

    @property
    def cluster_id(self) -> str:
        return self._cluster.image.cluster_id or ""

    # -- life -----------------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None]) -> None:
        """Run until cancelled. `ready` is called when the log is applied and, if one can be elected, the primary is known."""
        async with self._cluster, self._reader, self._nothing_left(), asyncio.TaskGroup() as tasks:
            await self._log.prepare()
            tasks.create_task(self._log.follow(), name="read the schemas")
            await self._log.catch_up()
            log.info("[registry] loaded %d subjects, up to offset %d", len(self.store.subjects), self._log.position)
            tasks.create_task(self._claims(), name="claim the log when elected")
            tasks.create_task(self._take_part(), name="election of the primary")
            with contextlib.suppress(errors.Refusal):  # no eligible instance is up yet: reads work without one
                await self.primary()
            ready()

    @contextlib.asynccontextmanager
    async def _nothing_left(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for task in self._writes:
                task.cancel()
            await asyncio.gather(*self._writes, return_exceptions=True)
            await self._log.close()

    async def _take_part(self) -> None:
        try:
            await self._election.run()
        finally:
            # Leave the group, so that the others need not wait for the session timeout.
            with contextlib.suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._election.leave()

    def _primary_changed(self) -> None:
        self._elected.set()

    async def _claims(self) -> None:
        """Claim the log when this instance is elected, and wake the requests that wait for a primary."""
        while True:
            await self._elected.wait()
            self._elected.clear()
            async with self._known:
                self._known.notify_all()
            if self.is_primary:
                try:
                    async with self._writing:
                        await self._claim()
                except (errors.Refusal, ClientError) as error:
                    log.warning("[registry] cannot claim the log yet: %s", error)  # the next write tries again

    async def primary(self, *, wait_s: float = PRIMARY_WAIT_S) -> Identity:
        """Return the primary; wait while there is none."""
        try:
            async with asyncio.timeout(wait_s), self._known:
                while self._election.primary is None:
                    await self._known.wait()
                return self._election.primary
        except TimeoutError:
            raise errors.primary_unknown() from None

    async def other_primary(self, gone: Identity, *, wait_s: float) -> None:
        """Wait up to `wait_s` until the primary is another instance than `gone`, which cannot be reached."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._known:
                while self._election.primary in (gone, None):
                    await self._known.wait()

    # -- reading --------------------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Call before a read that may be outdated. If the cluster is unreachable, the read answers from the current state."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._no_catch_up_until_s:
            return
        try:
            async with asyncio.timeout(self._config.read_timeout_ms / 1000):
                await self._log.catch_up()
        except (ClientError, TimeoutError) as error:
            log.warning("[registry] cannot read the end of the log: reads answer from the current state: %s", error)
            self._no_catch_up_until_s = now_s + _LOOK_AGAIN_S

    async def applied(self, offset: int | None) -> None:
        """Wait after a forwarded write until its record (None: every acknowledged record) is applied here."""
        try:
            async with asyncio.timeout(self._config.write_timeout_ms / 1000):
                await (self._log.catch_up() if offset is None else self._log.applied(offset))
        except (ClientError, TimeoutError) as error:
            raise errors.timed_out(f"the primary made the write, but it has not arrived here yet: {error}") from error

    async def by_id(self, find: Callable[[], T]) -> T:
        """The content of an id never changes: catch up only if the id is unknown."""
        try:
            return find()
        except errors.Refusal:
            await self.catch_up()
            return find()

    async def canonical(
        self, subject: str, content: Content, check: CheckReadable, *, normalize: bool, is_new: bool = True
    ) -> Content:
        """Return the schema as it is stored. Imports are checked less strictly, as are all if `validateNewSchemas` is off."""
        checks = settings.config_in_scope(self.store, subject).get("validateNewSchemas", True)
        resolved = reads.resolve(self.store, subject, content, check, is_new=is_new and checks)
        if self.parser.knows(resolved) and not normalize:
            return content.with_text(self.parser.canonical(resolved, normalize=False))
        text = await self._on_thread(partial(self.parser.canonical, resolved, normalize=normalize), resolved)
        return content.with_text(text)

    async def formatted(self, subject: str, content: Content, wanted: str, check: CheckReadable) -> str:
        """Return a schema in another form than the stored one: `resolved`, `serialized`."""
        resolved = reads.resolve(self.store, subject, content, check, is_new=False)
        return await self._on_thread(partial(self.parser.formatted, resolved, wanted), resolved)

    async def look_up(
        self, subject: str, content: Content, may_read: MayRead, check: CheckReadable, *, normalize: bool, deleted: bool
    ) -> SchemaVersion:
        if content.text.strip():
            normalizes = self._normalizes(subject, normalize)
            wanted = await self.canonical(subject, content, check, normalize=normalizes, is_new=False)
            found = reads.look_up_in_contexts(self.store, subject, wanted, may_read, deleted=deleted)
            if found is not None:
                return found
        if not self.store.has_subjects(subject, deleted=deleted):
            raise errors.subject_not_found(subject)
        raise errors.schema_not_found()

    async def compare(
        self, subject: str, content: Content, version: int | None, check: CheckReadable, *, normalize: bool
    ) -> list[str]:
        """Why a schema may not follow a version of a subject or (None) the versions that the level requires."""
        if version is None:
            versions = self.store.versions(subject)
        elif version == reads.LATEST:
            versions = [latest] if (latest := self.store.latest(subject)) else []
        else:
            one = self.store.version(subject, version)
            if one is None:
                raise errors.version_not_found(version)
            versions = [one]
        if not content.text.strip():
            raise errors.invalid_schema("Empty schema")
        content = await self.canonical(subject, content, check, normalize=self._normalizes(subject, normalize))
        return await self._incompatibilities(subject, content, versions, check)

    async def _incompatibilities(
        self, subject: str, content: Content, versions: list[SchemaVersion], check: CheckReadable
    ) -> list[str]:
        config = settings.config_in_scope(self.store, subject)
        level = config[settings.LEVEL]
        previous = reads.previous_for(self.store, subject, content, versions, check)
        if not previous:
            return []
        resolved = reads.resolve(self.store, subject, content, check, is_new=True)
        lenient = config.get("compatibilityPolicy") == "LENIENT"
        compare = partial(self.parser.incompatibilities, level, resolved, previous, lenient=lenient)
        messages = await self._on_thread(compare, resolved, *(each.schema for each in previous))
        if messages:
            validates = str(bool(config.get("validateFields"))).lower()
            messages.append(f"{{validateFields: '{validates}', compatibility: '{level}'}}")
        return messages

    def _normalizes(self, subject: str, asked: bool) -> bool:
        return asked or bool(settings.config_in_scope(self.store, subject).get("normalize"))

    # -- writing --------------------------------------------------------------------------------------------------------

    async def known_registration(
        self, wanted: Registration, check: CheckReadable, *, normalize: bool
    ) -> SchemaVersion | None:
        """The registered version, if the schema exists: then any instance may answer. Only the primary applies settings."""
        config = settings.config_in_scope(self.store, wanted.subject)
        if not wanted.content.text.strip() or any(name.startswith(("default", "override")) for name in config):
            return None
        content = await self.canonical(
            wanted.subject, wanted.content, check, normalize=self._normalizes(wanted.subject, normalize), is_new=False
        )
        return writes.registered(
            self.store, Registration(subject=wanted.subject, content=content, version=wanted.version, id=wanted.id)
        )

    async def register(
        self, wanted: Registration, check: CheckReadable, *, normalize: bool, force: bool = False
    ) -> tuple[Any, int | None]:
        """Parse and compare the schema before its write begins: a large one takes seconds, and other writes must not wait.

        Another write may change the basis of the comparison, which is then repeated. That is rare, because registrations of one
        subject run one after the other from the start.
        """
        async with self._registering.turn(wanted.subject):
            for _ in range(_PREPARED_MAX):
                prepared = await self._prepared(wanted, check, normalize=normalize, force=force)
                with contextlib.suppress(_Outdated):
                    return await self.write(partial(self._decide_registration, wanted, prepared, check))
        raise errors.timed_out(
            f"Register operation timed out: other writes kept changing what {wanted.subject} refers to"
        )

    async def _decide_registration(self, wanted: Registration, prepared: _Prepared, check: CheckReadable) -> Decision:
        if prepared.basis != self._basis(wanted, check):
            raise _Outdated
        if prepared.refusal is not None:
            raise prepared.refusal
        full = prepared.registration
        if found := writes.registered(self.store, full):
            return Decision([], found)
        if prepared.is_known:
            raise _Outdated  # this version of the schema was not compared
        if self.store.size_bytes + full.content.size_bytes > self._config.state_bytes_max:
            raise errors.too_large(f"all schemas together have reached {self._config.state_bytes_max} bytes")
        return writes.register(self.store, full)

    def _basis(self, wanted: Registration, check: CheckReadable) -> object:
        """Return everything in the state that the decision about the registration depends on."""
        store = self.store
        try:
            writes.check_registration(store, wanted)
            full = writes.filled_in(store, wanted)
            resolved = reads.resolve(store, wanted.subject, full.content, check, is_new=False)
            previous = reads.previous_for(store, wanted.subject, full.content, store.versions(wanted.subject), check)
        except errors.Refusal as refusal:
            return refusal.code, refusal.message
        is_import = writes.is_imported(store, wanted.subject)
        versions = store.versions(wanted.subject, deleted=True)
        return full, versions, resolved, previous, is_import, settings.config_in_scope(store, wanted.subject)

    async def _prepared(self, wanted: Registration, check: CheckReadable, *, normalize: bool, force: bool) -> _Prepared:
        store, subject, basis = self.store, wanted.subject, self._basis(wanted, check)
        try:
            writes.check_registration(store, wanted)
            full, is_import = writes.filled_in(store, wanted), writes.is_imported(store, subject)
            content = await self.canonical(
                subject,
                full.content,
                check,
                normalize=not is_import and self._normalizes(subject, normalize),
                is_new=not is_import,
            )
            full = replace(full, content=content)
            if writes.registered(store, full):
                return _Prepared(basis, full, is_known=True)
            messages: list[str] = []
            if not is_import and not force:
                messages = await self._incompatibilities(subject, content, store.versions(subject), check)
        except errors.Refusal as refusal:
            return _Prepared(basis, wanted, refusal=refusal)
        trouble = errors.incompatible(subject, f"[{', '.join(messages)}]") if messages else None
        return _Prepared(basis, full, refusal=trouble)

    async def _on_thread(self, work: Callable[[], T], *schemas: Resolved) -> T:
        if sum(each.size_bytes for each in schemas) <= _LARGE_CHARS:
            return await asyncio.to_thread(work)
        async with self._large:
            return await asyncio.to_thread(work)

    async def set_mode(self, subject: str | None, mode: object, *, force: bool) -> tuple[Any, int | None]:
        if not self._config.allow_mode_changes:
            raise errors.not_permitted("Mode changes are not allowed")
        return await self.decide(lambda store: writes.set_mode(store, subject, mode, force=force))

    async def decide(self, operation: Callable[[Store], Decision]) -> tuple[Any, int | None]:
        async def at_once() -> Decision:
            return operation(self.store)

        return await self.write(at_once)

    async def write(self, decide: Callable[[], Awaitable[Decision]]) -> tuple[Any, int | None]:
        """Decide and append on the primary. Return the answer and the offset of the last record that was written for it.

        A client that disconnects does not cancel the write: a complete write without a reader is better than half a write.
        """
        task = asyncio.create_task(self._write(decide), name="write a schema")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    async def _write(self, decide: Callable[[], Awaitable[Decision]]) -> tuple[Any, int | None]:
        async with self._writing:
            try:
                await self._claim()
                decision = await decide()
                if not decision.records:
                    return decision.answer, None
                return decision.answer, await self._append(decision.records)
            except Fenced:
                self._election.ask_again()
                raise
            except ClientError as error:
                raise errors.store_failed(f"the Kafka store cannot be used: {error}") from error

    async def _claim(self) -> None:
        """Claim the log once per term, and again after a write with an unknown outcome."""
        if not self.is_primary:
            raise errors.primary_unknown()
        term = self._election.term
        if self._log.is_claimed and self._claimed_term == term:
            return
        if not await self._election.is_confirmed():
            self._election.ask_again()
            raise errors.primary_unknown()
        self._log.give_up()
        try:
            async with asyncio.timeout(self._config.write_timeout_ms / 1000):
                await self._log.claim()
        except TimeoutError:
            raise errors.timed_out("the log of the schemas could not be claimed in time") from None
        self._claimed_term = term

    async def _append(self, written: list[Record]) -> int:
        writes.check_readable(written)
        last = await self._log.append(written)
        try:
            async with asyncio.timeout(self._config.write_timeout_ms / 1000):
                await self._log.applied(last)
        except TimeoutError:
            # The next decision needs this write. A claim waits until everything is applied.
            self._log.give_up()
            raise errors.timed_out("Write to the Kafka store timed out while it was read back") from None
        if self._log.has_skipped(last - len(written) + 1, last) or not writes.is_kept(self.store, written):
            log.error("[registry] the records up to offset %d contradict the decision: taking them back", last)
            await self._take_back(writes.undo(self.store, written))
            raise errors.store_failed(
                "Error while registering the schema due to generating an ID that is already in use."
            )
        return last

    async def _take_back(self, undone: list[Record]) -> None:
        if not undone:
            return
        try:
            last = await self._log.append(undone)
            # Other writes wait for this one: if the topic is created again meanwhile, the record never arrives.
            async with asyncio.timeout(self._config.write_timeout_ms / 1000):
                await self._log.applied(last)
        except TimeoutError:
            self._log.give_up()
            raise errors.timed_out("Write to the Kafka store timed out while it was taken back") from None
