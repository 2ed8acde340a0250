"""Share sessions: epochs, owners, limits."""

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.share.sessions import (
    EPOCH_MAX,
    FETCHED_AT_ONCE_MAX,
    MemberKey,
    ShareSession,
    ShareSessions,
    TopicIdPartition,
)

ONE, TWO = MemberKey("g", "one"), MemberKey("g", "two")
A, B, C = (TopicIdPartition(bytes(15) + bytes([number]), 0) for number in range(3))


class Table:
    def __init__(self, sessions_max: int = 10) -> None:
        self.ended: list[MemberKey] = []
        self.emptied: list[str] = []
        self.sessions = ShareSessions(
            sessions_max=lambda: sessions_max,
            on_end=lambda session: self.ended.append(session.key),
            on_empty=self.emptied.append,
        )

    def fetch(
        self,
        key: MemberKey,
        epoch: int,
        *added: TopicIdPartition,
        forget: tuple[TopicIdPartition, ...] = (),
        owner: object = "c",
    ) -> ShareSession:
        return self.sessions.for_fetch(
            key, epoch, added=added, forgotten=forget, has_acknowledgements=False, owner=owner
        )


def test_epochs_count_up_and_wrap_to_one() -> None:
    table = Table()
    session = table.fetch(ONE, 0, A)
    assert session.epoch == 1
    assert table.fetch(ONE, 1).epoch == 2
    assert table.sessions.for_acknowledge(ONE, 2, owner="c").epoch == 3
    session.epoch = EPOCH_MAX
    assert table.fetch(ONE, EPOCH_MAX).epoch == 1
    with pytest.raises(Refused) as refused:
        table.fetch(ONE, 2)
    assert refused.value.code is ErrorCode.INVALID_SHARE_SESSION_EPOCH


def test_session_begins_again_and_keeps_the_members_records() -> None:
    table = Table(sessions_max=1)
    table.fetch(ONE, 0, A, B)
    session = table.fetch(ONE, 0, C)
    assert (list(session.partitions), table.sessions.partition_count, table.ended) == ([C], 1, [])


def test_partitions_are_added_forgotten_and_served_in_turn() -> None:
    table = Table()
    session = table.fetch(ONE, 0, A, B, C)
    assert session.in_turn() == [B, C, A]
    table.fetch(ONE, 1)
    assert session.in_turn() == [C, A, B]
    table.fetch(ONE, 2, forget=(A, B))
    assert (session.in_turn(), table.sessions.partition_count) == ([C], 1)


def test_fetch_of_a_large_session_looks_at_some_partitions_and_the_next_one_at_others() -> None:
    table = Table()
    many = [TopicIdPartition(bytes(16), number) for number in range(2_500)]
    session = table.fetch(ONE, 0, *many)
    seen: set[TopicIdPartition] = set()
    for epoch in range(1, 4):
        part = session.in_turn()
        assert len(part) == FETCHED_AT_ONCE_MAX
        seen.update(part)
        table.fetch(ONE, epoch)
    assert seen == set(many)


def test_session_ends_with_the_connection_of_its_latest_request() -> None:
    table = Table()
    table.fetch(ONE, 0, A, owner="old")
    table.fetch(TWO, 0, A, owner="other")
    table.fetch(ONE, 1, owner="new")
    table.sessions.owner_lost("old")
    assert table.ended == []
    table.sessions.owner_lost("new")
    assert (table.ended, table.emptied, table.sessions.evictions) == ([ONE], [], 1)
    table.sessions.owner_lost("other")
    assert (table.ended, table.emptied, len(table.sessions)) == ([ONE, TWO], ["g"], 0)


def test_one_session_more_than_the_limit_is_refused() -> None:
    table = Table(sessions_max=1)
    session = table.fetch(ONE, 0, A)
    with pytest.raises(Refused) as refused:
        table.fetch(TWO, 0, A)
    assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    table.sessions.end(session)
    table.sessions.end(session)
    table.fetch(TWO, 0, A)
    assert table.ended == [ONE]


@pytest.mark.parametrize("member_id", ["", "m" * 37])
def test_member_id_has_kafkas_length(member_id: str) -> None:
    with pytest.raises(Refused) as refused:
        Table().fetch(MemberKey("g", member_id), 0)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
