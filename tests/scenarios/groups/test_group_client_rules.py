"""The repetition that the members of these tests permit: a record that the client itself delivers again, and no other."""

from tests.scenarios.groups.group_clients import InHand


def read(in_hand: InHand, *records: tuple[int, int]) -> list[bool]:
    return [in_hand.comes_again(*record) for record in records]


def test_record_in_hand_at_a_rebalance_may_come_again() -> None:
    in_hand = InHand()
    read(in_hand, (0, 6), (1, 3))
    in_hand.rebalanced()
    assert read(in_hand, (0, 7), (1, 3), (1, 4)) == [False, True, False]


def test_record_in_hand_may_come_again_after_others_were_taken_and_more_rebalances() -> None:
    in_hand = InHand()
    read(in_hand, (1, 3))
    in_hand.rebalanced()
    in_hand.taken([0, 2])
    in_hand.rebalanced()
    assert read(in_hand, (1, 3)) == [True]


def test_record_is_read_twice_when_it_comes_again_without_a_rebalance() -> None:
    assert read(InHand(), (1, 3), (1, 3)) == [False, False]


def test_record_is_read_twice_when_it_comes_for_the_third_time() -> None:
    in_hand = InHand()
    read(in_hand, (1, 3))
    in_hand.rebalanced()
    assert read(in_hand, (1, 3), (1, 3)) == [True, False]


def test_earlier_records_are_read_twice_whenever_they_come() -> None:
    in_hand = InHand()
    read(in_hand, (0, 6), (1, 2), (1, 3))
    in_hand.rebalanced()
    assert read(in_hand, (0, 6), (1, 2), (1, 3)) == [False, False, False]


def test_record_of_a_partition_that_was_taken_is_read_twice() -> None:
    in_hand = InHand()
    read(in_hand, (1, 3))
    in_hand.rebalanced()
    in_hand.taken([1])
    in_hand.rebalanced()
    assert read(in_hand, (1, 3)) == [False]


def test_record_that_comes_later_as_it_should_ends_the_exception() -> None:
    in_hand = InHand()
    read(in_hand, (1, 3))
    in_hand.rebalanced()
    assert read(in_hand, (1, 4), (1, 3)) == [False, False]
