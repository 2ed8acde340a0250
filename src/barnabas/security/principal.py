"""Who is on the other side of a connection."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """As Kafka writes it: `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
