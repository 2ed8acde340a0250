"""Many tables of one PostgreSQL whose changes are read through one publication and one slot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.database import Database, DatabaseError, execute, fetch
from barnabas.spark.pipelines.sources.watched_table import Facts, Watched, name_of

#: Options that each table has, as if it were read alone.
_OF_EACH: Final = ("uri", "slot", "publication", "snapshot", "maxRowsPerTrigger", "replicaIdentity")
_OPTIONS: Final = ("tables", "heartbeatMs", "publish", *_OF_EACH)


@dataclass(frozen=True)
class WatchedTables:
    """Never empty. All of the tables have the same slot and publication."""

    tables: tuple[Watched, ...]
    #: After so many milliseconds without a change of these tables the slot moves on to the end of the log.
    heartbeat_ms: int
    #: Whether a missing publication is created.
    publishes: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WatchedTables":
        check_names(options, _OPTIONS, what="format barnabas-postgres-log", prefixes=())
        names = [each.strip() for each in options.get("tables", "").split(",") if each.strip()]
        if not names:
            raise ValueError("barnabas-postgres-log needs the option tables: names of tables, by commas")
        shared = {
            "slot": "barnabas",
            "publication": "barnabas",
            **{name: options[name] for name in _OF_EACH if name in options},
        }
        return cls(
            tuple(Watched.parse({**shared, "table": name}) for name in dict.fromkeys(names)),
            heartbeat_ms=int(options.get("heartbeatMs", "0")),
            publishes=options.get("publish", "true").lower() == "true",
        )

    @property
    def log(self) -> Watched:
        """Return the one that reads the slot, which is the same for all."""
        return self.tables[0]

    @property
    def database(self) -> Database:
        return self.log.database

    def start(self) -> int:
        """Create publication and slot, unless they exist; return where the slot begins. A refused table: nothing is created."""
        with self.database.connect() as connection:
            facts = [each.facts_of(connection) for each in self.tables]
            for table, each in zip(self.tables, facts, strict=True):
                table.read_columns(each)
            found = fetch(
                connection,
                f"SELECT pubname FROM pg_publication WHERE pubname = {self.database.parameter(1, 'TEXT')}",
                [self.log.publication],
            )
            if not found:
                self._publish(connection, facts)
            for table in self.tables:
                table.require_published(connection)
            connection.commit()
        return self.log.make_slot()

    def _publish(self, connection: Any, facts: Sequence[Facts]) -> None:
        if not self.publishes:
            raise DatabaseError(f"{self.database.name}: there is no publication {self.log.publication}")
        for table, each in zip(self.tables, facts, strict=True):
            table.identify_rows(connection, each)
        option = " WITH (publish_via_partition_root = true)" if any(each.is_partitioned for each in facts) else ""
        names = ", ".join(self.database.quoted(each.table) for each in self.tables)
        execute(connection, f"CREATE PUBLICATION {name_of(self.log.publication)} FOR TABLE {names}{option}")

    def require_same(self, oids: Mapping[str, int]) -> dict[str, int]:
        """Check that the publication still publishes these very tables. Return their oids."""
        with self.database.connect() as connection:
            found = {each.table: each.require_published(connection) for each in self.tables}
        for table, oid in found.items():
            if oids.get(table, oid) != oid:
                raise DatabaseError(
                    f"{self.database.name}: {table} is another table than before: it was dropped or renamed, and created "
                    "again. Changes between the two are lost. Start again, with a new checkpoint and slot"
                )
        if new := sorted(found.keys() - oids.keys()) if oids else []:
            raise DatabaseError(
                f"{self.database.name}: {', '.join(new)} was not read before, and has no snapshot in this checkpoint: read it "
                "with a connector or a query of its own, or start again, with a new checkpoint and slot"
            )
        return found
