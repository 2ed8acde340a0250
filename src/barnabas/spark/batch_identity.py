"""What makes a batch of a streaming query the same batch when it comes again. Pure: no Spark, no files, no clock.

A sink that writes each batch exactly once remembers the identity of the last batch that it wrote. When a batch comes again with
the same identity, the sink finishes it and writes nothing twice. When another batch comes under the same number, the sink
refuses it: it must neither throw its rows away nor write records twice without being asked to.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from barnabas.base.errors import BarnabasError

#: The value of a part that is not known: the checkpoint could not be read, or an older barnabas did not note the part.
UNKNOWN: Final = ""
_FINGERPRINT_HEX_DIGITS: Final = 32


class NotTheSameBatch(BarnabasError):
    """Another batch of this number was written before. The message names both and says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIdentity:
    """Two batches are the same if all of these are equal and known."""

    #: Id of the streaming query, from `metadata` in its checkpoint; of a write with `once=`, that name as well.
    query: str
    #: Id of the checkpoint itself: `barnabas/checkpoint.json` in its folder.
    checkpoint: str
    batch: int
    #: `fingerprint` of the bytes of `offsets/<batch>` in the checkpoint: what Spark planned to read.
    offsets: str
    #: Where the rows go: for a topic "cluster <id>, topic <name>", for a table its database and name.
    target: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BatchIdentity":
        return cls(
            query=str(document["query"]),
            checkpoint=str(document["checkpoint"]),
            batch=int(document["batch"]),
            offsets=str(document["offsets"]),
            target=str(document["target"]),
        )

    def as_text(self) -> str:
        """One line, the same for equal identities: for a column or a property."""
        return json.dumps(self.to_json(), sort_keys=True)

    @classmethod
    def of_text(cls, text: str) -> "BatchIdentity":
        return cls.from_json(json.loads(text))

    def differences(self, other: "BatchIdentity") -> tuple[str, ...]:
        """Names of the parts that differ, or that one of both does not know."""
        mine, theirs = self.to_json(), other.to_json()
        return tuple(name for name, value in mine.items() if value != theirs[name] or value == UNKNOWN)

    def is_same(self, other: "BatchIdentity") -> bool:
        return not self.differences(other)

    def __str__(self) -> str:
        return (
            f"batch {self.batch} of query {self.query}, checkpoint {_or_unknown(self.checkpoint)}, planned offsets "
            f"{_or_unknown(self.offsets)}, to {_or_unknown(self.target)}"
        )


def begins_elsewhere(written: BatchIdentity, batch: int, previous: str) -> bool:
    """Whether `batch` begins where the written one before it did not end: the checkpoint was edited.

    `previous`: the fingerprint of the batch before `batch`, as the checkpoint has it now.
    """
    return written.batch == batch - 1 and UNKNOWN not in (written.offsets, previous) and written.offsets != previous


def fingerprint(planned: bytes) -> str:
    """Return the fingerprint of a file `offsets/N`. Spark writes the file once: a batch that comes again has the same bytes."""
    return hashlib.sha256(planned).hexdigest()[:_FINGERPRINT_HEX_DIGITS]


#: What each part is called in a message.
_WORDS: Final = {
    "query": "the query",
    "checkpoint": "the checkpoint",
    "batch": "the number of the batch",
    "offsets": "the planned offsets",
    "target": "the target",
}


def refusal(written: BatchIdentity, planned: BatchIdentity, *, remedy: str, reason: str = "") -> str:
    """The message of a sink that refuses `planned` because `written` was written before it.

    `remedy`: what to do, in whole sentences, with the sink's own option. `reason`: why a part is not known.
    """
    parts = [_WORDS[name] for name in written.differences(planned)]
    differ = f"differs in {_and(parts)}" if parts else "has a number that the sink does not expect"
    because = f" {reason}." if reason else ""
    return (
        f"this batch is not the batch that was written before: it {differ}.{because} "
        f"Written before: {written}. Planned now: {planned}. "
        f"Nothing of the planned batch was written, and none of its rows was thrown away. {remedy}"
    )


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _or_unknown(part: str) -> str:
    return part or "(unknown)"
