"""The principal of a connection."""

from typing import NamedTuple


class Principal(NamedTuple):
    """A principal, written `User:alice` as in Kafka. A tuple, because every authorization compares one."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
