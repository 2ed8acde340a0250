"""What a topic may be called, and which topics are the broker's own."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.core.errors import BarnabasError

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
#: Reports of Spark queries, for the console. An ordinary topic.
PIPELINES_TOPIC: Final = "__barnabas_pipelines"
#: What tiered storage knows of its segments.
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
#: Which topics are tables, too. An ordinary topic.
TABLES_TOPIC: Final = "__barnabas_tables"
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})

#: Room for the partition number and the suffixes of a directory name.
NAME_LENGTH_MAX: Final = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class InvalidTopicName(BarnabasError):
    """The message says what is wrong with the name."""


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    if not name:
        raise InvalidTopicName("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise InvalidTopicName(f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopicName(
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
        )
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicName(
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )


class NewInternalTopic(NamedTuple):
    """What the topic looks like when it is made."""

    partitions: int
    replication_factor: int
    settings: Mapping[str, str]
    #: Begins the names of the broker's settings that say so.
    prefix: str
