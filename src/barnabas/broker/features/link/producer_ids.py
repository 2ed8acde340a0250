"""Which producer ids a cluster hands out once it has a link. Pure.

Every cluster of Kafka begins at 0, so the ids in a mirror's records are also those of producers here. A log that is promoted
would take the records of a producer here for copies of those of its namesake, and drop them, or for being out of order. So a
cluster with links has a range of its own, by its id.
"""

import zlib
from typing import Final, NamedTuple

#: Half a million ranges, each for eight million million ids. The first is every cluster's that has no link.
_RANGES: Final = 1 << 19
_RANGE: Final = 1 << 43


class ProducerIdSpace(NamedTuple):
    floor: int

    @staticmethod
    def of(cluster_id: str) -> "ProducerIdSpace":
        return ProducerIdSpace((1 + zlib.crc32(cluster_id.encode()) % _RANGES) * _RANGE)

    def first_free(self, seen_max: int) -> int:
        """The least id that may be handed out after records with ids up to `seen_max` became this cluster's own. Ids of another
        range are another cluster's, and nobody here will ever get one."""
        return seen_max + 1 if self.floor <= seen_max < self.floor + _RANGE else self.floor
