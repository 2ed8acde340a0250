"""The leader-epoch cache: KIP-101 and KIP-279 case by case, and against a naive reading of the log."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.errors import BrokenInvariant
from barnabas.broker.storage.epoch_cache import UNDEFINED_END, EpochEntry, LeaderEpochCache


class Store:
    def __init__(self) -> None:
        self.written: list[list[EpochEntry]] = []

    def write(self, entries) -> None:
        self.written.append(list(entries))


def cache_of(*entries: tuple[int, int]) -> LeaderEpochCache:
    return LeaderEpochCache([EpochEntry(*entry) for entry in entries])


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, UNDEFINED_END),
        (0, (0, 10)),  # before all that is known: the follower starts where this log starts
        (1, (1, 10)),
        (2, (2, 20)),
        (3, (2, 20)),  # never wrote here: the largest below it, and its end
        (4, (2, 20)),
        (5, (5, 30)),
        (7, (7, 99)),  # the latest ends with the log
        (8, UNDEFINED_END),
    ],
)
def test_end_offset_of_an_epoch(asked: int, answer: tuple[int, int]):
    assert cache_of((2, 10), (5, 20), (7, 30)).end_offset_for(asked, 99) == answer


def test_empty_cache_knows_no_end():
    assert LeaderEpochCache().end_offset_for(3, 10) == UNDEFINED_END


def test_assigning_the_current_epoch_again_changes_nothing():
    store = Store()
    cache = LeaderEpochCache(store=store)
    assert cache.assign(1, 10)
    assert not cache.assign(1, 15)
    assert cache.entries == [(1, 10)]
    assert cache.dirty and store.written == []
    cache.flush()
    assert not cache.assign(1, 15)
    cache.flush()
    assert not cache.dirty and store.written == [[(1, 10)]]


def test_assigning_removes_contradicting_entries():
    cache = cache_of((1, 10), (2, 20), (3, 30))
    assert cache.assign(4, 20)
    assert cache.entries == [(1, 10), (4, 20)]
    assert cache.assign(2, 50)
    assert cache.entries == [(1, 10), (2, 50)]
    assert cache.assign(2, 40)
    assert cache.entries == [(1, 10), (2, 40)]


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_negative_epochs_and_offsets_are_bugs(epoch: int, start: int):
    with pytest.raises(BrokenInvariant):
        LeaderEpochCache().assign(epoch, start)


def test_truncation_from_the_end_waits_for_a_flush():
    store = Store()
    cache = LeaderEpochCache([EpochEntry(1, 10), EpochEntry(2, 20)], store)
    assert not cache.truncate_from_end(21)
    assert not cache.truncate_from_end(-1)
    assert cache.truncate_from_end(20)
    assert cache.entries == [(1, 10)]
    assert cache.dirty
    assert store.written == []
    cache.flush()
    cache.flush()
    assert store.written == [[(1, 10)]]


def test_truncation_from_the_start_moves_the_first_epoch_up():
    cache = cache_of((1, 10), (2, 20), (3, 30))
    assert not cache.truncate_from_start(10)
    assert not cache.truncate_from_start(5)
    assert not cache.dirty
    assert cache.truncate_from_start(25)
    assert cache.entries == [(2, 25), (3, 30)]
    assert cache.truncate_from_start(30)
    assert cache.entries == [(3, 30)]
    assert cache.truncate_from_start(100)
    assert cache.entries == [(3, 100)]


def test_neighbours_and_look_ups():
    cache = cache_of((2, 10), (5, 20))
    assert (cache.latest_epoch, cache.latest, cache.earliest, len(cache)) == (5, (5, 20), (2, 10), 2)
    assert (cache.next_epoch(1), cache.next_epoch(2), cache.next_epoch(5)) == (2, 5, None)
    cache.clear()
    assert (cache.latest_epoch, cache.latest, cache.earliest, cache.dirty) == (None, None, None, True)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("lead"), st.integers(1, 3), st.integers(0, 5)),
        st.tuples(st.just("end"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("start"), st.integers(0, 60), st.just(0)),
    ),
    max_size=25,
)


@given(actions=actions, asked=st.integers(0, 40))
@settings(deadline=None)
def test_cache_agrees_with_the_epochs_of_the_records(actions, asked: int):
    """The model is the log: one epoch a record. A leader that wrote nothing leaves no mark (count 0 is skipped)."""
    cache = LeaderEpochCache()
    log: dict[int, int] = {}
    start = end = epoch = 0
    for action, amount, count in actions:
        if action == "lead":
            epoch += amount
            for _ in range(count):
                cache.assign(epoch, end)
                log[end] = epoch
                end += 1
        elif action == "end" and amount >= start:
            end = min(end, amount)
            log = {offset: known for offset, known in log.items() if offset < end}
            cache.truncate_from_end(end)
            epoch = max(log.values(), default=epoch)
        elif action == "start" and start < amount < end:
            start = amount
            log = {offset: known for offset, known in log.items() if offset >= start}
            cache.truncate_from_start(start)
    firsts: dict[int, int] = {}
    for offset, known in sorted(log.items()):
        firsts.setdefault(known, offset)
    assert cache.entries == list(firsts.items())
    if not log:
        return
    answer = cache.end_offset_for(asked, end)
    if asked > max(firsts):
        assert answer == UNDEFINED_END
    else:
        after = [offset for offset, known in log.items() if known > asked]
        assert answer.end_offset == min(after, default=end)
        assert answer.epoch == max((known for known in firsts if known <= asked), default=asked)
    for offset, known in log.items():
        assert max(entry for entry in cache.entries if entry.start_offset <= offset).epoch == known
