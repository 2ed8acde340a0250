"""The settings of an encoder, apart from the encoder: a driver that only plans or commits loads no numba."""

from typing import NamedTuple

from barnabas.wire.compression import Codec

KEY, VALUE, HEADERS, TOPIC, PARTITION, TIMESTAMP = "key", "value", "headers", "topic", "partition", "timestamp"


class EncoderSettings(NamedTuple):
    #: The topic of all rows; None: the column `topic` names it.
    topic: str | None
    #: A batch is closed before it grows past this.
    batch_bytes: int
    #: The largest record, as `max.request.size` of the Java producer bounds it.
    record_bytes_max: int
    codec: Codec = Codec.NONE
    level: int | None = None
