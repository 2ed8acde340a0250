"""Mutants of the tables that are filled from topics."""

from tests.simulation.mutants.mutant import Mutant

_FILLING = "spark/tables/filling.py"

MUTANTS = [
    Mutant(
        "a table of errors that begins after a rebuild is emptied",
        _FILLING,
        "        rebuilt = {self._table.rebuilt_mark: self._rebuilt} if self._rebuilt > 0 else {}\n",
        "        rebuilt: dict[str, int] = {}\n",
        finding="tables seed 6",
        world="tables",
    ),
    Mutant(
        "a table with the rows of a topic and no memory is filled from the beginning",
        _FILLING,
        "        if count:\n            raise TableStopped(",
        "        if False:\n            raise TableStopped(",
        finding="tables reading 1",
        world="tables",
        profile="cloned",
    ),
    Mutant(
        "a table that was set back goes on from its former positions",
        _FILLING,
        "    if began_with is not None and (what :=",
        "    if began_with == -99 and (what :=",
        world="tables",
        profile="set back",
    ),
    Mutant(
        "a table goes on with a topic that was created again",
        _FILLING,
        "    if any(each.hex() != table.topic_id for each in found):",
        "    if False:",
        world="tables",
        profile="recreated",
    ),
    Mutant(
        "rows of two topics are mixed in one table",
        _FILLING,
        "    if source is not None and source != table.source:",
        "    if False:",
        world="tables",
        profile="recreated",
    ),
    Mutant(
        "a table leaves out records that were deleted before it read them",
        _FILLING,
        '    if gone and table.on_loss == "stop":',
        "    if False:",
        world="tables",
        profile="trimmed",
    ),
    Mutant(
        "two runners write the same records",
        "spark/pipelines/sinks/exactly_once.py",
        "            if (NOWHERE if found is None else found) != start:",
        "            if False:",
        world="tables",
        profile="two runners",
    ),
    Mutant(
        "the positions of a table of errors go back",
        _FILLING,
        "past = {each: max(ends[each], self._error_marks[each]) for each in ends}",
        "past = {each: ends[each] for each in ends}",
        world="tables",
    ),
    Mutant(
        "a record that does not fit is noted again after a crash",
        _FILLING,
        "new = [offset not in self._known_bad.get(partition, ()) for partition, offset in places]",
        "new = [True for _ in places]",
        world="tables",
    ),
    Mutant(
        "a table moves on before its errors are written",
        _FILLING,
        "            if self._errors is not None and staged.bad:\n"
        "                past = {each: max(ends[each], self._error_marks[each]) for each in ends}\n"
        "                self._errors.publish(staged.bad, self._span(self._error_marks, past, self._errors_version))\n"
        "            self._main.publish(staged.main, self._span({each: marks[each] for each in ends}, ends, self._version))\n",
        "            self._main.publish(staged.main, self._span({each: marks[each] for each in ends}, ends, self._version))\n"
        "            if self._errors is not None and staged.bad:\n"
        "                past = {each: max(ends[each], self._error_marks[each]) for each in ends}\n"
        "                self._errors.publish(staged.bad, self._span(self._error_marks, past, self._errors_version))\n",
        world="tables",
    ),
    Mutant(
        "a rebuilt table keeps its positions",
        _FILLING,
        "        forgotten = {table.mark(part.partition): NOWHERE for part in _partitions(table, lookup)}\n",
        "        forgotten: dict[str, int] = {}\n",
        world="tables",
        profile="rebuilt",
    ),
    Mutant(
        "a table is emptied again at each batch after a rebuild",
        _FILLING,
        "_or_nowhere(place.known(table.rebuilt_mark)) >= table.generation:",
        "_or_nowhere(place.known(table.rebuilt_mark)) > table.generation:",
        world="tables",
        profile="rebuilt",
    ),
    Mutant(
        "files of a Delta table are deleted after a commit whose answer was lost",
        "spark/pipelines/sinks/delta_table.py",
        'self.discard([item for item in items if cast(str, item["path"]).rpartition("/")[2] not in live])',
        "self.discard(items)",
        world="tables",
    ),
    Mutant(
        "files of an Iceberg table are deleted after a commit whose answer was lost",
        "spark/pipelines/sinks/iceberg_table.py",
        'self.discard([item for item in items if cast(str, item["path"]).rpartition("/")[2] not in live])',
        "self.discard(items)",
        world="tables",
    ),
    Mutant(
        "a stream of changes goes on after its database was restored from an older copy",
        "spark/pipelines/sources/postgres_changes.py",
        "    if log < after:\n",
        "    if False:\n",
        finding="change capture reading 1",
        test="unit/spark/test_spark_pgoutput.py::test_log_that_ends_before_the_checkpoint_stops_the_stream",
        why="no simulated world has an SQL database",
    ),
    Mutant(
        "a value of PostgreSQL's log may have a negative size",
        "spark/pipelines/sources/pgoutput.py",
        "                if size < 0 or len(found) < size:\n",
        "                if len(found) < size:\n",
        finding="change capture reading 2",
        test="unit/spark/test_spark_pgoutput.py::test_bytes_that_are_not_a_message_are_refused",
        why="no simulated world has an SQL database",
    ),
]
