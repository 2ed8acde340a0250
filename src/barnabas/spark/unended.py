"""Transactions of a decided batch that cannot be ended any more, and the words for people. Pure."""

from typing import NamedTuple


class Unended(NamedTuple):
    """Transactions of a decided batch that cannot be ended any more."""

    #: Aborted by a broker: they timed out while no driver ran. Their rows are missing.
    lost: list[str]
    #: Their coordinator has forgotten them (`transactional.id.expiration.ms`): they were ended long ago, by a driver that
    #: could not record it any more, or by a time-out. It cannot be found out which of the two.
    forgotten: list[str]

    def __bool__(self) -> bool:
        return bool(self.lost or self.forgotten)

    def described(self, total: int) -> str:
        said = []
        if self.lost:
            said.append(
                f"{len(self.lost)} of its {total} transactions were aborted by the brokers before they could be ended (they "
                f"timed out while no driver ran), and their rows are missing: {', '.join(sorted(self.lost)[:5])}"
            )
        if self.forgotten:
            said.append(
                f"{len(self.forgotten)} of its {total} transactions are forgotten by the brokers "
                "(transactional.id.expiration.ms), so it cannot be found out whether their rows are there: "
                f"{', '.join(sorted(self.forgotten)[:5])}"
            )
        return ". ".join(said)
