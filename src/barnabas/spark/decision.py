"""The decision log: which batch of a query is to be seen, as records of a compacted topic, and what follows from them.

For each query the log holds at most two records. `decision`: the last batch that was decided, and the transactions that
hold its rows. It is written in a transaction of the query's driver, so that of two drivers one is fenced, and a decision
counts once its transaction is committed. `ended`: the last batch whose transactions are known to have ended; a fact, which
whoever finishes a batch may write. Bytes in, states out; `transactions.py` asks and writes.

Invariants: batches of a query are decided in order; a batch is decided when the one before it has ended, hence every
decided batch but the last has ended; a decision never changes, but for being voided when none of its rows can be seen.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

from barnabas.base.errors import BarnabasError, Malformed
from barnabas.client.identity import ProducerIdentity
from barnabas.services.registry.values import json_values
from barnabas.wire.control_records import read_end_txn_marker
from barnabas.wire.record_batch import Buffer, iter_batches
from barnabas.wire.record_decode import iter_records

VERSION: Final = 1
NO_BATCH: Final = -1
#: Runs that a query remembers to have been replaced: a driver that comes back after more restarts than that is told by
#: its batch, which was decided long ago.
SUPERSEDED_MAX: Final = 16

DECISION: Final = "decision"
ENDED: Final = "ended"
#: A streaming query is decided batch after batch; a batch write once.
STREAM: Final = "stream"
BATCH: Final = "batch"


class NotADecision(BarnabasError):
    """A record of the decision log that this version cannot read."""


class Key(NamedTuple):
    query: str
    record: str

    def encode(self) -> bytes:
        return json.dumps({"query": self.query, "record": self.record}).encode()


class Participant(NamedTuple):
    """A transaction with rows of a decided batch."""

    #: Its transactional id, without the decision's prefix.
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
    """Batch `batch` is what its transactions hold, and nothing else."""

    kind: str
    batch: int
    #: The start of the query that decided, and those before it that must not decide any more.
    run: str
    superseded: tuple[str, ...] = ()
    decided_at_ms: int
    #: How the transactional ids of this batch begin; keeps the record short.
    prefix: str = ""
    transactions: tuple[Participant, ...] = ()

    @property
    def participants(self) -> dict[str, Participant]:
        return {self.prefix + each.name: each for each in self.transactions}

    def encode(self) -> bytes:
        prepared = [each.name for each in self.transactions if each.prepared]
        all_prepared = len(prepared) == len(self.transactions) > 0
        known = {
            "version": VERSION,
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
        return json.dumps(known).encode()


class Ended(NamedTuple):
    batch: int
    at_ms: int

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, "batch": self.batch, "endedAtMs": self.at_ms}).encode()


NOT_ENDED: Final = Ended(NO_BATCH, 0)


@dataclass(frozen=True, slots=True)
class QueryState:
    decision: Decision | None = None
    ended: Ended = NOT_ENDED

    @property
    def decided_batch(self) -> int:
        """Batches up to this one are never written again."""
        return NO_BATCH if self.decision is None else self.decision.batch

    @property
    def unfinished(self) -> Decision | None:
        """Decided, and perhaps not all of it ended."""
        if self.decision is None or self.decision.batch <= self.ended.batch or not self.decision.transactions:
            return None
        return self.decision

    @property
    def touched_at_ms(self) -> int:
        return max(0 if self.decision is None else self.decision.decided_at_ms, self.ended.at_ms)


NO_STATE: Final = QueryState()


# -- the log ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DecisionLog:
    """One partition of the topic, read from its beginning: feed it what comes, as it comes."""

    states: dict[str, QueryState] = field(default_factory=dict)
    #: Records of open transactions, by producer id: they count when the marker says so.
    _pending: dict[int, list[tuple[bytes, bytes | None]]] = field(default_factory=dict)

    def of(self, query: str) -> QueryState:
        return self.states.get(query, NO_STATE)

    def replay(self, data: Buffer, position: int) -> int:
        """Whole batches from `position` on; the position after them."""
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
            if record == DECISION:
                state = replace(state, decision=None if value is None else decode_decision(value))
            elif record == ENDED:
                state = replace(state, ended=NOT_ENDED if value is None else decode_ended(value))
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
    )


def decode_ended(data: bytes) -> Ended:
    known = _json(data, "end")
    return Ended(known["batch"], known["endedAtMs"])


def _json(data: bytes, what: str) -> Any:
    try:
        known = json_values.read(data)
    except ValueError as error:
        raise Malformed(f"a {what} in the decision log is not JSON: {error}") from None
    if not isinstance(known, dict):
        raise Malformed(f"a {what} in the decision log is not a JSON object")
    if known.get("version", VERSION) != VERSION:
        raise NotADecision(f"a {what} in the decision log has version {known['version']}: a newer barnabas wrote it")
    return known


# -- the rules --------------------------------------------------------------------------------------------------------


class Superseded(NamedTuple):
    """A newer start of the query decides from now on: this one must end."""

    by_run: str


class AlreadyDecided(NamedTuple):
    """By an earlier start, or by this one before it died: what was written since is to be aborted."""

    #: The transactional ids that hold the batch.
    named: frozenset[str]
    unfinished: Decision | None


class Undecided(NamedTuple):
    #: To be ended first: its driver died after deciding.
    unfinished: Decision | None
    #: What the decision has to name.
    superseded: tuple[str, ...]
    #: The first decision of this start: whatever earlier ones left open is to be aborted.
    is_takeover: bool


Verdict: TypeAlias = Superseded | AlreadyDecided | Undecided


def judge(state: QueryState, *, run: str, batch: int) -> Verdict:
    """What a driver may do that has `batch` written, knowing all that was decided before it became the query's driver."""
    known = state.decision
    if known is not None and run != known.run and run in known.superseded:
        return Superseded(known.run)
    if known is None:
        return Undecided(None, (), is_takeover=True)
    if batch <= known.batch:
        return AlreadyDecided(frozenset(known.participants), state.unfinished)
    if known.run == run:
        return Undecided(state.unfinished, known.superseded, is_takeover=False)
    return Undecided(state.unfinished, (*known.superseded, known.run)[-SUPERSEDED_MAX:], is_takeover=True)


def is_written(state: QueryState, batch: int) -> bool:
    """Whether a task need not write: its batch was decided, so what an earlier start wrote is or will be seen."""
    return batch <= state.decided_batch


def voided(decision: Decision) -> Decision:
    """In its place when none of its transactions was committed: the batch is undecided again."""
    return replace(decision, batch=decision.batch - 1, transactions=())


def forgotten(states: dict[str, QueryState], *, now_ms: int, retention_ms: int) -> list[Key]:
    """Records to be deleted: of queries that were silent for long and have nothing left to do."""
    return [
        Key(query, record)
        for query, state in states.items()
        if state.unfinished is None and now_ms - state.touched_at_ms > retention_ms
        for record in (DECISION, ENDED)
    ]
