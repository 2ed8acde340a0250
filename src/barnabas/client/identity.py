"""How brokers identify a producer."""

from typing import Final, NamedTuple


class ProducerIdentity(NamedTuple):
    """The producer id and epoch that a producer's requests carry; a higher epoch fences the producer."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = ProducerIdentity(-1, -1)
