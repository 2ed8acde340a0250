"""Mutants of rooms that no simulated world has: the registry, the SQL sink, tables, the console; and links and the tier, where
only a test shows the defect. Each names its test."""

from tests.simulation.mutants.mutant import Mutant

_NO_REGISTRY = "no simulated world has a registry"
_NO_DATABASE = "no simulated world has an SQL database"
_NO_CONSOLE = "no simulated world has a console"
_NO_DOCTOR = "no simulated world asks the doctor"
_DOCTOR = (
    "unit/services/doctor/test_doctor_cluster.py::"
    "test_things_that_are_gone_since_the_list_was_made_hide_nothing_and_cut_lists_are_noted"
)
_NO_ACLS = "no simulated cluster has ACLs"
_NO_LIES = "the simulated store loses and delays objects, but never changes them"
_NO_LYING_SOURCE = "the simulated source is honest"

_ACCESS = "unit/services/registry/test_access_patterns.py::"
_DECISIONS = "scenarios/registry/test_decisions.py::"
_SQL = "unit/spark/test_spark_sql_progress.py::"
_BLOCKS = "unit/broker/features/tiered/test_blocks.py::"
_TIER = "unit/broker/features/tiered/test_tier_reader.py::"
_SPARK_TIER = "unit/spark/test_spark_tier_reads.py::"
_SESSIONS = "unit/services/console/test_console_sessions.py::"
_LINKS = "unit/broker/features/link/"

MUTANTS = [
    # -- the registry
    Mutant(
        "a part of an access pattern may match before the part in front of it",
        "services/registry/access.py",
        "            at += len(part)\n",
        "            at = len(first)\n",
        test=f"{_ACCESS}test_matches_are_those_of_a_regular_expression",
        why=_NO_REGISTRY,
    ),
    Mutant(
        "the first and the last part of an access pattern may share characters",
        "services/registry/access.py",
        "        return at <= end\n",
        "        return True\n",
        test=f"{_ACCESS}test_only_a_star_is_special",
        why=_NO_REGISTRY,
    ),
    Mutant(
        "an access pattern costs the loop seconds for a long subject",
        "services/registry/access.py",
        "        first, *rest = self.parts\n        if not rest:",
        "        found = re.compile('.*?'.join(map(re.escape, self.parts)), re.DOTALL).fullmatch(subject)\n"
        "        first, *rest = self.parts\n        if found is not None or not rest:",
        finding="registry reading 1",
        test=f"{_ACCESS}test_hostile_subject_costs_no_more_than_its_length",
        why=_NO_REGISTRY,
    ),
    Mutant(
        "a record that is taken back and never arrives holds up all writes",
        "services/registry/node.py",
        "            async with asyncio.timeout(self._config.write_timeout_ms / 1000):\n"
        "                await self._log.applied(last)\n        except TimeoutError:\n            self._log.give_up()\n"
        '            raise errors.timed_out("Write to the Kafka store timed out while it was taken back")',
        "            async with asyncio.timeout(3600):\n"
        "                await self._log.applied(last)\n        except TimeoutError:\n            self._log.give_up()\n"
        '            raise errors.timed_out("Write to the Kafka store timed out while it was taken back")',
        finding="registry reading 2",
        test="unit/services/registry/test_taking_back.py::test_record_that_never_arrives_does_not_hold_up_later_writes",
        why=_NO_REGISTRY,
    ),
    Mutant(
        "an import may bring ids up to the end of the range",
        "services/registry/writes.py",
        "        if wanted.id > IMPORTED_ID_MAX and",
        "        if wanted.id > 2**40 and",
        finding="A4",
        test=f"{_DECISIONS}test_an_import_near_the_end_of_the_ids_is_refused",
        why=_NO_REGISTRY,
    ),
    Mutant(
        "the id of a schema that was deleted for good is given again",
        "services/registry/writes.py",
        "            written.append(records.highest_id_record(context, highest))\n",
        "            pass\n",
        test=f"{_DECISIONS}test_ids_above_the_imported_ones_are_given_one_by_one_and_once",
        why=_NO_REGISTRY,
    ),
    Mutant(
        "a registration is acknowledged although readers skip its record",
        "services/registry/writes.py",
        "            records.check(record)\n",
        "            pass\n",
        finding="A4",
        test=f"{_DECISIONS}test_a_record_that_would_be_skipped_is_not_written",
        why=_NO_REGISTRY,
    ),
    Mutant(
        "a registration is not compared with the state that was read back",
        "services/registry/writes.py",
        "    return all(_is_held(store, records.key_of(key), value) for key, value in last.items())\n",
        "    return True\n",
        finding="A4",
        test=f"{_DECISIONS}test_written_records_are_compared_with_the_state",
        why=_NO_REGISTRY,
    ),
    Mutant(
        "a version follows the last possible one",
        "services/registry/writes.py",
        "    if number > _VERSION_MAX:\n",
        "    if False:\n",
        test=f"{_DECISIONS}test_no_version_follows_the_last_one_until_it_is_deleted_permanently",
        why=_NO_REGISTRY,
    ),
    Mutant(
        "two instances that both were primary keep their office",
        "services/registry/election.py",
        "    candidates = before if len(before) == 1 else eligible\n",
        "    candidates = before or eligible\n",
        test=f"{_DECISIONS}test_the_smallest_address_is_elected_unless_one_leads_already",
        why=_NO_REGISTRY,
    ),
    # -- the SQL sink
    Mutant(
        "the SQL sink writes the batch after one whose offsets were edited",
        "spark/pipelines/sinks/sql_progress.py",
        "    is_edited = begins_elsewhere(before, planned.batch, plan.previous_of(planned.batch))\n",
        "    is_edited = False\n",
        finding="sinks reading 1",
        test=f"{_SQL}test_batch_after_one_whose_offsets_were_edited_is_refused_until_an_option_names_it",
        why=_NO_DATABASE,
    ),
    Mutant(
        "the SQL sink writes a batch that comes again",
        "spark/pipelines/sinks/sql_progress.py",
        "        return Standing.LEAVE\n",
        "        return Standing.WRITE\n",
        test=f"{_SQL}test_batch_is_new_once",
        why=_NO_DATABASE,
    ),
    Mutant(
        "the SQL sink leaves another batch of the same number out",
        "spark/pipelines/sinks/sql_progress.py",
        '    if not is_later and not set(before.differences(planned)) - {"batch"}:\n',
        "    if not is_later:\n",
        finding="P2",
        test=f"{_SQL}test_another_batch_is_refused_until_an_option_names_it",
        why=_NO_DATABASE,
    ),
    Mutant(
        "the SQL sink drops staging tables of later batches",
        "spark/pipelines/sinks/sql_progress.py",
        "if match and int(match[1]) <= batch}",
        "if match}",
        test=f"{_SQL}test_only_staging_tables_of_written_batches_are_left_over",
        why=_NO_DATABASE,
    ),
    Mutant(
        "the SQL sink drops staging tables of another target",
        "spark/pipelines/sinks/sql_progress.py",
        '    digest = hashlib.sha256(f"{query_id}\\0{target}".encode())',
        '    digest = hashlib.sha256(f"{query_id}".encode())',
        test=f"{_SQL}test_only_staging_tables_of_written_batches_are_left_over",
        why=_NO_DATABASE,
    ),
    Mutant(
        "two attempts of a task share a staging table",
        "spark/pipelines/sinks/sql_progress.py",
        '{batch}_{uuid.uuid4().hex[:16]}"',
        "{batch}_{'0' * 16}\"",
        test=f"{_SQL}test_no_two_staging_tables_have_one_name",
        why=_NO_DATABASE,
    ),
    Mutant(
        "a checkpoint that was set back by the command is refused by the SQL sink",
        "spark/pipelines/sinks/sql_progress.py",
        "    if (before.checkpoint or NAMELESS) in plan.replaces:\n",
        "    if False:\n",
        test=f"{_SQL}test_checkpoint_that_was_set_back_on_purpose_writes_again",
        why=_NO_DATABASE,
    ),
    # -- the tier
    Mutant(
        "blocks that are read back from the tier are not checked",
        "broker/features/tiered/local_copies.py",
        "            copy.blocks.check(data, first)\n",
        "            pass\n",
        finding="tier blocks",
        test=f"{_TIER}test_bytes_that_no_batch_covers_are_a_fault_that_names_the_object_and_never_a_record",
        why=_NO_LIES,
    ),
    Mutant(
        "indexes of another segment with the same end are taken",
        "broker/features/tiered/layout.py",
        "    if name is None or blocks.segment_uuid != name.id.uuid:\n",
        "    if name is None:\n",
        finding="tier blocks",
        test=f"{_TIER}test_indexes_of_another_segment_with_the_same_end_are_a_fault",
        why=_NO_LIES,
    ),
    Mutant(
        "wrong checksums of a segment in the tier are kept",
        "broker/features/tiered/local_copies.py",
        "            self.forget(copy)\n            key = ",
        "            key = ",
        finding="tier blocks",
        test=f"{_TIER}test_wrong_checksums_are_fetched_again_once_they_are_right",
        why=_NO_LIES,
    ),
    Mutant(
        "segments are copied without checksums of blocks",
        "broker/features/tiered/copier.py",
        "    parts[layout.Part.BLOCKS] = _blocks(disk, candidate, segment).encode()\n",
        "",
        finding="tier blocks",
        test="unit/broker/features/tiered/test_tier_broker.py::test_rolled_segments_go_up_and_then_go_locally",
        why=_NO_LIES,
    ),
    Mutant(
        "checksums of blocks say nothing about the size of the segment",
        "broker/features/tiered/layout.py",
        "    if size_bytes is not None and blocks.size_bytes != size_bytes:\n",
        "    if False:\n",
        finding="tier blocks",
        test=f"{_BLOCKS}test_indexes_name_the_segment_and_the_size_of_its_records",
        why=_NO_LIES,
    ),
    Mutant(
        "a block of checksums is compared with that of the object's beginning",
        "broker/features/tiered/blocks.py",
        "            number = (start + at) // self.block_bytes\n",
        "            number = at // self.block_bytes\n",
        finding="tier blocks",
        test=f"{_BLOCKS}test_whole_blocks_of_any_size_pass_and_come_back_as_they_were_packed",
        why=_NO_LIES,
    ),
    Mutant(
        "Spark reads the object store without the checksums of blocks",
        "spark/tier_reads.py",
        "        blocks.check(data, first)\n",
        "        pass\n",
        finding="tier blocks",
        test=f"{_SPARK_TIER}test_bytes_that_no_batch_covers_are_a_failure_that_names_the_object",
        why=_NO_LIES,
    ),
    # -- the console
    Mutant(
        "the cookie of another process names a session",
        "services/console/sessions.py",
        '        if not _same(signature, self._sign("cookie", identifier)):\n',
        "        if False:\n",
        test=f"{_SESSIONS}test_a_cookie_that_was_not_signed_names_nothing",
        why=_NO_CONSOLE,
    ),
    Mutant(
        "a session in use never ends",
        "services/console/sessions.py",
        "        return now_s >= min(session.ends_s, session.used_s + IDLE_S)\n",
        "        return now_s >= session.used_s + IDLE_S\n",
        test=f"{_SESSIONS}test_a_session_in_use_ends_after_its_life",
        why=_NO_CONSOLE,
    ),
    Mutant(
        "a session outlives the token that it was made from",
        "services/console/sessions.py",
        "            ends_s=now_s + min(lifetime_s, LIFETIME_S),\n",
        "            ends_s=now_s + LIFETIME_S,\n",
        test=f"{_SESSIONS}test_a_token_of_a_minute_makes_a_session_of_a_minute",
        why=_NO_CONSOLE,
    ),
    Mutant(
        "one user may have all sessions of the console",
        "services/console/sessions.py",
        "        if len(mine) >= SESSIONS_PER_USER_MAX:\n",
        "        if False:\n",
        test=f"{_SESSIONS}test_a_user_with_many_sessions_loses_the_one_not_used_for_longest",
        why=_NO_CONSOLE,
    ),
    Mutant(
        "pages of other sites may send requests",
        "services/http/origins.py",
        '    if not is_own or site not in ("none", "same-origin"):\n',
        "    if False:\n",
        test="unit/services/http/test_requests.py::test_origins",
        why=_NO_CONSOLE,
    ),
    Mutant(
        "a client chooses the address by which it is limited",
        "services/http/peers.py",
        '    last = ",".join(forwarded_for).rpartition(",")[2].strip()\n',
        '    last = ",".join(forwarded_for).partition(",")[0].strip()\n',
        finding="A1",
        test="unit/services/http/test_requests.py::test_the_last_address_counts_where_a_proxy_is_named",
        why=_NO_CONSOLE,
    ),
    # -- links
    Mutant(
        "a link copies ACLs about names that it does not mirror",
        "broker/features/link/acls.py",
        "            if covers(link.spec, link.topics, pattern):\n",
        "            if True:\n",
        finding="A5",
        test=f"{_LINKS}test_each_by_itself.py::test_only_entries_about_mirrored_names_come_over",
        why=_NO_ACLS,
    ),
    Mutant(
        "a link removes ACLs that it did not add",
        "broker/features/link/acls.py",
        "                wanted = new - await store.entries_of(pattern)\n",
        "                wanted = new\n",
        finding="A5",
        test=f"{_LINKS}test_each_by_itself.py::test_entry_that_was_here_before_the_link_stays_when_the_source_drops_it",
        why=_NO_ACLS,
    ),
    Mutant(
        "a link notes an added ACL after it has added it",
        "broker/features/link/acls.py",
        "                    await self._links.write_added_acls(link.name, pattern, mine)\n                if wanted:\n"
        "                    await store.add(pattern, wanted)\n",
        "                if wanted:\n                    await store.add(pattern, wanted)\n"
        "                await self._links.write_added_acls(link.name, pattern, mine)\n",
        finding="A5",
        test=f"{_LINKS}test_each_by_itself.py::test_controller_that_dies_before_it_adds_leaves_no_entry_for_good",
        why=_NO_ACLS,
    ),
    Mutant(
        "a source fills ZooKeeper with ACLs",
        "broker/features/link/acls.py",
        "        if count > ENTRIES_MAX:\n",
        "        if False:\n",
        finding="A5",
        test=f"{_LINKS}test_each_by_itself.py::test_source_cannot_fill_zookeeper_with_acls",
        why=_NO_ACLS,
    ),
    Mutant(
        "an unreadable entry of the source makes a list of ACLs unreadable",
        "broker/features/link/acls.py",
        "                    if _can_be_stored(pattern, each)\n",
        "",
        finding="A5",
        test=f"{_LINKS}test_each_by_itself.py::test_entry_that_would_make_a_list_unreadable_does_not_come_over",
        why=_NO_ACLS,
    ),
    Mutant(
        "an expression with a choice counts as one that covers all prefixes",
        "broker/features/link/coverage.py",
        "    except _TooGeneral:\n        return frozenset()\n",
        '    except _TooGeneral:\n        return frozenset({""})\n',
        finding="A5",
        test=f"{_LINKS}test_coverage.py::test_prefixes_that_an_expression_covers",
        why=_NO_ACLS,
    ),
    Mutant(
        "a source fills the cluster with partitions",
        "broker/features/link/steward.py",
        "        if more > room.left:\n",
        "        if False:\n",
        finding="links reading 1",
        test=f"{_LINKS}test_each_by_itself.py::test_source_cannot_fill_the_cluster_with_partitions",
        why=_NO_LYING_SOURCE,
    ),
    Mutant(
        "a turn of a link forgets the partitions that it has just given away",
        "broker/features/link/steward.py",
        "        room.left -= more\n",
        "",
        finding="links reading 1",
        test=f"{_LINKS}test_each_by_itself.py::test_source_cannot_fill_the_cluster_with_partitions",
        why=_NO_LYING_SOURCE,
    ),
    Mutant(
        "an object with indexes is read whatever its size",
        "broker/features/tiered/store.py",
        "            if size > bytes_max:\n",
        "            if False:\n",
        finding="tier reading 14",
        test="unit/broker/features/tiered/test_object_store.py::test_object_that_is_larger_than_it_can_be_is_not_read",
        why=_NO_LIES,
    ),
    Mutant(
        "a Parquet export holds thousands of records of any size",
        "services/console/parquet.py",
        "        if len(rows) == ROWS or size >= GROUP_BYTES:\n",
        "        if len(rows) == ROWS:\n",
        finding="console reading 1",
        test="unit/services/console/test_console_exports.py::test_large_records_are_written_to_parquet_a_few_at_a_time",
        why=_NO_CONSOLE,
    ),
    Mutant(
        "reports of queries may have any size",
        "services/console/pipelines.py",
        "        if bytes_here > _REPORT_BYTES_MAX or size + bytes_here > _REPORTS_BYTES_MAX:\n",
        "        if False:\n",
        finding="console reading 2",
        test="unit/services/console/test_console_exports.py::test_reports_that_are_too_large_do_not_hide_the_others",
        why=_NO_CONSOLE,
    ),
    Mutant(
        "one deleted topic hides the settings of all others from the doctor",
        "services/doctor/look.py",
        "describe_configs(self._cluster, asked, refused=refused)",
        "describe_configs(self._cluster, asked)",
        finding="doctor reading 1",
        test=_DOCTOR,
        why=_NO_DOCTOR,
    ),
    Mutant(
        "one ended transaction hides all others from the doctor",
        "services/doctor/look.py",
        "                refused[listed.transactional_id] = error\n                continue\n",
        "                raise\n",
        finding="doctor reading 1",
        test=_DOCTOR,
        why=_NO_DOCTOR,
    ),
    Mutant(
        "the doctor does not say that it has asked for some groups only",
        "services/doctor/look.py",
        "        if len(found) > ONE_BY_ONE_MAX:\n",
        "        if False:\n",
        finding="doctor reading 2",
        test=_DOCTOR,
        why=_NO_DOCTOR,
    ),
]
