"""A mapping with a bound, which drops the least recently used entries. Pure; the owner is that of the instance."""

from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Entries in the order of use, the most recently used one last."""

    __slots__ = ("_entries", "_may_drop", "_weigh", "limit", "weight")

    def __init__(
        self,
        limit: float,
        *,
        weigh: Callable[[K, V], int] = lambda key, value: 1,
        may_drop: Callable[[K, V], bool] = lambda key, value: True,
    ) -> None:
        """`limit` bounds the sum of `weigh`, which is the number of entries unless it is given."""
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._weigh = weigh
        self._may_drop = may_drop
        self.limit = limit
        #: <= limit, except for the newest entry and those that may not be dropped.
        self.weight = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def items(self) -> ItemsView[K, V]:
        return self._entries.items()

    def values(self) -> ValuesView[V]:
        return self._entries.values()

    def get(self, key: K) -> V | None:
        """Return the value; this is not a use."""
        return self._entries.get(key)

    def use(self, key: K) -> V | None:
        """Return the value, and move it to the end."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: K, value: V) -> list[tuple[K, V]]:
        """Add or replace an entry, at the end. Return the entries that were dropped to make room."""
        self.pop(key)
        self._entries[key] = value
        self.weight += self._weigh(key, value)
        return self._make_room(key) if self.weight > self.limit else []

    def pop(self, key: K) -> V | None:
        if key not in self._entries:
            return None
        value = self._entries.pop(key)
        self.weight -= self._weigh(key, value)
        return value

    def clear(self) -> None:
        self._entries.clear()
        self.weight = 0

    def _make_room(self, newest: K) -> list[tuple[K, V]]:
        dropped: list[tuple[K, V]] = []
        while self.weight > self.limit:
            oldest = next((it for it in self._entries.items() if it[0] is not newest and self._may_drop(*it)), None)
            if oldest is None:
                break
            self.pop(oldest[0])
            dropped.append(oldest)
        return dropped
