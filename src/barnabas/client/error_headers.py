"""The headers of a dead letter, with the names that Kafka Connect uses."""

from typing import Final

PREFIX: Final = "__connect.errors."
TOPIC: Final = PREFIX + "topic"
PARTITION: Final = PREFIX + "partition"
OFFSET: Final = PREFIX + "offset"
CONNECTOR_NAME: Final = PREFIX + "connector.name"
TASK_ID: Final = PREFIX + "task.id"
STAGE: Final = PREFIX + "stage"
CLASS_NAME: Final = PREFIX + "class.name"
EXCEPTION_CLASS_NAME: Final = PREFIX + "exception.class.name"
EXCEPTION_MESSAGE: Final = PREFIX + "exception.message"
#: How often a record came back from a dead-letter topic. A barnabas header: a replay keeps it, unlike the error headers.
REPLAYS: Final = "__barnabas.replays"
