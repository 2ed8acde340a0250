"""The decision log: records of a compacted topic say which batch of a query readers see. This module has their rules.

For each query the log holds at most two records. `decision`: the last batch that was decided, and the transactions that
hold its rows. The driver of the query writes it in a transaction, so that of two drivers one is fenced, and a decision
is valid once its transaction is committed. `ended`: the last batch whose transactions are known to have ended; a fact, which
any driver that finishes a batch may write. Bytes in, states out; `transactions.py` asks and writes.

A decision keeps the identity of its batch (`batch_identity`). A batch that comes again with that identity is finished and not
written again; another batch under the same number is refused, unless the user accepts it.

Invariants: decisions of a query are ordered by generation, then batch; a new generation begins where the user accepts a batch
that was planned again, or replans with `barnabas pipeline offsets`. A batch is decided when the one before it has ended, hence
every decided batch but the last has ended. A decision's transactions never change, except that it is voided if none of its rows
can be seen. Its run does, if another start takes over with the same batch.
"""

import json
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

from barnabas.base.errors import BarnabasError, Malformed
from barnabas.client.identity import ProducerIdentity
from barnabas.services.registry.values import json_values
from barnabas.spark.batch_identity import UNKNOWN, BatchIdentity, begins_elsewhere
from barnabas.spark.checkpoint import BY_CALLER, EDITED, NAMELESS
from barnabas.wire.control_records import read_end_txn_marker
from barnabas.wire.record_batch import Buffer, iter_batches
from barnabas.wire.record_decode import iter_records

#: A decision that keeps an identity or a generation has this version. Others have version 1, which older programs read.
VERSION: Final = 2
FIRST_VERSION: Final = 1
NO_BATCH: Final = -1
#: Replaced runs that a query remembers. A driver that comes back after more restarts than that learns it from its batch, which
#: was decided long ago.
SUPERSEDED_MAX: Final = 16

DECISION: Final = "decision"
ENDED: Final = "ended"
#: Kinds of a decision: a streaming query is decided batch after batch; a batch write once.
STREAM: Final = "stream"
BATCH: Final = "batch"
#: What to do with a batch that the option acceptReplannedBatch names.
WRITE, SKIP = "write", "skip"


class NotADecision(BarnabasError):
    """A record of the decision log that this version cannot read."""


class Key(NamedTuple):
    query: str
    record: str

    def encode(self) -> bytes:
        return json.dumps({"query": self.query, "record": self.record}).encode()


class Participant(NamedTuple):
    """A transaction with rows of a decided batch."""

    #: The transactional id, without the decision's prefix.
    name: str
    producer_id: int
    epoch: int
    #: A prepared transaction never times out (KIP-939). Of two coordinators, one may know this and the other not.
    prepared: bool = False

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Readers see of batch `batch` the rows of its transactions, and no others."""

    kind: str
    batch: int
    #: The start of the query that decided, or took over since; and the other starts, which must not decide any more.
    run: str
    superseded: tuple[str, ...] = ()
    decided_at_ms: int
    #: The common beginning of the batch's transactional ids; keeps the record short.
    prefix: str = ""
    transactions: tuple[Participant, ...] = ()
    #: None for a batch write, and for a decision of an older barnabas.
    identity: BatchIdentity | None = None
    generation: int = 0

    @property
    def position(self) -> tuple[int, int]:
        return self.generation, self.batch

    @property
    def participants(self) -> dict[str, Participant]:
        return {self.prefix + each.name: each for each in self.transactions}

    def encode(self) -> bytes:
        prepared = [each.name for each in self.transactions if each.prepared]
        all_prepared = len(prepared) == len(self.transactions) > 0
        is_first_version = self.identity is None and self.generation == 0
        known: dict[str, Any] = {
            "version": FIRST_VERSION if is_first_version else VERSION,
            "kind": self.kind,
            "batch": self.batch,
            "run": self.run,
            "superseded": self.superseded,
            "decidedAtMs": self.decided_at_ms,
            "twoPhase": all_prepared,
            "prefix": self.prefix,
            "transactions": [(each.name, *each.identity) for each in self.transactions],
        }
        if prepared and not all_prepared:
            known["prepared"] = prepared
        if not is_first_version:
            known["generation"] = self.generation
            known["identity"] = None if self.identity is None else self.identity.to_json()
        return json.dumps(known).encode()


class Ended(NamedTuple):
    batch: int
    at_ms: int
    generation: int = 0

    @property
    def position(self) -> tuple[int, int]:
        return self.generation, self.batch

    def encode(self) -> bytes:
        known = {"version": FIRST_VERSION, "batch": self.batch, "endedAtMs": self.at_ms}
        if self.generation:
            known |= {"version": VERSION, "generation": self.generation}
        return json.dumps(known).encode()


NOT_ENDED: Final = Ended(NO_BATCH, 0)


@dataclass(frozen=True, slots=True)
class QueryState:
    decision: Decision | None = None
    ended: Ended = NOT_ENDED

    @property
    def unfinished(self) -> Decision | None:
        """Return a decided batch whose transactions may not all have ended."""
        if self.decision is None or self.decision.position <= self.ended.position or not self.decision.transactions:
            return None
        return self.decision

    @property
    def touched_at_ms(self) -> int:
        return max(0 if self.decision is None else self.decision.decided_at_ms, self.ended.at_ms)


NO_STATE: Final = QueryState()


# -- the log ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DecisionLog:
    """One partition of the topic, read from its beginning. Feed it the bytes in the order of the log."""

    states: dict[str, QueryState] = field(default_factory=dict)
    #: Records of open transactions, by producer id: they become valid with the commit marker.
    _pending: dict[int, list[tuple[bytes, bytes | None]]] = field(default_factory=dict)
    #: Queries with a record that a newer barnabas wrote. Other queries of the partition go on.
    _unreadable: dict[str, NotADecision] = field(default_factory=dict)

    def of(self, query: str) -> QueryState:
        if query in self._unreadable:
            raise self._unreadable[query]
        return self.states.get(query, NO_STATE)

    def replay(self, data: Buffer, position: int) -> int:
        """Read whole batches from `position` on; return the position after them."""
        for at, header in iter_batches(data):
            if header.next_offset <= position:
                continue
            if header.is_control:
                marker = read_end_txn_marker(data, at, header)
                records = self._pending.pop(header.producer_id, [])
                if marker is not None and marker.is_commit:
                    self._apply(records)
            else:
                found = [
                    (record.key, record.value)
                    for record in iter_records(data, at, header)
                    if record.offset >= position and record.key is not None
                ]
                if header.is_transactional:
                    self._pending.setdefault(header.producer_id, []).extend(found)
                else:
                    self._apply(found)
            position = header.next_offset
        return position

    def _apply(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        for raw_key, value in records:
            query, record = decode_key(raw_key)
            state = self.states.get(query, NO_STATE)
            try:
                if record == DECISION:
                    state = replace(state, decision=None if value is None else decode_decision(value))
                elif record == ENDED:
                    state = replace(state, ended=NOT_ENDED if value is None else decode_ended(value))
            except NotADecision as error:
                self._unreadable[query] = error
                self.states.pop(query, None)
                continue
            if state == NO_STATE:
                self.states.pop(query, None)
            else:
                self.states[query] = state


def decode_key(data: bytes) -> Key:
    known = _json(data, "key")
    return Key(str(known["query"]), str(known["record"]))


def decode_decision(data: bytes) -> Decision:
    known = _json(data, "decision")
    prepared = frozenset(known.get("prepared", ()))
    return Decision(
        kind=known["kind"],
        batch=known["batch"],
        run=known["run"],
        superseded=tuple(known["superseded"]),
        decided_at_ms=known["decidedAtMs"],
        prefix=known["prefix"],
        transactions=tuple(
            Participant(name, producer_id, epoch, prepared=known["twoPhase"] or name in prepared)
            for name, producer_id, epoch in known["transactions"]
        ),
        identity=None if known.get("identity") is None else BatchIdentity.from_json(known["identity"]),
        generation=known.get("generation", 0),
    )


def decode_ended(data: bytes) -> Ended:
    known = _json(data, "end")
    return Ended(known["batch"], known["endedAtMs"], known.get("generation", 0))


def _json(data: bytes, what: str) -> Any:
    try:
        known = json_values.read(data)
    except ValueError as error:
        raise Malformed(f"a {what} in the decision log is not JSON: {error}") from None
    if not isinstance(known, dict):
        raise Malformed(f"a {what} in the decision log is not a JSON object")
    if known.get("version", FIRST_VERSION) not in (FIRST_VERSION, VERSION):
        raise NotADecision(f"a {what} in the decision log has version {known['version']}: a newer barnabas wrote it")
    return known


# -- the rules --------------------------------------------------------------------------------------------------------


class Superseded(NamedTuple):
    """Another start of the query decides from now on: this start must end."""

    by_run: str


class AlreadyDecided(NamedTuple):
    """Another start decided the batch, or this one before it died: the driver aborts the transactions written since."""

    #: The transactional ids that hold the batch.
    named: frozenset[str]
    unfinished: Decision | None
    #: What the sink cannot be sure of, if a part of the identity is unknown.
    caveat: str = ""


class Refused(NamedTuple):
    """Another batch was decided, or the sink cannot tell: the rows are neither written nor thrown away."""

    known: Decision
    #: A decided batch to end in spite of the refusal: readers wait for it.
    unfinished: Decision | None
    reason: str = ""


class Undecided(NamedTuple):
    #: A decided batch to end first: its driver died after the decision.
    unfinished: Decision | None
    #: Runs that the decision has to name.
    superseded: tuple[str, ...]
    #: The first decision of this start: it names all others that have open transactions, and the driver then aborts these.
    is_takeover: bool
    generation: int = 0
    #: The user wants the rows of the batch thrown away: the decision names no transactions.
    is_skipped: bool = False
    #: A warning for the log.
    caveat: str = ""


Verdict: TypeAlias = Superseded | AlreadyDecided | Refused | Undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A batch that is to be decided."""

    run: str
    batch: int
    #: None for a batch write, which comes once.
    identity: BatchIdentity | None = None
    #: Ids that the checkpoint had before the user changed what it plans.
    replaces: tuple[str, ...] = ()
    planned_at_ms: int | None = None
    #: The fingerprint of the batch before this one, as the checkpoint has it now.
    previous: str = UNKNOWN
    #: WRITE or SKIP if the user has accepted the batch as it is planned now.
    accepted: str = ""
    #: Why a part of the identity is not known.
    reason: str = ""


def judge(state: QueryState, candidate: Candidate) -> Verdict:
    """Judge a written batch by the decisions that were made before this driver became the query's only one."""
    known, run = state.decision, candidate.run
    if known is None:
        return Undecided(None, (), is_takeover=True)
    if run != known.run and run in known.superseded:
        return Superseded(known.run)
    superseded = known.superseded if known.run == run else replaced(known)
    next_one = Undecided(state.unfinished, superseded, is_takeover=known.run != run, generation=known.generation)
    if candidate.identity is None:
        if candidate.batch <= known.batch:
            return AlreadyDecided(frozenset(known.participants), state.unfinished)
        return next_one
    line = _follows(known, candidate, candidate.identity)
    match line:
        case _Line.AGAIN:
            caveat = "" if known.identity is not None else "an older barnabas decided it and did not note its offsets"
            return AlreadyDecided(frozenset(known.participants), state.unfinished, caveat)
        case _Line.NEXT:
            return next_one._replace(caveat=_caveat(known, candidate))
        case _Line.REPLANNED:
            return next_one._replace(generation=known.generation + 1)
    if candidate.accepted:
        return next_one._replace(generation=known.generation + 1, is_skipped=candidate.accepted == SKIP)
    return Refused(known, state.unfinished, _why_refused(known, candidate))


def replaced(known: Decision) -> tuple[str, ...]:
    """Return the runs that must not decide any more once another one has taken over."""
    return (*known.superseded, known.run)[-SUPERSEDED_MAX:]


def superseding(superseded: tuple[str, ...], open_runs: Set[str]) -> tuple[str, ...]:
    """Return the runs that a decision has to name: also all others that have open transactions, which are to be aborted.

    The decision comes first, so that none of these runs can decide a transaction that another driver is about to abort.
    """
    return (*superseded, *sorted(open_runs - {*superseded}))


class _Line(Enum):
    """How a batch relates to the last decision of its query."""

    AGAIN = auto()
    NEXT = auto()
    REPLANNED = auto()
    FOREIGN = auto()


def _follows(known: Decision, candidate: Candidate, identity: BatchIdentity) -> _Line:
    before = known.identity
    if (NAMELESS if before is None else before.checkpoint) in candidate.replaces:
        return _Line.REPLANNED
    if before is None:
        if candidate.batch > known.batch:
            return _Line.NEXT
        if identity.checkpoint == BY_CALLER:
            return _Line.AGAIN
        # Spark plans a batch before the sink decides it. A plan made after the decision is that of another batch.
        was_planned = candidate.planned_at_ms is not None and candidate.planned_at_ms <= known.decided_at_ms
        return _Line.AGAIN if candidate.batch == known.batch and was_planned else _Line.FOREIGN
    if candidate.batch <= known.batch:
        # Several writes of one micro-batch (`once=`) have several numbers and the same offsets.
        return _Line.FOREIGN if set(before.differences(identity)) - {"batch"} else _Line.AGAIN
    if UNKNOWN in (before.checkpoint, identity.checkpoint):
        return _Line.NEXT
    if before.checkpoint != identity.checkpoint or begins_elsewhere(before, candidate.batch, candidate.previous):
        return _Line.FOREIGN
    return _Line.NEXT


def _why_refused(known: Decision, candidate: Candidate) -> str:
    if candidate.reason:
        return candidate.reason
    if known.identity is None:
        return "An older barnabas wrote the batch before"
    return EDITED.format(known.batch) if begins_elsewhere(known.identity, candidate.batch, candidate.previous) else ""


def _caveat(known: Decision, candidate: Candidate) -> str:
    before, identity = known.identity, candidate.identity
    if identity is None or known.run == candidate.run:
        return ""
    if UNKNOWN in (identity.checkpoint, identity.offsets):
        return f"the sink cannot recognise this batch if it comes again, and will refuse it then: {candidate.reason}"
    if before is not None and before.target != identity.target:
        return f"batches up to {known.batch} went to {before.target}, this one goes to {identity.target}"
    return ""


def voided(decision: Decision) -> Decision:
    """Return the record that replaces a decision when none of its transactions was committed: the batch is undecided again."""
    before = decision.identity
    if before is not None:
        before = replace(before, batch=decision.batch - 1, offsets=UNKNOWN)
    return replace(decision, batch=decision.batch - 1, transactions=(), identity=before)


def forgotten(states: dict[str, QueryState], *, now_ms: int, retention_ms: int) -> list[Key]:
    """Return the records to delete: of queries that wrote nothing for `retention_ms` and have nothing left to end."""
    return [
        Key(query, record)
        for query, state in states.items()
        if state.unfinished is None and now_ms - state.touched_at_ms > retention_ms
        for record in (DECISION, ENDED)
    ]
