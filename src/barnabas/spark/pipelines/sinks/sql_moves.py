"""The SQL statements that move the rows of staging tables into a table: an append, or an upsert with deletes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from barnabas.spark.pipelines.cdc import UNCHANGED_COLUMNS
from barnabas.spark.pipelines.database import Dialect

SEQUENCE: Final = "barnabas_sequence"
#: Stands in a staging table before and after each name of a column that a change left alone.
MARK: Final = "\x1f"
#: Most parts of a UNION in one group: SQLite takes 500 in a row.
_UNION_MAX: Final = 250


def marks_of(names: Sequence[str] | None) -> str | None:
    """Return the text that a staging table has for the names of the columns that a change left alone."""
    return f"{MARK}{MARK.join(names)}{MARK}" if names else None


@dataclass(frozen=True)
class Moves:
    dialect: Dialect
    #: Quotes a name, which may have any characters.
    quoted: Callable[[str], str]
    table: str
    #: The columns of the table that the rows have.
    names: tuple[str, ...]
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    delete_column: str | None = None
    #: Types of the table that PostgreSQL makes of text only by a cast, by column.
    casts: Mapping[str, str] = field(default_factory=dict)
    #: The rows have the numbers of an identity column, as in a copy of another table.
    brings_identity: bool = False
    #: Columns that some change left alone: the table keeps their values.
    unchanged: tuple[str, ...] = ()

    def append(self, stages: Sequence[str]) -> list[str]:
        listed = self._listed
        return [f"{self._into} SELECT {listed} FROM ({self._staged(stages)}) AS staged ORDER BY {SEQUENCE}"]

    def upsert(self, stages: Sequence[str]) -> list[str]:
        """Return the statements that write the last row of each key."""
        quoted, staged = self.quoted, self._staged(stages)
        table, keys = quoted(self.table), ", ".join(map(quoted, self.keys))
        ordered = quoted(self.order_by) if self.order_by else ""
        last = f"(SELECT * FROM {self._ranked(staged)} WHERE barnabas_rank = 1) AS last"
        kept, statements = "TRUE", []
        if self.delete_column:
            flag = quoted(self.delete_column)
            gone = f"{flag} IS NOT NULL AND {flag}"
            new = f" AND ({table}.{ordered} IS NULL OR last.{ordered} >= {table}.{ordered})" if ordered else ""
            match = self._same(table, "last")
            statements.append(f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {last} WHERE {match} AND {gone}{new})")
            kept = f"NOT ({gone})"
        others = [quoted(name) for name in self.names if name not in self.keys]
        changes = ", ".join(f"{column} = EXCLUDED.{column}" for column in others)
        # A late change must not undo a newer one of an earlier batch.
        newer = f" WHERE {table}.{ordered} IS NULL OR EXCLUDED.{ordered} >= {table}.{ordered}" if ordered else ""
        action = f"DO UPDATE SET {changes}{newer}" if changes else "DO NOTHING"
        rows = self._completed(last, staged) if self.unchanged else last
        return [
            *statements,
            f"{self._into} SELECT {self._listed} FROM {rows} WHERE {kept} ON CONFLICT ({keys}) {action}",
        ]

    def _completed(self, last: str, staged: str) -> str:
        """Return the last rows. Columns that they left alone have the value of an earlier row of the batch, else of the
        table."""
        quoted = self.quoted
        joins, found = [f"LEFT JOIN {quoted(self.table)} AS old ON {self._same('old', 'last')}"], {}
        for number, name in enumerate(self.unchanged):
            column, known = quoted(name), f"known_{number}"
            given = self._ranked(staged, where=f"NOT ({self._left_alone(name, 'staged')})")
            joins.append(
                f"LEFT JOIN (SELECT * FROM {given} WHERE barnabas_rank = 1) AS {known} ON {self._same(known, 'last')}"
            )
            found[name] = (
                f"CASE WHEN NOT ({self._left_alone(name, 'last')}) THEN last.{column} "
                f"WHEN {known}.barnabas_rank = 1 THEN {known}.{column} ELSE old.{column} END AS {column}"
            )
        flag = (self.delete_column,) if self.delete_column else ()
        columns = [found.get(name, f"last.{quoted(name)}") for name in (*self.names, *flag)]
        return f"(SELECT {', '.join(columns)} FROM {last} {' '.join(joins)}) AS last"

    def _left_alone(self, name: str, rows: str) -> str:
        marks = f"coalesce({rows}.{self.quoted(UNCHANGED_COLUMNS)}, '')"
        text = "'" + f"{MARK}{name}{MARK}".replace("'", "''") + "'"
        return f"instr({marks}, {text}) > 0" if self.dialect is Dialect.SQLITE else f"strpos({marks}, {text}) > 0"

    def _same(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{self.quoted(key)} = {other}.{self.quoted(key)}" for key in self.keys)

    def _ranked(self, staged: str, where: str = "TRUE") -> str:
        keys = ", ".join(map(self.quoted, self.keys))
        order = f"{self.quoted(self.order_by)} DESC NULLS LAST, " if self.order_by else ""
        rank = f"ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {order}{SEQUENCE} DESC) AS barnabas_rank"
        return f"(SELECT staged.*, {rank} FROM ({staged}) AS staged WHERE {where}) AS ranked"

    @property
    def _listed(self) -> str:
        return ", ".join(map(self.quoted, self.names))

    @property
    def _into(self) -> str:
        overriding = " OVERRIDING SYSTEM VALUE" if self.brings_identity else ""
        return f"INSERT INTO {self.quoted(self.table)} ({self._listed}){overriding}"

    def _staged(self, stages: Sequence[str]) -> str:
        quoted = self.quoted
        extra = [name for name in (self.delete_column, UNCHANGED_COLUMNS if self.unchanged else None) if name]
        given = [
            f"{cast(quoted(name), self.casts[name])} AS {quoted(name)}" if name in self.casts else quoted(name)
            for name in (*self.names, *extra)
        ]
        return _union([f"SELECT {', '.join([*given, SEQUENCE])} FROM {quoted(stage)}" for stage in stages])


def cast(column: str, cast_name: str) -> str:
    return f"CAST({column} AS {cast_name})"


def _union(parts: list[str]) -> str:
    """Return the rows of all parts; very many parts are grouped."""
    while len(parts) > _UNION_MAX:
        groups = [parts[at : at + _UNION_MAX] for at in range(0, len(parts), _UNION_MAX)]
        parts = [f"SELECT * FROM ({' UNION ALL '.join(group)}) AS part" for group in groups]
    return " UNION ALL ".join(parts)
