"""PostgreSQL's logical replication messages (plugin `pgoutput`, protocol version 1) as changes of rows. Pure.

A transaction is Begin, then for each table once a Relation, then Insert, Update, Delete or Truncate, then Commit. Values are
texts, as PostgreSQL prints them.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

#: Stands for a value that an update did not touch and that is stored apart (TOAST): the message does not have it.
UNCHANGED: Final = object()
Value = object
#: The first moment of 2000, from which PostgreSQL counts, in microseconds since 1970.
_POSTGRES_EPOCH_US: Final = 946_684_800_000_000
Row = dict[str, Value]


class BadMessage(ValueError):
    """Bytes that are not a message of pgoutput."""


class Message(bytes):
    """A message with its place in the log."""

    lsn: int

    def __new__(cls, data: bytes, lsn: int) -> "Message":
        made = super().__new__(cls, data)
        made.lsn = lsn
        return made


@dataclass(frozen=True)
class Transaction:
    """The transaction of a change."""

    xid: int = 0
    #: When it was committed, in microseconds since 1970.
    committed_us: int = 0


@dataclass(frozen=True)
class Relation:
    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """One change of one row, and its place in the order of the database."""

    relation: Relation
    #: The row after the change; for a delete, the key or all of the deleted row.
    row: Row
    deleted: bool
    #: The row before the change: its key if that changed, or all of it with REPLICA IDENTITY FULL.
    old: Row | None
    #: The end of the transaction's commit in the database's log, and the number of the change in the transaction.
    commit_lsn: int
    number: int
    #: False for an insert; a delete and an update are of a row that was there.
    is_insert: bool = False
    transaction: Transaction = Transaction()
    #: The place of the change itself, if its message has one.
    lsn: int = 0


@dataclass(frozen=True)
class Truncated:
    relations: tuple[str, ...]
    commit_lsn: int
    number: int = 0
    transaction: Transaction = Transaction()
    lsn: int = 0


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1

    def take(self, kind: str) -> int:
        try:
            (value,) = struct.unpack_from(f">{kind}", self._data, self._at)
        except struct.error as error:
            raise BadMessage(f"message {self._data[:1]!r} ends at {len(self._data)}, in the middle") from error
        self._at += struct.calcsize(kind)
        return int(value)

    def letter(self) -> str:
        return chr(self.take("B"))

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise BadMessage(f"message {self._data[:1]!r}: a name without its end")
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found

    def value(self) -> Value:
        match self.letter():
            case "n":
                return None
            case "u":
                return UNCHANGED
            case "t":
                size = self.take("i")
                found = self._data[self._at : self._at + size]
                if size < 0 or len(found) < size:
                    raise BadMessage(f"message {self._data[:1]!r}: a value of {size} bytes ends after {len(found)}")
                self._at += size
                return found.decode()
            case other:
                raise BadMessage(f"a value of kind {other!r}")

    def row(self, relation: Relation) -> Row:
        count = self.take("h")
        if count != len(relation.columns):
            raise BadMessage(f"a row of {relation.name} has {count} values for {len(relation.columns)} columns")
        return {name: self.value() for name in relation.columns}


def commit_end(data: bytes) -> int | None:
    """Return where the log goes on after a transaction, if this is its commit message."""
    if data[:1] != b"C":
        return None
    reader = _Reader(data)
    reader.take("b")
    reader.take("q")
    return reader.take("q")


def changes(messages: Iterable[bytes]) -> Iterator[Change | Truncated]:
    """Yield the changes of whole transactions, in their order. Ignore messages behind the last commit."""
    relations: dict[int, Relation] = {}
    waiting: list[Change | Truncated] = []
    transaction = Transaction()
    for data in messages:
        reader = _Reader(data)
        match data[:1]:
            case b"B":
                waiting = []
                reader.take("q")
                committed_us = reader.take("q") + _POSTGRES_EPOCH_US
                transaction = Transaction(reader.take("I"), committed_us)
            case b"R":
                number, relation = _relation(reader)
                relations[number] = relation
            case b"I" | b"U" | b"D":
                waiting.append(_change(reader, data[:1], relations, len(waiting), _place(data)))
            case b"T":
                count, _ = reader.take("i"), reader.take("b")
                names = tuple(_described(relations, reader.take("i")).name for _ in range(count))
                waiting.append(Truncated(names, 0, len(waiting), lsn=_place(data)))
            case b"C":
                end = commit_end(data)
                assert end is not None
                for each in waiting:
                    yield replace(each, commit_lsn=end, transaction=transaction)
                waiting = []
            case b"O" | b"Y" | b"M":
                continue  # origins, types, messages of applications: not a change of a row
            case other:
                raise BadMessage(f"a message of kind {other!r}")


def _place(data: bytes) -> int:
    return data.lsn if isinstance(data, Message) else 0


def _relation(reader: _Reader) -> tuple[int, Relation]:
    number = reader.take("i")
    schema, name = reader.text(), reader.text()
    reader.take("b")
    columns = []
    for _ in range(reader.take("h")):
        reader.take("b")
        columns.append(reader.text())
        reader.take("i")
        reader.take("i")
    return number, Relation(f"{schema or 'pg_catalog'}.{name}", tuple(columns))


def _described(relations: Mapping[int, Relation], oid: int) -> Relation:
    if oid not in relations:
        raise BadMessage(f"a change of relation {oid}, which no message has described")
    return relations[oid]


def _change(reader: _Reader, kind: bytes, relations: Mapping[int, Relation], number: int, place: int) -> Change:
    relation = _described(relations, reader.take("i"))
    old: Row | None = None
    letter = reader.letter()
    is_whole = letter == "O"
    if letter in "KO":
        old = reader.row(relation)
        if kind == b"D":
            return Change(relation, old, True, old, 0, number, lsn=place)
        letter = reader.letter()
    if letter != "N" or kind == b"D":
        raise BadMessage(f"message {kind!r} has a row of kind {letter!r}")
    row = reader.row(relation)
    if old is not None and is_whole:
        # REPLICA IDENTITY FULL: the old row has the values that the update left alone. An old key has nulls instead.
        row = {name: old[name] if value is UNCHANGED else value for name, value in row.items()}
    return Change(relation, row, False, old, 0, number, is_insert=kind == b"I", lsn=place)
