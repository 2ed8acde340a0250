"""The principal of a connection."""

from typing import NamedTuple


class Principal(NamedTuple):
    """As Kafka writes it: `User:alice`. A tuple, because every authorization compares one."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
