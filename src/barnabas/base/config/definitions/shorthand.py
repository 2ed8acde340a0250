"""Short names for the columns of the tables."""

from typing import Final

from barnabas.base.config.definition import Importance, UpdateMode, ValueType

BOOLEAN: Final = ValueType.BOOLEAN
CLASS: Final = ValueType.CLASS
DOUBLE: Final = ValueType.DOUBLE
INT: Final = ValueType.INT
LIST: Final = ValueType.LIST
LONG: Final = ValueType.LONG
PASSWORD: Final = ValueType.PASSWORD
SHORT: Final = ValueType.SHORT
STRING: Final = ValueType.STRING

HIGH: Final = Importance.HIGH
MEDIUM: Final = Importance.MEDIUM
LOW: Final = Importance.LOW

READ_ONLY: Final = UpdateMode.READ_ONLY
PER_BROKER: Final = UpdateMode.PER_BROKER
CLUSTER_WIDE: Final = UpdateMode.CLUSTER_WIDE
TOPIC: Final = UpdateMode.TOPIC
GROUP: Final = UpdateMode.GROUP
CLIENT_METRICS: Final = UpdateMode.CLIENT_METRICS
