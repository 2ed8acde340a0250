"""The sender's decisions, tested directly: batches that share a request, batches that wait, the meaning of failures."""

from collections.abc import Mapping

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.errors import BrokerRefused, ClientError, ConnectionLost, DeadlineExceeded
from barnabas.client.identity import ProducerIdentity
from barnabas.client.image import Broker, ClusterImage, PartitionInfo, TopicInfo
from barnabas.client.sending import Outgoing, Sender, Shipment

ID = ProducerIdentity(7, 0)


def image(*leaders: int) -> ClusterImage:
    """Partition n of topic t has the n-th of these as leader."""
    parts = tuple(PartitionInfo(n, leader, 0, (leader,), (leader,)) for n, leader in enumerate(leaders))
    return ClusterImage(
        brokers={leader: Broker(leader, "h", 1) for leader in leaders if leader >= 0},
        topics={"t": TopicInfo("t", bytes(16), False, parts)},
    )


def sender(*, idempotent: bool = True, transactional: bool = False, request_bytes: int = 1_000) -> Sender[Outgoing]:
    made: Sender[Outgoing] = Sender(
        max_in_flight=2,
        request_bytes=request_bytes,
        retry_backoff_ms=100,
        delivery_timeout_ms=1_000,
        idempotent=idempotent,
        transactional=transactional,
    )
    if idempotent:
        made.identify(ID)
    return made


def batch(partition: int = 0, *, size: int = 400, ripe_at_s: float = 0.0) -> Outgoing:
    return Outgoing(partition=TopicPartition("t", partition), size_bytes=size, record_count=1, ripe_at_s=ripe_at_s)


def add(made: Sender[Outgoing], *batches: Outgoing) -> None:
    for each in batches:
        made.add(each)


def where(shipments: list[Shipment[Outgoing]]) -> list[tuple[int, list[int]]]:
    return [(shipment.leader, [each.partition.partition for each in shipment.batches]) for shipment in shipments]


def all_taken(shipment: Shipment[Outgoing]) -> Mapping[TopicPartition, int | ClientError]:
    return {each.partition: 5 for each in shipment.batches}


def refused(code: ErrorCode, shipment: Shipment[Outgoing]) -> Mapping[TopicPartition, int | ClientError]:
    return {each.partition: BrokerRefused(code) for each in shipment.batches}


def test_batches_of_one_leader_share_requests_up_to_their_size() -> None:
    made = sender()
    add(made, batch(0), batch(1), batch(2), batch(3))
    assert where(made.shipments(image(1, 1, 1, 2), 0)) == [(1, [0, 1]), (1, [2]), (2, [3])]


def test_batch_waits_for_company_until_it_is_ripe_full_or_followed() -> None:
    made = sender()
    add(made, batch(0, ripe_at_s=5))
    assert made.shipments(image(1), 1) == []
    assert (made.wake_at_s, made.held_back) == (5, False)
    assert where(made.shipments(image(1), 5)) == [(1, [0])]
    add(made, batch(0, ripe_at_s=9), batch(0, ripe_at_s=9))
    assert where(made.shipments(image(1), 5)) == [(1, [0])], "the one that is followed, and not the one behind it"
    full = sender(request_bytes=400)
    add(full, batch(0, ripe_at_s=9))
    assert where(full.shipments(image(1), 0)) == [(1, [0])]


def test_number_of_requests_in_flight_is_bounded() -> None:
    made = sender()
    add(made, *(batch(0) for _ in range(3)))
    first, second = made.shipments(image(1), 0)
    assert made.held_back
    assert made.shipments(image(1), 0) == []
    made.answered(first, all_taken(first), 0)
    assert where(made.shipments(image(1), 0)) == [(1, [0])]
    assert [each.batches[0].sequence for each in (first, second)] == [0, 1]


def test_failed_batches_are_sent_again_in_order_one_at_a_time_with_their_numbers() -> None:
    made = sender()
    batches = [batch(0) for _ in range(3)]
    add(made, *batches)
    first, second = made.shipments(image(1), 0)
    assert made.answered(first, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, first), 0) == []
    assert made.shipments(image(1), 0) == [], "the batch behind it is in flight"
    assert made.answered(second, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, second), 0) == []
    assert made.shipments(image(2), 0.05) == []
    assert made.wake_at_s == pytest.approx(0.1)
    (again,) = made.shipments(image(2), 0.1)
    assert (again.leader, again.batches, batches[0].sequence) == (2, [batches[0]], 0)
    assert made.answered(again, all_taken(again), 0.1) == [(batches[0], 5)]
    assert [each.batches for each in made.shipments(image(2), 0.1)] == [[batches[1]], [batches[2]]]
    assert [each.sequence for each in batches] == [0, 1, 2]


def test_first_unacknowledged_batch_that_is_out_of_order_is_not_retried() -> None:
    made = sender()
    add(made, batch(0))
    (shipment,) = made.shipments(image(1), 0)
    ((_, outcome),) = made.answered(shipment, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, shipment), 0)
    assert isinstance(outcome, BrokerRefused)


def test_batches_behind_one_that_was_refused_go_on_under_a_new_identity() -> None:
    made = sender()
    one, two = batch(0), batch(0)
    add(made, one, two, batch(1))
    shipments = made.shipments(image(1, 2), 0)
    ours = [each for each in shipments if each.leader == 1]
    other = [each for each in shipments if each.leader == 2]
    failed = ours[0]
    assert [each for each, _ in made.answered(failed, refused(ErrorCode.MESSAGE_TOO_LARGE, failed), 0)] == [one]
    for each in ours[1:]:
        assert made.answered(each, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, each), 0) == []
    assert made.needs_identity
    made.identify(ProducerIdentity(8, 0))
    (again,) = [each for each in made.shipments(image(1, 2), 1) if each.leader == 1]
    assert [(each, each.identity, each.sequence) for each in again.batches] == [(two, (8, 0), 0)]
    assert all(each.identity == ID for shipment in other for each in shipment.batches)


def test_in_a_transaction_one_refusal_fails_everything_until_the_next_begins() -> None:
    made = sender(transactional=True)
    batches = [batch(0), batch(1), batch(0)]
    add(made, *batches)
    first = made.shipments(image(1, 1), 0)[0]
    finished = made.answered(first, refused(ErrorCode.MESSAGE_TOO_LARGE, first), 0)
    assert {each for each, _ in finished} == set(batches)
    assert all(isinstance(outcome, BrokerRefused) for _, outcome in finished)
    assert made.failure is not None
    made.restart(ProducerIdentity(7, 1))
    assert made.failure is None
    add(made, fresh := batch(0))
    (shipment,) = made.shipments(image(1, 1), 0)
    assert shipment.batches == [fresh]
    assert (fresh.identity, fresh.sequence) == ((7, 1), 0)


def test_accepted_batch_is_finished_once_if_another_of_its_request_fails_the_transaction() -> None:
    made = sender(transactional=True)
    add(made, taken := batch(0), refused_one := batch(1))
    (shipment,) = made.shipments(image(1, 1), 0)
    error = BrokerRefused(ErrorCode.MESSAGE_TOO_LARGE)
    finished = made.answered(shipment, {taken.partition: 5, refused_one.partition: error}, 0)
    assert finished == [(taken, 5), (refused_one, error)]


def test_batch_of_a_failed_transaction_is_not_sent_in_the_next_one() -> None:
    """Both wait for a leader. The time of the first is up, and the second fails with it."""
    made = sender(transactional=True)
    early, late = batch(0), batch(1)
    late.added_at_s = 1.0
    add(made, early, late)
    assert made.shipments(image(-1, -1), 0) == []
    finished = made.looked_up({"t"}, image(-1, -1), ConnectionLost("nobody"), 1.5)
    assert [each for each, _ in finished] == [early, late]
    assert made.shipments(image(1, 1), 2.0) == []
    made.restart(ProducerIdentity(7, 1))
    assert made.shipments(image(1, 1), 2.0) == []


def test_time_for_delivery_ends_also_where_no_leader_is_found() -> None:
    made = sender(idempotent=False)
    add(made, late := batch(0))
    assert made.shipments(image(-1), 0) == []
    assert list(made.unknown) == ["t"]
    assert made.looked_up({"t"}, image(-1), ConnectionLost("nobody"), 0.5) == []
    assert made.shipments(image(-1), 0.55) == []
    assert not made.unknown, "not before the pause is over"
    ((given_up, outcome),) = made.looked_up({"t"}, image(-1), ConnectionLost("nobody"), 1.5)
    assert given_up is late
    assert late.closed
    assert isinstance(outcome, DeadlineExceeded)
    assert not made.unfinished


def test_partition_without_a_leader_delays_no_other_of_its_topic() -> None:
    made = sender()
    add(made, stuck := batch(1))
    assert made.shipments(image(1, -1), 0) == []
    add(made, free := batch(0))
    late_s = 1.5
    ((given_up, _),) = made.looked_up({"t"}, image(1, -1), ConnectionLost("nobody"), late_s)
    assert given_up is stuck
    made.identify(ProducerIdentity(8, 0))
    ((shipment,)) = made.shipments(image(1, -1), late_s)
    assert shipment.batches == [free]


def test_batch_that_may_have_been_written_keeps_its_numbers_when_the_one_before_it_is_given_up() -> None:
    """With other numbers the broker would take it for a new batch, and have it twice."""
    made = sender()
    first, second, never_sent = batch(), batch(), batch()
    second.added_at_s = never_sent.added_at_s = 2.5
    add(made, first, second)
    one, two = made.shipments(image(1), 0)
    add(made, never_sent)
    assert made.answered(one, ConnectionLost("gone"), 2) == []
    [(given_up, error)] = made.answered(two, ConnectionLost("gone"), 2)
    assert given_up is first and isinstance(error, DeadlineExceeded)

    fresh = ProducerIdentity(8, 0)
    made.identify(fresh)
    [again] = made.shipments(image(1), 3)
    assert again.batches == [second] and (second.identity, second.sequence) == (ID, 1)
    # The leader does not have it, and never will with these numbers.
    assert made.answered(again, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, again), 3) == []
    [again] = made.shipments(image(1), 4)
    assert again.batches == [second] and (second.identity, second.sequence) == (fresh, 0)
    assert made.answered(again, all_taken(again), 4) == [(second, 5)]
    [last] = made.shipments(image(1), 5)
    assert (never_sent.identity, never_sent.sequence) == (fresh, 1)
    assert made.answered(last, all_taken(last), 5) == [(never_sent, 5)]


def test_nothing_overtakes_a_batch_that_may_have_been_written() -> None:
    """It may be refused and then sent with other numbers; a batch that was sent behind it would then precede it."""
    made = sender()
    first, second, third, fourth = (batch() for _ in range(4))
    second.added_at_s = third.added_at_s = fourth.added_at_s = 2.5
    add(made, first, second, third, fourth)
    one, two = made.shipments(image(1), 0)
    made.answered(one, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, one), 0)
    made.answered(two, ConnectionLost("gone"), 0)
    # The first one fails again, and its time is up.
    [again] = made.shipments(image(1), 1)
    assert [each for each, _ in made.answered(again, ConnectionLost("gone"), 2)] == [first]
    made.identify(ProducerIdentity(8, 0))
    [again] = made.shipments(image(1), 3)
    assert again.batches == [second] and second.identity == ID
    assert made.answered(again, all_taken(again), 3) == [(second, 5)]
    # Neither was ever sent, so they need not be sent one at a time.
    assert [each.batches for each in made.shipments(image(1), 3)] == [[third], [fourth]]

    made = sender()
    first, second, third = (batch() for _ in range(3))
    second.added_at_s = third.added_at_s = 2.5
    add(made, first, second)
    one, two = made.shipments(image(1), 0)
    made.answered(one, ConnectionLost("gone"), 2)
    made.answered(two, ConnectionLost("gone"), 2)
    add(made, third)
    made.identify(ProducerIdentity(8, 0))
    [again] = made.shipments(image(1), 3)
    assert again.batches == [second]
    assert made.shipments(image(1), 3) == [], "the third would be taken, and the second come behind it"
