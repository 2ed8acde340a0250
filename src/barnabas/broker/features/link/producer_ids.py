"""Chooses the producer ids that a cluster hands out once it has a link. Pure.

Every Kafka cluster begins at 0, so ids in a mirror's records are also ids of producers here. A promoted log would mistake
records of a producer here for duplicates of the other producer's with the same id and drop them, or refuse them as out of
order. So a cluster with links uses a range of its own, derived from its id.
"""

import zlib
from typing import Final, NamedTuple

#: Half a million ranges of eight trillion ids each. All clusters without a link use the first range.
_RANGES: Final = 1 << 19
_RANGE: Final = 1 << 43


class ProducerIdSpace(NamedTuple):
    floor: int

    @staticmethod
    def of(cluster_id: str) -> "ProducerIdSpace":
        return ProducerIdSpace((1 + zlib.crc32(cluster_id.encode()) % _RANGES) * _RANGE)

    def first_free(self, seen_max: int) -> int:
        """Return the lowest id that may be handed out after this cluster took over records with ids up to `seen_max`. Ids of
        another range belong to another cluster and are never handed out here."""
        return seen_max + 1 if self.floor <= seen_max < self.floor + _RANGE else self.floor
