"""What a topic may be called, and which topics are the broker's own."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode, Refused

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
#: Reports of Spark queries, for the console. An ordinary topic.
PIPELINES_TOPIC: Final = "__barnabas_pipelines"
#: What tiered storage knows of its segments.
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
#: Which topics are tables, too. An ordinary topic.
TABLES_TOPIC: Final = "__barnabas_tables"
#: KRaft's own, in whose directory a broker finds no log of its kind. Nobody may make a topic of that name.
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})
#: Whose number of partitions says where what is in them is found.
FIXED_TOPICS: Final = INTERNAL_TOPICS | {REMOTE_LOG_METADATA_TOPIC}

#: Room for the partition number and the suffixes of a directory name.
NAME_LENGTH_MAX: Final = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """:raises Refused: INVALID_TOPIC_EXCEPTION, for a name that no topic can have."""
    if not name:
        wrong = "the empty string is not allowed"
    elif name in (".", ".."):
        wrong = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        wrong = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif not _LEGAL.fullmatch(name):
        wrong = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {wrong}")


class NewInternalTopic(NamedTuple):
    """What the topic looks like when it is made."""

    partitions: int
    replication_factor: int
    settings: Mapping[str, str]
    #: Begins the names of the broker's settings that say so.
    prefix: str
