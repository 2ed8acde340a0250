"""The table `barnabas_sink_progress`: which batches the tables of a database have. And the names of staging tables.

A row is about one query (or one name of `once=`) and one target, and holds the identity of the last batch that was written. The
sink writes it in the transaction that writes the rows. A batch of a higher number is new. The same batch again is left alone.
Any other batch is refused, unless the option `acceptReplannedBatch` says what to do with it.
"""

import hashlib
import logging
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from barnabas.spark.batch_identity import UNKNOWN, BatchIdentity, NotTheSameBatch, begins_elsewhere, refusal
from barnabas.spark.checkpoint import BY_CALLER, EDITED, NAMELESS, Planned
from barnabas.spark.decision import SKIP, WRITE
from barnabas.spark.pipelines.database import Database, Dialect, execute, fetch
from barnabas.spark.pipelines.sinks.exactly_once import Standing

TABLE: Final = "barnabas_sink_progress"
_STAGE: Final = "barnabas_stage"
#: Stands for no batch: the row was inserted to be locked, and nothing has been written.
_NO_BATCH: Final = -1
#: The target of rows that a barnabas before 0.2 wrote: it did not note the target.
_ANY_TARGET: Final = ""
#: For a batch that the caller alone vouches for, by its name and number.
BY_CALLERS_NUMBER: Final = Planned(checkpoint=BY_CALLER, offsets=BY_CALLER, is_of_part=True)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written:
    """The last batch of a query that a target has."""

    number: int
    #: None in a row that a barnabas before 0.2 wrote.
    identity: BatchIdentity | None


def standing_of(
    written: Written | None, planned: BatchIdentity, *, plan: Planned = BY_CALLERS_NUMBER, accepted: str = ""
) -> Standing:
    """Decide what to do with the planned batch. Raises `NotTheSameBatch` if only a person can decide.

    `accepted`: WRITE or SKIP if the user has accepted the batch as it is planned now.
    """
    if written is None:
        if UNKNOWN in (planned.checkpoint, planned.offsets):
            log.warning("%s: if it comes again, the sink cannot recognise it and refuses it. %s", planned, plan.reason)
        return Standing.WRITE
    before = written.identity or BatchIdentity(
        query=planned.query, checkpoint=UNKNOWN, batch=written.number, offsets=UNKNOWN, target=UNKNOWN
    )
    if (before.checkpoint or NAMELESS) in plan.replaces:
        return Standing.WRITE  # the checkpoint was set back on purpose
    is_later = planned.batch > written.number
    if is_later and UNKNOWN in (before.checkpoint, planned.checkpoint):
        return Standing.WRITE
    is_edited = begins_elsewhere(before, planned.batch, plan.previous_of(planned.batch))
    if is_later and before.checkpoint == planned.checkpoint and not is_edited:
        return Standing.WRITE
    # Several writes of one micro-batch (`once=`) have several numbers and the same offsets.
    if not is_later and not set(before.differences(planned)) - {"batch"}:
        return Standing.LEAVE
    if not accepted:
        reason = EDITED.format(written.number) if is_edited and not plan.reason else plan.reason
        raise NotTheSameBatch(_refusal(written, before, planned, reason))
    log.warning("acceptReplannedBatch=%d:%s: %s. Written before: %s", planned.batch, accepted, planned, before)
    return Standing.SKIP if accepted == SKIP else Standing.WRITE


def _refusal(written: Written, before: BatchIdentity, planned: BatchIdentity, reason: str) -> str:
    if written.identity is None:
        reason = "An older barnabas wrote the progress table, and it noted neither target, checkpoint nor offsets"
    elif written.number > planned.batch:
        reason = (
            "A later batch was written already: the checkpoint was set back, or a former driver of the query still runs"
        )
    option = f"acceptReplannedBatch={planned.batch}"
    remedy = (
        f"Start the query once with the option {option}:{WRITE} to write this batch (rows that the table has already come "
        f"twice unless mode is upsert), or with {option}:{SKIP} to leave it out."
    )
    return refusal(before, planned, remedy=remedy, reason=reason.rstrip("."))


class Progress:
    """The progress of one query into one target. Owner: the transaction of `connection`."""

    def __init__(self, database: Database, connection: Any, *, query_id: str, target: str) -> None:
        self._database = database
        self._connection = connection
        self._key = [query_id, target]

    def prepare(self) -> None:
        """Make the table, or bring the table of an older barnabas into form. Commits."""
        execute(self._connection, _CREATE.format(table=TABLE))
        columns = {column.name for column in self._database.table_columns(self._connection, TABLE)}
        self._connection.commit()
        if "target" not in columns:
            self._migrate()
            self._connection.commit()

    def claim(self, planned: BatchIdentity, *, plan: Planned, accepted: str) -> Standing:
        """Decide what to do with the batch. Of two drivers one waits here for the other to commit."""
        text = self._database.parameter
        execute(
            self._connection,
            f"INSERT INTO {TABLE} (query_id, target, batch_id, identity) "
            f"VALUES ({text(1, 'TEXT')}, {text(2, 'TEXT')}, {_NO_BATCH}, '') ON CONFLICT (query_id, target) DO NOTHING",
            self._key,
        )
        written = self._find(*self._key) or self._find(self._key[0], _ANY_TARGET)
        return standing_of(written, planned, plan=plan, accepted=accepted)

    def note(self, written: BatchIdentity) -> None:
        """Note the batch in the transaction that wrote it."""
        text = self._database.parameter
        execute(
            self._connection,
            f"UPDATE {TABLE} SET batch_id = {text(1, 'BIGINT')}, identity = {text(2, 'TEXT')} "
            f"WHERE query_id = {text(3, 'TEXT')} AND target = {text(4, 'TEXT')}",
            [str(written.batch), written.as_text(), *self._key],
        )

    def _find(self, query_id: str, target: str) -> Written | None:
        text = self._database.parameter
        locked = " FOR UPDATE" if self._database.dialect is Dialect.POSTGRESQL else ""
        rows = fetch(
            self._connection,
            f"SELECT batch_id, identity FROM {TABLE} "
            f"WHERE query_id = {text(1, 'TEXT')} AND target = {text(2, 'TEXT')} AND batch_id > {_NO_BATCH}{locked}",
            [query_id, target],
        )
        if not rows:
            return None
        identity = rows[0]["identity"]
        return Written(int(rows[0]["batch_id"]), BatchIdentity.of_text(identity) if identity else None)

    def _migrate(self) -> None:
        """Convert the old table, which has one row for each query and no targets. Another driver may do the same at this
        moment."""
        old = f"{TABLE}_of_0_1"
        if self._database.dialect is Dialect.POSTGRESQL:
            execute(self._connection, f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
        else:
            execute(self._connection, f"UPDATE {TABLE} SET batch_id = batch_id")  # takes SQLite's lock for writers
        if "target" in {column.name for column in self._database.table_columns(self._connection, TABLE)}:
            return
        log.warning("%s: bringing table %s into the form of this version", self._database.name, TABLE)
        execute(self._connection, f"ALTER TABLE {TABLE} RENAME TO {old}")
        if self._database.dialect is Dialect.POSTGRESQL:
            execute(self._connection, f"ALTER INDEX IF EXISTS {TABLE}_pkey RENAME TO {old}_pkey")
        execute(self._connection, _CREATE.format(table=TABLE))
        execute(
            self._connection,
            f"INSERT INTO {TABLE} (query_id, target, batch_id, identity) "
            f"SELECT query_id, '{_ANY_TARGET}', batch_id, '' FROM {old}",
        )
        execute(self._connection, f"DROP TABLE {old}")


_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS {table} (query_id TEXT NOT NULL, target TEXT NOT NULL, batch_id BIGINT NOT NULL, "
    "identity TEXT NOT NULL, PRIMARY KEY (query_id, target))"
)


# -- names of staging tables --------------------------------------------------------------------------------------------


def stage_name(query_id: str, batch: int, target: str) -> str:
    """Return a name that no other task, attempt, run or target has; of at most 63 characters, PostgreSQL's limit."""
    return f"{_stage_prefix(query_id, target)}{batch}_{uuid.uuid4().hex[:16]}"


def _stage_prefix(query_id: str, target: str) -> str:
    """Return the prefix as a digest: a name of `once=` may have any characters and any length."""
    digest = hashlib.sha256(f"{query_id}\0{target}".encode()).hexdigest()[:16]
    return f"{_STAGE}_{digest}_"


def leftovers(names: Iterable[str], query_id: str, batch: int, target: str) -> set[str]:
    """Return the staging tables that no driver can publish once the progress table has this batch: those of
    this query, this target, and this batch or an earlier one. The progress table would refuse them.

    A driver may be at a later batch already, so its tables stay.
    """
    new = re.compile(re.escape(_stage_prefix(query_id, target)) + r"(\d+)_[0-9a-f]{16}")
    # Barnabas before 0.2 named them by query, batch, partition and attempt; the attempts of each run start at 0.
    old = re.compile(rf"{_STAGE}_{re.escape(query_id.replace('-', '')[:20])}_(\d+)_\d+_\d+")
    found = ((name, new.fullmatch(name) or old.fullmatch(name)) for name in names)
    return {name for name, match in found if match and int(match[1]) <= batch}
