"""The mark on a column `topic` that decides where each row goes, such as that of `to_topics`, beside the sink's option `topic`.

As in the official connector, the option wins over the column: a copy of a topic has the column `topic` of the topic that it was
read from. But where the column separates dead letters from good records, the option would send both to one topic. So such a
column is marked in the schema. The sink lets a marked column decide, and refuses an option that names another topic.
"""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import StructField

from barnabas.base.errors import ConfigError

_MARK: Final = "barnabas.destination"


def marked(name: str | None) -> dict[str, Any]:
    """Return metadata for a column that decides where each row goes. `name`: the topic of good rows, None if it differs by
    row."""
    return {_MARK: {} if name is None else {"topic": name}}


def decided_by_column(field: StructField | None, option: str | None) -> bool:
    """Whether the column `topic` decides although the option `topic` is set. Raises if the two contradict each other."""
    mark: Mapping[str, str] | None = None if field is None else field.metadata.get(_MARK)
    if mark is None or option is None:
        return False
    if mark.get("topic") == option:
        return True
    destination = (
        f"send good records to {mark['topic']!r}"
        if "topic" in mark
        else "go to the topic that their column topic names"
    )
    raise ConfigError(
        f"the rows come from to_topics, dead_letters or restore and {destination}, but the sink is for topic {option!r}: all "
        "of them would go there, dead letters among good records. Give the sink the same topic or none, or drop the column "
        "topic"
    )
