"""The bounded mapping of recently used entries."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.recent import Recent


def test_least_recently_used_entry_makes_room() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.use("a") == 1
    assert recent.put("c", 3) == [("b", 2)]
    assert list(recent) == ["a", "c"]
    assert recent.use("b") is None


def test_get_is_not_a_use() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    assert recent.put("c", 3) == [("a", 1)]


def test_replaced_value_counts_once_and_is_the_most_recent() -> None:
    recent: Recent[str, str] = Recent(10, weigh=lambda key, value: len(value))
    recent.put("a", "12345")
    recent.put("b", "12345")
    assert recent.put("a", "1") == []
    assert recent.weight == 6
    assert list(recent) == ["b", "a"]


def test_newest_entry_stays_however_heavy_it_is() -> None:
    recent: Recent[str, int] = Recent(5, weigh=lambda key, value: value)
    recent.put("a", 2)
    recent.put("b", 2)
    assert recent.put("c", 9) == [("a", 2), ("b", 2)]
    assert (list(recent), recent.weight) == (["c"], 9)


def test_entry_that_may_not_be_dropped_is_passed_over() -> None:
    pinned = {"a"}
    recent: Recent[str, None] = Recent(2, may_drop=lambda key, value: key not in pinned)
    recent.put("a", None)
    recent.put("b", None)
    assert recent.put("c", None) == [("b", None)]
    pinned.add("c")
    assert recent.put("d", None) == []
    assert list(recent) == ["a", "c", "d"], "beyond the limit, because the others are pinned"


@given(st.lists(st.tuples(st.sampled_from(["put", "use", "pop", "clear"]), st.integers(0, 5), st.integers(1, 4))))
def test_weight_is_the_sum_of_the_entries(steps: list[tuple[str, int, int]]) -> None:
    recent: Recent[int, int] = Recent(8, weigh=lambda key, value: value)
    model: OrderedDict[int, int] = OrderedDict()
    for what, key, value in steps:
        if what == "put":
            model.pop(key, None)
            model[key] = value
            while sum(model.values()) > 8:
                model.popitem(last=False)
            recent.put(key, value)
        elif what == "use":
            assert recent.use(key) == model.get(key)
            if key in model:
                model.move_to_end(key)
        elif what == "pop":
            assert recent.pop(key) == model.pop(key, None)
        else:
            recent.clear()
            model.clear()
        assert (list(recent), list(recent.values()), len(recent)) == (list(model), list(model.values()), len(model))
        assert recent.weight == sum(model.values())
