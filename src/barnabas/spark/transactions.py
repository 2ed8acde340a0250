"""The driver's side of the exactly-once sink: readers see all of a batch or nothing.

Tasks leave their rows in open transactions. `Driver.commit` makes itself the query's only driver (InitProducerId of the
driver's transactional id fences any other), reads the decisions, and carries out the verdict of `decision.judge`: keep
the transactions from timing out if the brokers can (KIP-939), record the decision, end every transaction, record the end.
A driver that dies on the way leaves a decision or none; the next one finishes the batch or starts over.

Transactions that no decision names are aborted after each batch: those of this start, and those of the starts that the decision
names as superseded. Their drivers cannot decide any more, so this holds however long a driver is paused before it aborts.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Final

from barnabas.base.errors import BarnabasError, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.blocking_producer import BlockingProducer, ReadyBatch
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.identity import NO_IDENTITY, ProducerIdentity
from barnabas.client.transactions import NO_TIMEOUT_MS, Initialised
from barnabas.spark import batch_identity, decision
from barnabas.spark.batch_identity import UNKNOWN, BatchIdentity, NotTheSameBatch
from barnabas.spark.checkpoint import COPIED, Planned, last_planned, note_repeated
from barnabas.spark.decision import (
    BATCH,
    AlreadyDecided,
    Candidate,
    Decision,
    DecisionLog,
    Ended,
    Key,
    Participant,
    Refused,
    Superseded,
    Undecided,
)
from barnabas.spark.sink_connection import SinkConnection
from barnabas.spark.sink_options import REWRITE, SKIP, SinkOptions
from barnabas.spark.transactional_ids import batch_prefix, driver_id, query_prefix, run_of
from barnabas.spark.unended import Unended

log = logging.getLogger(__name__)

#: A driver that dies while it decides holds its transaction open for this long at most.
_DRIVER_TIMEOUT_MS: Final = 60_000

#: Errors that say that another producer has the transaction, or that it was aborted: it timed out.
_LOST: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
_NO_TWO_PHASE: Final = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    }
)
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
#: States of a transactional id whose last transaction readers see, or are about to see.
_COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})

#: Points at which a driver may die: tests stop it there.
READY, DECIDED, HALF_ENDED, ALL_ENDED = "ready", "decided", "half-ended", "all-ended"


class DriverReplaced(BarnabasError):
    """Another start of the same query decides from now on."""


class BatchNotWritten(BarnabasError):
    """A task's transaction was gone before the decision: readers see no row of the batch, and it has to be written again."""


class TransactionsLost(BarnabasError):
    """Transactions of a decided batch were aborted by a broker before they could be ended."""


@dataclass(frozen=True, slots=True)
class BatchOf:
    """One batch of one query, as one start of it writes it."""

    query: str
    run: str
    batch: int
    kind: str
    #: The batch as the query's checkpoint describes it; None for a batch write.
    planned: Planned | None = None
    #: None for a batch write, and until a task has asked the cluster.
    identity: BatchIdentity | None = None

    def candidate(self, options: SinkOptions) -> Candidate:
        planned = self.planned or Planned()
        return Candidate(
            run=self.run,
            batch=self.batch,
            identity=self.identity,
            replaces=planned.replaces,
            planned_at_ms=planned.planned_at_ms,
            previous=planned.previous_of(self.batch),
            accepted=options.accepted(self.batch),
            reason=planned.reason,
        )

    def ids(self, prefix: str) -> str:
        """Return the common beginning of its tasks' transactional ids; partition and attempt follow."""
        return batch_prefix(prefix, self.query, self.run, self.batch)

    def __str__(self) -> str:
        return f"batch {self.batch} of query {self.query}" if self.kind != BATCH else f"batch write {self.query}"


def _refused(batch: BatchOf, known: Decision, reason: str) -> NotTheSameBatch:
    """The error for a batch that is not the one that was decided under its number."""
    assert batch.identity is not None, "a batch write comes once"
    before = known.identity or BatchIdentity(
        query=batch.query, checkpoint=UNKNOWN, batch=known.batch, offsets=UNKNOWN, target=UNKNOWN
    )
    remedy = (
        "If the checkpoint was rewound, edited or restored, start the query once with the option "
        f"acceptReplannedBatch={batch.batch}:write: the batch is written as it is planned now, and records that an earlier "
        f"batch has written come twice. With acceptReplannedBatch={batch.batch}:skip the rows of this batch are thrown away. "
        f"If the query runs from a copy of a checkpoint, start it with acceptCheckpoint={COPIED}. To replay records, use "
        "`barnabas pipeline offsets rewind` instead of editing a checkpoint"
    )
    return NotTheSameBatch(batch_identity.refusal(before, batch.identity, remedy=remedy, reason=reason))


def _fenced(batch: BatchOf, refused: BrokerRefused) -> DriverReplaced:
    return DriverReplaced(
        f"{batch} was not committed: another driver of the same query has taken over ({refused}). "
        "The transactions of this one are aborted; stop it, and let the newer one go on"
    )


class Driver:
    def __init__(
        self,
        options: SinkOptions,
        connection: SinkConnection,
        *,
        at: Callable[[str], None] = lambda point: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._options = options
        self._connection = connection
        self._transactions = connection.transactions
        self._at = at
        self._now_ms = now_ms
        # Not more than tasks use: brokers may allow no more.
        self._timeout_ms = min(_DRIVER_TIMEOUT_MS, options.transaction_timeout_ms)

    # -- calls of the writers ---------------------------------------------------------------------------------------------

    def commit(
        self, batch: BatchOf, written: Mapping[str, ProducerIdentity], *, skipped: int = 0, rows: int = 0
    ) -> None:
        """Make the rows of the tasks visible, unless the batch was decided before.

        `skipped` tasks have written nothing, because they found the batch decided or the user skips it. `rows`: of all tasks.
        """
        options = self._options
        self._connection.forget_topics()
        self._connection.make_decisions_topic(options.decisions_topic)
        self._refuse_early(batch, written)
        driver = driver_id(options.transactional_id_prefix, batch.query)
        identity = self._transactions.initialise(driver, timeout_ms=self._timeout_ms)
        found = self._connection.decisions(options.decisions_topic, batch.query)
        assert found is not None, "the topic was just made"
        where, known = found
        match decision.judge(known.of(batch.query), batch.candidate(options)):
            case Superseded(by_run):
                self._abort(written)
                raise DriverReplaced(
                    f"{batch} was not committed: the query was started again, or an earlier start of it went on (run {by_run}) "
                    f"while this start (run {batch.run}) still ran. Its transactions are aborted. Let one of the two go on; if "
                    "the other one is gone, start the query again"
                )
            case Refused(decided, unfinished, reason):
                self._abort(written)
                if unfinished is not None:
                    self._finish(batch.query, unfinished, where, driver, identity)
                raise self._refused(batch, decided, reason)
            case AlreadyDecided(named, unfinished, caveat):
                self._abort({name: producer for name, producer in written.items() if name not in named})
                if unfinished is not None:
                    self._finish(batch.query, unfinished, where, driver, identity)
                last = known.of(batch.query).decision
                assert last is not None, "the batch was decided"
                superseded = self._take_over(batch, last, where, driver, identity)
                self._sweep(batch, {batch.run, *superseded}, keep=named)
                self._note_repeated(batch, rows, caveat)
            case Undecided() as verdict:
                superseded = self._commit_undecided(
                    batch, written, verdict, where, driver, identity, skipped=skipped, rows=rows
                )
                if verdict.is_takeover:
                    self._tidy(known, where, batch.query)
                self._sweep(batch, {batch.run, *superseded})

    def _refuse_early(self, batch: BatchOf, written: Mapping[str, ProducerIdentity]) -> None:
        """Refuse before this start becomes the query's only driver: a query with a foreign checkpoint must not fence the right
        one."""
        found = self._connection.decisions(self._options.decisions_topic, batch.query)
        assert found is not None, "the topic was just made"
        verdict = decision.judge(found[1].of(batch.query), batch.candidate(self._options))
        if isinstance(verdict, Refused) and verdict.unfinished is None:
            self._abort(written)
            raise self._refused(batch, verdict.known, verdict.reason)

    def _refused(self, batch: BatchOf, known: Decision, reason: str) -> DriverReplaced | NotTheSameBatch:
        """The error for a batch that is not the one that was decided. A driver that was replaced and comes back late must not
        advise to write its batch again."""
        planned, options = batch.planned, self._options
        later = None
        if planned is not None and planned.batch >= 0:
            later = last_planned(options.once_checkpoint or options.checkpoint_location)
        if planned is None or later is None or later <= planned.batch:
            return _refused(batch, known, reason)
        return DriverReplaced(
            f"{batch} was not committed: another start of the query has written it, or a later batch, and has planned batch "
            f"{later} since. The transactions of this start (run {batch.run}) are aborted; stop it, and let the newer one go on"
        )

    def _commit_undecided(
        self,
        batch: BatchOf,
        written: Mapping[str, ProducerIdentity],
        verdict: Undecided,
        where: TopicPartition,
        driver: str,
        identity: ProducerIdentity,
        *,
        skipped: int,
        rows: int,
    ) -> tuple[str, ...]:
        """Decide the batch and finish it. Return the starts that must not decide any more."""
        if verdict.unfinished is not None:
            self._finish(batch.query, verdict.unfinished, where, driver, identity)
        if verdict.is_takeover:
            verdict = verdict._replace(superseded=decision.superseding(verdict.superseded, self._open_runs(batch)))
        if verdict.is_skipped:
            self._abort(written)
            written = {}
            log.warning("%s: acceptReplannedBatch=%d:skip: its %d rows are thrown away", batch, batch.batch, rows)
        elif skipped:
            self._abort(written)
            raise BatchNotWritten(
                f"{batch} was not committed, and nothing of it is seen: {skipped} of its tasks found it decided, and that "
                "decision was void by the time it was to be carried out. Start the query again: the batch will be written again"
            )
        if verdict.caveat:
            log.warning("%s: %s", batch, verdict.caveat)
        decided, identity = self._decide(batch, written, verdict, where, driver, identity)
        self._finish(batch.query, decided, where, driver, identity)
        return decided.superseded

    def _note_repeated(self, batch: BatchOf, rows: int, caveat: str) -> None:
        log.warning(
            "%s came again and was written before: its %d rows are not written a second time%s",
            batch,
            rows,
            f" ({caveat})" if caveat else "",
        )
        if batch.planned is not None and batch.planned.query:
            note_repeated(self._options.once_checkpoint or self._options.checkpoint_location, batch.batch, rows)

    def abort(self, batch: BatchOf, written: Mapping[str, ProducerIdentity]) -> None:
        """Abort the tasks' transactions. Spark also calls this when `commit` failed, perhaps after the decision: decided ones
        stay."""
        if not written:
            return
        options = self._options
        decided = self._last_decision(batch.query)
        if decided is None or batch.run not in decided.superseded:
            # InitProducerId commits or aborts a decision that a driver of the query has begun. A start that was superseded
            # has begun none: it does not fence the driver that goes on.
            driver = driver_id(options.transactional_id_prefix, batch.query)
            self._transactions.initialise(driver, timeout_ms=self._timeout_ms)
            decided = self._last_decision(batch.query)
        named = {} if decided is None else decided.participants
        self._abort({name: producer for name, producer in written.items() if name not in named})

    def _last_decision(self, query: str) -> Decision | None:
        found = self._connection.decisions(self._options.decisions_topic, query)
        return None if found is None else found[1].of(query).decision

    def _abort(self, written: Mapping[str, ProducerIdentity]) -> None:
        """Abort transactions that no decision names. One that cannot be aborted now times out."""
        outcome = self._transactions.end_all(written, committed=False) if written else {}
        # A kept transaction has another identity by now: a new producer with its id aborts it.
        self._abort_by_name([name for name, refusal in outcome.items() if refusal is not None])

    def _abort_by_name(self, names: list[str]) -> None:
        outcome = self._transactions.abort_all(names, timeout_ms=self._timeout_ms) if names else {}
        for name, refusal in outcome.items():
            if refusal is not None:
                log.warning("transaction %s cannot be aborted, so it stays open until it times out: %s", name, refusal)

    # -- deciding -------------------------------------------------------------------------------------------------------

    def _decide(
        self,
        batch: BatchOf,
        written: Mapping[str, ProducerIdentity],
        verdict: Undecided,
        where: TopicPartition,
        driver: str,
        identity: ProducerIdentity,
    ) -> tuple[Decision, ProducerIdentity]:
        """Record the decision; return it with the driver's new identity: a transaction may raise its epoch."""
        kept = self._keep(batch, written)
        self._at(READY)
        prefix = commonprefix([each.name for each in kept])  # noqa: RUF071  # characters are what it is for
        decided = Decision(
            kind=batch.kind,
            batch=batch.batch,
            run=batch.run,
            superseded=verdict.superseded,
            identity=batch.identity,
            generation=verdict.generation,
            decided_at_ms=self._now_ms(),
            prefix=prefix,
            transactions=tuple(each._replace(name=each.name.removeprefix(prefix)) for each in sorted(kept)),
        )
        identity = self._record_unless_fenced(batch, decided, where, driver, identity)
        self._at(DECIDED)
        return decided, identity

    def _keep(self, batch: BatchOf, written: Mapping[str, ProducerIdentity]) -> list[Participant]:
        """Return the transactions, each known to be open, and safe from timing out if its coordinator can do that.

        Coordinators differ: two-phase commit is enabled one broker after the other. A prepared transaction gets a new identity,
        and only that one can end it.
        """
        answers = self._transactions.keep_all(list(written)) if written else {}
        prepared = {
            name: answer
            for name, answer in answers.items()
            if not (isinstance(answer, BrokerRefused) and answer.code in _NO_TWO_PHASE)
        }
        gone = {name for name, answer in prepared.items() if not _is_kept(answer, written[name])}
        others = {name: producer for name, producer in written.items() if name not in prepared}
        gone |= self._not_open(others)
        self._require_none_gone(batch, gone, written)
        kept = [Participant(name, *producer) for name, producer in others.items()]
        for name, answer in prepared.items():
            assert isinstance(answer, Initialised), "a refusal is gone"
            kept.append(Participant(name, *answer.identity, prepared=True))
        return kept

    def _not_open(self, written: Mapping[str, ProducerIdentity]) -> set[str]:
        """Return the transactions that cannot be ended with the identity that wrote them."""
        states = self._transactions.describe_all(list(written)) if written else {}
        gone = set()
        for name, producer in written.items():
            state = states[name]
            if (
                isinstance(state, BrokerRefused)
                or state.transaction_state != "Ongoing"
                or (state.producer_id, state.producer_epoch) != producer
                # A coordinator prepared it, and was replaced before it could send us the new identity.
                or state.transaction_timeout_ms == NO_TIMEOUT_MS
            ):
                gone.add(name)
        return gone

    def _require_none_gone(self, batch: BatchOf, gone: set[str], written: Mapping[str, ProducerIdentity]) -> None:
        if not gone:
            return
        self._abort(written)
        raise BatchNotWritten(
            f"{batch} was not committed, and nothing of it is seen: {len(gone)} of its {len(written)} transactions were "
            f"aborted before all tasks had finished ({', '.join(sorted(gone)[:3])}). If they timed out, raise "
            f"kafka.transaction.timeout.ms (now {self._options.transaction_timeout_ms}) and the brokers' "
            "transaction.max.timeout.ms. Start the query again: the batch will be written again"
        )

    # -- ending ---------------------------------------------------------------------------------------------------------

    def _finish(
        self, query: str, decided: Decision, where: TopicPartition, driver: str, identity: ProducerIdentity
    ) -> None:
        """End every transaction of a decided batch. To end one twice does no harm."""
        unended = self._end(decided)
        self._at(ALL_ENDED)
        if unended:
            self._give_up(query, decided, unended, where, driver, identity)
        self._record_ended(query, decided, where)

    def _end(self, decided: Decision) -> "Unended":
        """End the transactions; return those that cannot be ended any more."""
        participants = list(decided.participants.items())
        unended = Unended([], [])
        half = (len(participants) + 1) // 2
        for part in (dict(participants[:half]), dict(participants[half:])):
            identities = {name: each.identity for name, each in part.items()}
            outcome = self._transactions.end_all(identities, committed=True)
            refused = {name: refusal for name, refusal in outcome.items() if refusal is not None}
            seen = self._committed({name: part[name] for name in refused})
            for name, refusal in refused.items():
                if name in seen:
                    continue
                if refusal.code not in _LOST:
                    raise refusal
                if refusal.code is not ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                    unended.lost.append(name)
                elif not part[name].prepared:
                    unended.forgotten.append(name)
                # A prepared one cannot time out: if its coordinator has forgotten it, it was ended long ago.
            self._at(HALF_ENDED)
        return unended

    def _committed(self, refused: Mapping[str, Participant]) -> set[str]:
        """Return the transactions that were committed before, although the coordinator refuses to end them again.

        With `transaction.version` 2 an end raises the epoch, with older versions it does not. If the cluster has changed its
        version since, the coordinator does not recognise a repeated end.
        """
        states = self._transactions.describe_all(list(refused)) if refused else {}
        return {
            name
            for name, state in states.items()
            if not isinstance(state, BrokerRefused)
            and state.transaction_state in _COMMITTED
            and state.producer_id == refused[name].producer_id
            and state.producer_epoch in (refused[name].epoch, refused[name].epoch + 1)
        }

    def _give_up(
        self,
        query: str,
        decided: Decision,
        unended: "Unended",
        where: TopicPartition,
        driver: str,
        identity: ProducerIdentity,
    ) -> None:
        """Handle transactions that the brokers aborted between the decision and their end, or may have. Always raises or
        logs."""
        total = len(decided.transactions)
        when = f"batch {decided.batch} of query {query} was decided at {decided.decided_at_ms} ms since 1970"
        what = f"{when}. {unended.described(total)}"
        if len(unended.lost) == total or self._options.on_lost == REWRITE:
            # The new decision needs a new epoch: the last one may have the same sequence.
            identity = self._transactions.initialise(driver, timeout_ms=self._timeout_ms, expected=identity)
            self._record_decision(query, decision.voided(decided), where, driver, identity)
            # InitProducerId waits for the markers: readers of the log know of the voided decision from now on.
            self._transactions.initialise(driver, timeout_ms=self._timeout_ms)
            seen = "Nothing of it is seen." if len(unended.lost) == total else "Rows of other tasks are seen."
            raise TransactionsLost(f"{what}. {seen} Start the query again: the whole batch will be written again")
        if self._options.on_lost == SKIP:
            log.error("%s. onLostTransactions=skip: rows that are missing from the topics are skipped", what)
            return
        raise TransactionsLost(
            f"{what}. Rows of other tasks are there. Start the query once with onLostTransactions=rewrite to have the whole "
            "batch written again (rows that are there come twice), or with onLostTransactions=skip to go on without the rows "
            "that are missing. Brokers with transaction.two.phase.commit.enable=true do not lose prepared transactions"
        )

    # -- records of the decision log ------------------------------------------------------------------------------------

    def _record_decision(
        self, query: str, decided: Decision, where: TopicPartition, driver: str, identity: ProducerIdentity
    ) -> ProducerIdentity:
        """Write in a transaction of the driver, which a fenced driver cannot commit. Return the identity for the next one."""
        producer = self._producer(identity, driver)
        producer.send(_ready(where, [(Key(query, decision.DECISION), decided.encode())], self._now_ms()))
        producer.flush()
        return self._transactions.end(driver, identity, committed=True)

    def _record_unless_fenced(
        self, batch: BatchOf, decided: Decision, where: TopicPartition, driver: str, identity: ProducerIdentity
    ) -> ProducerIdentity:
        try:
            return self._record_decision(batch.query, decided, where, driver, identity)
        except BrokerRefused as refused:
            if refused.code not in _FENCED:
                raise
            raise _fenced(batch, refused) from refused

    def _record_ended(self, query: str, decided: Decision, where: TopicPartition) -> None:
        """Delete the decision of a batch write, which is done once it has ended; note how far a streaming query is."""
        if decided.kind == BATCH:
            self._record(where, [(Key(query, decision.DECISION), None), (Key(query, decision.ENDED), None)])
        else:
            ended = Ended(decided.batch, self._now_ms(), decided.generation)
            self._record(where, [(Key(query, decision.ENDED), ended.encode())])

    def _record(self, where: TopicPartition, records: list[tuple[Key, bytes | None]]) -> None:
        if records:
            producer = self._producer(NO_IDENTITY, None)
            producer.send(_ready(where, records, self._now_ms()))
            producer.flush()

    def _producer(self, identity: ProducerIdentity, transactional_id: str | None) -> BlockingProducer:
        return BlockingProducer(
            self._connection.client,
            self._options.producer,
            identity=identity,
            transactional_id=transactional_id,
        )

    # -- transactions of other starts -------------------------------------------------------------------------------------

    def _take_over(
        self, batch: BatchOf, decided: Decision, where: TopicPartition, driver: str, identity: ProducerIdentity
    ) -> tuple[str, ...]:
        """Before this start aborts transactions of others: note in the decision of the batch, which came again, that they must
        not decide any more. Return those starts."""
        if decided.run == batch.run:
            return decided.superseded
        open_runs = self._open_runs(batch)
        if open_runs <= {*decided.superseded}:
            return decided.superseded
        superseded = decision.superseding(decision.replaced(decided), open_runs)
        self._record_unless_fenced(
            batch, replace(decided, run=batch.run, superseded=superseded), where, driver, identity
        )
        return superseded

    def _open_runs(self, batch: BatchOf) -> set[str]:
        """Return the other starts of the query that have open transactions."""
        prefix = query_prefix(self._options.transactional_id_prefix, batch.query)
        names = self._transactions.ongoing(prefix)
        return {run for name in names if (run := run_of(name, prefix))} - {batch.run}

    def _sweep(self, batch: BatchOf, runs: set[str], *, keep: Collection[str] = ()) -> None:
        """Abort open transactions that no decision names: of attempts that lost, of tasks and drivers that died.

        Only those of `runs`: the decision has made sure that no other driver decides them. A failure is no reason to fail a
        batch that readers see: the next batch tries again.
        """
        prefix = query_prefix(self._options.transactional_id_prefix, batch.query)
        try:
            unnamed = [
                name for name in self._transactions.ongoing(prefix) if name not in keep and run_of(name, prefix) in runs
            ]
            if unnamed:
                log.info("aborting %d transactions that no decision names, such as %s", len(unnamed), unnamed[0])
                self._abort_by_name(unnamed)
        except ClientError as error:
            log.warning(
                "attempts that lost may hold readers back until they time out or the next batch ends: %s", error
            )

    def _tidy(self, known: DecisionLog, where: TopicPartition, own: str) -> None:
        """Finish batch writes whose driver died after deciding, and delete records that no driver has used for a long time."""
        for query, state in list(known.states.items()):
            unfinished = state.unfinished
            if query == own or unfinished is None or unfinished.kind != BATCH:
                continue
            try:
                unended = self._end(unfinished)
            except ClientError as error:
                log.warning("batch write %s was decided but cannot be finished now: %s", query, error)
                continue
            if unended:
                log.error(
                    "batch write %s was decided, and its driver died. %s",
                    query,
                    unended.described(len(unfinished.transactions)),
                )
            self._record_ended(query, unfinished, where)
        old = decision.forgotten(known.states, now_ms=self._now_ms(), retention_ms=self._options.decision_retention_ms)
        self._record(where, [(key, None) for key in old if key.query != own])


def _is_kept(answer: Initialised | BrokerRefused, producer: ProducerIdentity) -> bool:
    if isinstance(answer, Initialised):
        return answer.ongoing == producer
    if answer.code in _LOST:
        return False
    raise answer


def _ready(where: TopicPartition, records: list[tuple[Key, bytes | None]], now_ms: int) -> ReadyBatch:
    return ReadyBatch.of(where, [(key.encode(), value) for key, value in records], timestamp_ms=now_ms)
