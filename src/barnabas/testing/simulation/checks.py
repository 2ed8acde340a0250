"""Promises that applications on Kafka make, as assertions: `from barnabas.testing.simulation import check`.

`done` is the work of the application, in its order: for example the values that it has appended to a list of the test.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.testing.records import Record

if TYPE_CHECKING:
    from barnabas.testing.simulation.app_world import World

T = TypeVar("T", bound=Hashable)

_SHOWN_MAX = 10


def _some(values: Iterable[object]) -> str:
    listed = [repr(each) for each in values]
    more = f" and {len(listed) - _SHOWN_MAX} more" if len(listed) > _SHOWN_MAX else ""
    return ", ".join(listed[:_SHOWN_MAX]) + more


def at_least_once(records: Sequence[Record], done: Iterable[Any]) -> None:
    """Every record was worked on."""
    seen = set(done)
    missing = [record for record in records if record.value not in seen]
    places = [f"{record.value!r} (partition {record.partition}, offset {record.offset})" for record in missing]
    assert not missing, (
        f"{len(missing)} of {len(records)} records were never worked on: {', '.join(places[:_SHOWN_MAX])}"
    )


def exactly_once(records: Sequence[Record], done: Iterable[Any]) -> None:
    """Every record was worked on, and none twice; nothing else was."""
    at_least_once(records, seen := list(done))
    extra = Counter(seen) - Counter(record.value for record in records)
    assert not extra, f"worked on too often: {_some(f'{value!r} {count + 1} times' for value, count in extra.items())}"


def in_order(records: Sequence[Record], done: Iterable[tuple[Any, Any]]) -> None:
    """The records of each key were worked on in the order of their offsets. `done`: pairs of key and value.

    Work that is repeated counts when it was done first.
    """
    places = {(record.key, record.value): (record.partition, record.offset) for record in records}
    last: dict[Any, tuple[Any, tuple[int, int]]] = {}
    for key, value in dict.fromkeys(done):
        place = places.get((key, value))
        if place is None:
            continue
        before = last.get(key)
        assert before is None or before[1] < place, (
            f"key {key!r}: {value!r} was worked on after {before[0]!r}, which is behind it"
        )
        last[key] = (value, place)


def offsets_skip_nothing(
    topic: str, records: Sequence[Record], committed: Mapping[tuple[str, int], int], done: Iterable[Any]
) -> None:
    """Every record below a committed offset was worked on: `committed` is `await world.committed(group)`."""
    seen = set(done)
    skipped = [
        record
        for record in records
        if record.offset < committed.get((topic, record.partition), 0) and record.value not in seen
    ]
    assert not skipped, f"committed without having been worked on: {_some(record.value for record in skipped)}"


def exactly_once_between(
    inputs: Sequence[Record], outputs: Sequence[Record], *, of: Callable[[Record], object] = lambda output: output.value
) -> None:
    """Every record of one topic has exactly one in another. `of`: the input's value that an output was made of."""
    made = Counter(of(output) for output in outputs)
    missing = [record.value for record in inputs if record.value not in made]
    twice = [value for value, count in made.items() if count > 1]
    assert not missing, f"{len(missing)} of {len(inputs)} inputs have no output: {_some(missing)}"
    assert not twice, f"inputs with several outputs: {_some(twice)}"
    known = {record.value for record in inputs}
    strange = [value for value in made if value not in known]
    assert not strange, f"outputs without an input: {_some(strange)}"


def caught_up(world: "World", group: str, *, within_s: float) -> None:
    """After the last fault, the group has committed everything that it reads within so many virtual seconds."""
    took_s = world.caught_up_s.get(group)
    assert took_s is not None, f"group {group!r} had not committed everything when `calm` ended"
    assert took_s <= within_s, (
        f"group {group!r} had committed everything {took_s:.0f} s after the last fault, not {within_s:g}"
    )
