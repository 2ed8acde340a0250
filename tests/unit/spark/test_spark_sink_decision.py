"""The decision log, pure: what its records mean, and what a driver may do."""

import itertools
import json
from dataclasses import replace

import pytest

from barnabas.base.errors import ConfigError, Malformed
from barnabas.client.identity import ProducerIdentity
from barnabas.spark import decision
from barnabas.spark.decision import (
    DECISION,
    ENDED,
    SUPERSEDED_MAX,
    AlreadyDecided,
    Decision,
    DecisionLog,
    Ended,
    Key,
    NotADecision,
    Participant,
    QueryState,
    Superseded,
    Undecided,
    judge,
)
from barnabas.spark.sink_options import DEFAULT_BATCH_BYTES, parse
from barnabas.wire.compression import Codec
from barnabas.wire.control_records import end_txn_marker
from barnabas.wire.records import BatchBuilder

FIRST = Decision(
    kind="stream",
    batch=4,
    run="r1",
    decided_at_ms=1000,
    prefix="p/q/r1/0/",
    transactions=(Participant("0/0", 7, 1), Participant("1/2", 8, 0)),
)


class Log:
    """Bytes as a broker would have them."""

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
    decided = replace(FIRST, transactions=tuple(each._replace(prepared=is_so) for each, is_so in both))
    assert decision.decode_decision(decided.encode()) == decided
    # As earlier versions read it: where it is true, all are.
    assert json.loads(decided.encode())["twoPhase"] == all(prepared)


def test_records_of_a_newer_version_and_garbage_are_refused() -> None:
    with pytest.raises(NotADecision, match="version 2"):
        decision.decode_decision(FIRST.encode().replace(b'"version": 1', b'"version": 2'))
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


def test_starts_that_were_replaced_are_remembered_for_a_while() -> None:
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
    assert decision.is_written(state, 4)
    assert not decision.is_written(state, 5)


def test_a_void_decision_leaves_its_batch_undecided() -> None:
    state = QueryState(decision.voided(FIRST))
    assert not decision.is_written(state, 4)
    assert judge(state, run="r1", batch=4) == Undecided(None, (), is_takeover=False)


def test_only_old_queries_that_owe_nothing_are_forgotten() -> None:
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
        ({"onLostTransactions": "panic"}, "none of fail, rewrite, skip"),
        ({"kafka.transactional.id": "mine"}, "transactionalIdPrefix"),
        ({"kafka.enable.idempotence": "true", "kafka.acks": "0", "deliveryGuarantee": "at-least-once"}, "acks"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse({"kafka.bootstrap.servers": "a:1"} | given)
