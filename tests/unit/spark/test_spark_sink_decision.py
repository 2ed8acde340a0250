"""The decision log, pure: its records, and the decisions that a driver may make."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from barnabas.base.errors import ConfigError, Malformed
from barnabas.client.identity import ProducerIdentity
from barnabas.spark import decision
from barnabas.spark.batch_identity import UNKNOWN, BatchIdentity
from barnabas.spark.checkpoint import NAMELESS
from barnabas.spark.decision import (
    DECISION,
    ENDED,
    SUPERSEDED_MAX,
    AlreadyDecided,
    Candidate,
    Decision,
    DecisionLog,
    Ended,
    Key,
    NotADecision,
    Participant,
    QueryState,
    Refused,
    Superseded,
    Undecided,
)
from barnabas.spark.sink_options import DEFAULT_BATCH_BYTES, parse
from barnabas.wire.compression import Codec
from barnabas.wire.control_records import end_txn_marker
from barnabas.wire.records import BatchBuilder

IDENTITY = BatchIdentity(query="q", checkpoint="c1", batch=4, offsets="o4", target="cluster k, topic t")
FIRST = Decision(
    kind="stream",
    batch=4,
    identity=IDENTITY,
    run="r1",
    decided_at_ms=1000,
    prefix="p/q/r1/0/",
    transactions=(Participant("0/0", 7, 1), Participant("1/2", 8, 0)),
)


#: As version 1 of the decision log has it: the bytes that an older barnabas wrote.
OLD_DECISION = (
    b'{"version": 1, "kind": "stream", "batch": 4, "run": "r1", "superseded": [], "decidedAtMs": 1000, "twoPhase": false, '
    b'"prefix": "p/q/r1/0/", "transactions": [["0/0", 7, 1], ["1/2", 8, 0]], "prepared": ["1/2"]}'
)
OLD_ENDED = b'{"version": 1, "batch": 4, "endedAtMs": 2000}'


def judge(state: QueryState, *, run: str, batch: int, **changes: Any) -> decision.Verdict:
    """Judge the batch of this number: batch N has the offsets oN."""
    given = {"replaces": (), "planned_at_ms": None, "accepted": "", "reason": ""}
    given |= {name: changes.pop(name) for name in list(changes) if name in given}
    identity = replace(IDENTITY, batch=batch, offsets=f"o{batch}")
    return decision.judge(state, Candidate(run=run, batch=batch, identity=replace(identity, **changes), **given))


class Log:
    """A log in the bytes of a broker."""

    def __init__(self) -> None:
        self.data = b""
        self.next = 0

    def record(self, key: Key, value: bytes | None, *, producer: int = -1) -> "Log":
        builder = BatchBuilder(
            base_offset=self.next, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=producer >= 0
        )
        builder.append(key.encode(), value, timestamp=0)
        self.data += builder.build()
        self.next += 1
        return self

    def end(self, producer: int, *, commit: bool) -> "Log":
        self.data += end_txn_marker(
            commit=commit,
            coordinator_epoch=0,
            producer_id=producer,
            producer_epoch=0,
            timestamp=0,
            base_offset=self.next,
        )
        self.next += 1
        return self

    def read(self) -> DecisionLog:
        read = DecisionLog()
        assert read.replay(self.data, 0) == self.next
        return read


def test_a_decision_counts_when_its_transaction_is_committed() -> None:
    log = Log().record(Key("q", DECISION), FIRST.encode(), producer=1)
    assert log.read().of("q") == QueryState()
    assert log.end(1, commit=True).read().of("q") == QueryState(FIRST)
    later = replace(FIRST, batch=5)
    log.record(Key("q", DECISION), later.encode(), producer=1).end(1, commit=False)
    assert log.read().of("q").decision == FIRST


def test_an_open_transaction_of_another_query_hides_nothing() -> None:
    log = Log().record(Key("other", DECISION), FIRST.encode(), producer=2)
    log.record(Key("q", DECISION), FIRST.encode(), producer=1).end(1, commit=True)
    assert log.read().states.keys() == {"q"}


def test_reading_goes_on_where_it_stopped() -> None:
    log = Log().record(Key("q", DECISION), FIRST.encode(), producer=1)
    read = DecisionLog()
    position = read.replay(log.data, 0)
    before = len(log.data)
    log.end(1, commit=True).record(Key("q", ENDED), Ended(4, 2000).encode())
    assert read.replay(log.data[before:], position) == 3
    assert read.of("q") == QueryState(FIRST, Ended(4, 2000))
    assert read.replay(log.data, 3) == 3
    assert read.of("q").unfinished is None


def test_tombstones_forget() -> None:
    log = Log().record(Key("q", DECISION), FIRST.encode()).record(Key("q", ENDED), Ended(4, 0).encode())
    log.record(Key("q", DECISION), None).record(Key("q", ENDED), None)
    assert log.read().states == {}


def test_a_decision_names_its_transactions_in_full() -> None:
    found = {name: each.identity for name, each in FIRST.participants.items()}
    assert found == {"p/q/r1/0/0/0": ProducerIdentity(7, 1), "p/q/r1/0/1/2": ProducerIdentity(8, 0)}


@pytest.mark.parametrize("prepared", list(itertools.product([False, True], repeat=2)))
def test_a_decision_knows_which_of_its_transactions_are_prepared(prepared: tuple[bool, ...]) -> None:
    both = zip(FIRST.transactions, prepared, strict=True)
    decided = replace(FIRST, transactions=tuple(each._replace(prepared=is_prepared) for each, is_prepared in both))
    assert decision.decode_decision(decided.encode()) == decided
    # As earlier versions read it: where it is true, all are.
    assert json.loads(decided.encode())["twoPhase"] == all(prepared)


def test_records_of_a_newer_version_and_garbage_are_refused() -> None:
    newer = FIRST.encode().replace(b'"version": 2', b'"version": 3')
    with pytest.raises(NotADecision, match="version 3"):
        decision.decode_decision(newer)
    log = Log().record(Key("q", DECISION), newer).record(Key("other", DECISION), FIRST.encode())
    assert log.read().of("other").decision == FIRST
    with pytest.raises(NotADecision, match="a newer barnabas wrote it"):
        log.read().of("q")
    with pytest.raises(Malformed):
        decision.decode_key(b"\xff")


def test_a_fresh_query_may_decide() -> None:
    assert judge(QueryState(), run="r1", batch=0) == Undecided(None, (), is_takeover=True)


def test_the_next_batch_of_the_same_start_may_be_decided() -> None:
    state = QueryState(FIRST, Ended(4, 0))
    assert judge(state, run="r1", batch=5) == Undecided(None, (), is_takeover=False)


def test_a_new_start_replaces_the_old_one_which_may_decide_nothing_more() -> None:
    state = QueryState(FIRST, Ended(4, 0))
    assert judge(state, run="r2", batch=5) == Undecided(None, ("r1",), is_takeover=True)
    after = QueryState(replace(FIRST, batch=5, run="r2", superseded=("r1",)), Ended(5, 0))
    for batch in (3, 4, 5, 6, 7):
        assert judge(after, run="r1", batch=batch) == Superseded("r2")


def test_a_limited_number_of_replaced_starts_is_remembered() -> None:
    known = tuple(f"old{number}" for number in range(SUPERSEDED_MAX))
    verdict = judge(QueryState(replace(FIRST, superseded=known)), run="r2", batch=5)
    assert isinstance(verdict, Undecided)
    assert verdict.superseded == (*known[1:], "r1")


@pytest.mark.parametrize("ended", [-1, 3, 4])
def test_a_decided_batch_is_finished_not_decided_again(ended: int) -> None:
    state = QueryState(FIRST, Ended(ended, 0))
    unfinished = None if ended == 4 else FIRST
    for run in ("r1", "r2"):
        assert judge(state, run=run, batch=4) == AlreadyDecided(frozenset(FIRST.participants), unfinished)
        verdict = judge(state, run=run, batch=5)
        assert isinstance(verdict, Undecided)
        assert verdict.unfinished == unfinished


def test_a_decision_of_an_older_barnabas_is_still_read() -> None:
    old = replace(
        FIRST, identity=None, transactions=(Participant("0/0", 7, 1), Participant("1/2", 8, 0, prepared=True))
    )
    assert decision.decode_decision(OLD_DECISION) == old
    assert decision.decode_ended(OLD_ENDED) == Ended(4, 2000)
    assert old.encode() == OLD_DECISION
    assert Ended(4, 2000).encode() == OLD_ENDED
    log = Log().record(Key("q", DECISION), OLD_DECISION).record(Key("q", ENDED), OLD_ENDED)
    assert log.read().of("q") == QueryState(old, Ended(4, 2000))


def test_a_decision_keeps_identity_and_generation() -> None:
    again = replace(FIRST, generation=3)
    assert decision.decode_decision(again.encode()) == again
    assert decision.decode_ended(Ended(4, 2000, 3).encode()) == Ended(4, 2000, 3)


STATE = QueryState(FIRST, Ended(4, 0))


@pytest.mark.parametrize(
    "part",
    [
        {"offsets": "planned again"},
        {"checkpoint": "of a copy"},
        {"target": "cluster k, topic u"},
        {"target": "cluster l, topic t"},
        {"offsets": UNKNOWN},
        {"checkpoint": UNKNOWN},
    ],
)
def test_another_batch_under_the_number_of_a_decided_one_is_refused(part: dict[str, str]) -> None:
    for run in ("r1", "r2"):
        verdict = judge(STATE, run=run, batch=4, reason="because", **part)
        assert verdict == Refused(FIRST, None, "because")


def test_a_batch_below_the_decided_one_is_refused_unless_it_is_a_part_of_the_same_micro_batch() -> None:
    assert isinstance(judge(STATE, run="r2", batch=2), Refused)
    assert isinstance(judge(STATE, run="r2", batch=2, offsets="o4"), AlreadyDecided)


def test_a_checkpoint_that_has_not_decided_the_last_batch_is_refused_at_every_number() -> None:
    for batch in (3, 4, 5, 60):
        assert isinstance(judge(STATE, run="r2", batch=batch, checkpoint="c2"), Refused)


def test_a_refusal_still_names_the_decided_batch_that_is_to_be_ended() -> None:
    verdict = judge(QueryState(FIRST, Ended(3, 0)), run="r2", batch=4, offsets="planned again")
    assert verdict == Refused(FIRST, FIRST, "")


def test_the_user_may_accept_a_batch_that_was_planned_again() -> None:
    written = judge(STATE, run="r2", batch=2, offsets="planned again", accepted="write")
    assert written == Undecided(None, ("r1",), is_takeover=True, generation=1)
    skipped = judge(STATE, run="r2", batch=4, offsets="planned again", accepted="skip")
    assert skipped == Undecided(None, ("r1",), is_takeover=True, generation=1, is_skipped=True)
    # The same batch is not written twice for that.
    assert isinstance(judge(STATE, run="r2", batch=4, accepted="write"), AlreadyDecided)


def test_a_batch_that_the_user_accepted_is_ended_though_a_later_number_has_ended() -> None:
    ended = Ended(9, 5000)
    again = replace(FIRST, batch=2, generation=1)
    assert QueryState(again, ended).unfinished == again
    assert QueryState(again, Ended(2, 6000, 1)).unfinished is None


def test_a_checkpoint_that_was_replanned_on_purpose_follows_any_batch_of_its_former_id() -> None:
    verdict = judge(STATE, run="r2", batch=1, checkpoint="c2", replaces=("c0", "c1"))
    assert verdict == Undecided(None, ("r1",), is_takeover=True, generation=1)
    after = QueryState(
        replace(FIRST, batch=1, identity=replace(IDENTITY, checkpoint="c2", batch=1, offsets="o1"), generation=1)
    )
    assert isinstance(judge(after, run="r2", batch=1, checkpoint="c2", replaces=("c0", "c1")), AlreadyDecided)
    assert isinstance(judge(after, run="r3", batch=1, checkpoint="c1"), Refused)


@pytest.mark.parametrize(
    ("batch", "planned_at_ms", "verdict"),
    [(4, 999, AlreadyDecided), (4, 1001, Refused), (4, None, Refused), (3, 999, Refused), (5, 1001, Undecided)],
)
def test_after_an_older_barnabas_the_time_of_the_plan_decides(
    batch: int, planned_at_ms: int | None, verdict: type[decision.Verdict]
) -> None:
    """Spark plans a batch before the sink decides it: a plan made after the decision is that of another batch."""
    state = QueryState(decision.decode_decision(OLD_DECISION), Ended(4, 2000))
    assert isinstance(judge(state, run="r2", batch=batch, planned_at_ms=planned_at_ms), verdict)
    replanned = judge(state, run="r2", batch=batch, replaces=(NAMELESS,))
    assert isinstance(replanned, Undecided)


def test_a_query_whose_checkpoint_is_not_known_is_warned_once_a_start() -> None:
    verdict = judge(STATE, run="r2", batch=5, checkpoint=UNKNOWN, offsets=UNKNOWN, reason="no such folder")
    assert isinstance(verdict, Undecided) and "no such folder" in verdict.caveat
    verdict = judge(STATE, run="r1", batch=5, checkpoint=UNKNOWN, offsets=UNKNOWN, reason="no such folder")
    assert isinstance(verdict, Undecided) and not verdict.caveat


def test_a_query_that_goes_on_into_another_topic_logs_a_warning() -> None:
    verdict = judge(STATE, run="r2", batch=5, target="cluster k, topic u")
    assert isinstance(verdict, Undecided)
    assert verdict.caveat == "batches up to 4 went to cluster k, topic t, this one goes to cluster k, topic u"


def test_a_void_decision_leaves_its_batch_undecided() -> None:
    state = QueryState(decision.voided(FIRST))
    assert judge(state, run="r1", batch=4) == Undecided(None, (), is_takeover=False)


def test_only_old_queries_without_unfinished_batches_are_forgotten() -> None:
    states = {
        "done": QueryState(FIRST, Ended(4, 1000)),
        "owes": QueryState(FIRST, Ended(3, 1000)),
        "young": QueryState(FIRST, Ended(4, 90_000)),
    }
    assert decision.forgotten(states, now_ms=100_000, retention_ms=50_000) == [
        Key("done", DECISION),
        Key("done", ENDED),
    ]


# -- options ----------------------------------------------------------------------------------------------------------


def test_options_have_the_names_of_spark_and_of_kafka_producers() -> None:
    options = parse(
        {
            "Kafka.Bootstrap.Servers": "a:1,b:2",
            "topic": " Orders ",
            "deliveryGuarantee": "At-Least-Once",
            "kafka.compression.type": "gzip",
            "kafka.compression.gzip.level": "9",
            "kafka.acks": "1",
            "kafka.max.request.size": "1000",
        }
    )
    assert options.client.bootstrap == (("a", 1), ("b", 2))
    assert (options.encoder.topic, options.encoder.codec, options.encoder.level) == ("Orders", Codec.GZIP, 9)
    assert (options.encoder.batch_bytes, options.producer.request_bytes, options.producer.acks) == (1000, 1000, 1)
    assert not options.exactly_once and not options.idempotent
    assert parse({"kafka.bootstrap.servers": "a:1"}).encoder.batch_bytes == DEFAULT_BATCH_BYTES


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kafka.bootstrap.servers": ""}, "must be specified"),
        ({"kafka.batch.size": "many"}, "batch.size='many' is not a number"),
        ({"kafka.compression.type": "zstd", "kafka.compression.zstd.level": "99"}, "level"),
        ({"onLostTransactions": "panic"}, "use fail or rewrite or skip"),
        ({"acceptReplannedBatch": "7"}, "use the number of the batch with :write or :skip"),
        ({"acceptReplannedBatch": "7:maybe"}, "7:maybe"),
        ({"acceptCheckpoint": "yes"}, "use moved or copied"),
        ({"kafka.transactional.id": "mine"}, "transactionalIdPrefix"),
        ({"kafka.enable.idempotence": "true", "kafka.acks": "0", "deliveryGuarantee": "at-least-once"}, "acks"),
    ],
)
def test_unsupported_options_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse({"kafka.bootstrap.servers": "a:1"} | given)
