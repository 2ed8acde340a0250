"""Whom a producer is to the brokers."""

from typing import Final, NamedTuple


class ProducerIdentity(NamedTuple):
    """What a producer's requests carry, and what fences it."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = ProducerIdentity(-1, -1)
