"""Mutants of logs with faults: damaged small files, no free descriptor, changed settings, flushes, moves."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    # -- moves between log directories, and the session of a broker
    Mutant(
        "of two logs of one partition the shorter one is used",
        "broker/storage/manager_moves.py",
        "    leaving = min(one, other, key=_reach)\n",
        "    leaving = max(one, other, key=_reach)\n",
        finding="core 1",
        world="storage",
        test="unit/broker/storage/manager/test_log_manager.py"
        "::test_of_one_partition_in_two_directories_the_one_that_goes_further_is_used",
    ),
    Mutant(
        "a broker that finds one partition twice does not start",
        "broker/storage/manager_moves.py",
        "    if None not in (one.topic_id, other.topic_id) and one.topic_id != other.topic_id:\n",
        "    if one is not other:\n",
        finding="core 1",
        world="storage",
        test="unit/broker/storage/manager/test_log_manager.py"
        "::test_of_one_partition_in_two_directories_the_one_that_goes_further_is_used",
    ),
    # -- what the loop reads, and small files that are damaged
    Mutant(
        "a truncation reads segments on the event loop",
        "broker/storage/truncation.py",
        "        state.env.threads.run(truncation.run, done)\n",
        "        from barnabas.broker.storage.environment import InlineThreads\n\n        InlineThreads().run(truncation.run, done)\n",
        finding="R4",
        world="storage",
        test="unit/broker/storage/log/test_truncation.py::test_event_loop_reads_no_segment_for_a_cut",
    ),
    Mutant(
        "a look-up by timestamp reads all of a segment whose records are deleted",
        "broker/storage/log_read.py",
        "    if start is None:\n"
        "        return None  # DeleteRecords moved the log start past the end of this segment\n"
        "    misses = 0\n",
        "",
        also=(
            (
                "broker/storage/log_read.py",
                "    for at, header in segment.headers(start.position):\n",
                "    for at, header in segment.headers(0 if start is None else start.position):\n",
            ),
        ),
        finding="core 4",
        world="storage",
        test="unit/broker/storage/log/test_read.py::test_segment_whose_records_are_all_deleted_is_not_read_for_a_timestamp",
    ),
    Mutant(
        "a damaged index of aborted transactions makes a clean start forget all producers",
        "broker/storage/recovery.py",
        "        if clean and not self._had_snapshots:\n",
        "        if clean and not self._snapshots.offsets:\n",
        also=(
            (
                "broker/storage/recovery.py",
                "        producers = self._new_producers()\n        rebuild_producers(\n",
                "        producers = self._new_producers()\n        self._snapshots.remove_outside(self._log_start, offset)\n"
                "        rebuild_producers(\n",
            ),
        ),
        finding="R6",
        world="storage",
        test="unit/broker/storage/log/test_recovery.py::test_producers_of_a_log_that_was_closed_cleanly_survive_a_repair",
    ),
    Mutant(
        "a rebuilt index of aborted transactions gets its name before it is on disk",
        "broker/storage/segment_recovery.py",
        "        disk.fsync_path(aside.path)\n",
        "",
        finding="storage seed 248",
        world="storage",
        test="unit/broker/storage/log/test_recovery.py"
        "::test_index_of_aborted_transactions_that_is_built_again_is_on_disk_before_it_gets_its_name",
    ),
    Mutant(
        "a damaged tail prevents the rebuild of a damaged index of aborted transactions",
        "broker/storage/segment_recovery.py",
        "    except (CorruptSegment, _Damage) as error:\n",
        "    except ZeroDivisionError as error:\n",
        finding="storage seed 1728",
        world="storage",
        test="unit/broker/storage/log/test_recovery.py"
        "::test_damaged_tail_keeps_no_damaged_index_of_aborted_transactions_from_being_built_again",
    ),
    Mutant(
        "a deleted segment comes back without its aborted transactions",
        "broker/storage/leftovers.py",
        "    came_back = _came_back([parsed for _, parsed in files if parsed is not None])\n",
        "    came_back: set[int] = set()\n",
        finding="storage seed 292",
        world="storage",
        test="unit/broker/storage/log/test_recovery.py"
        "::test_deleted_segment_whose_log_alone_comes_back_gets_its_indexes_again",
    ),
    Mutant(
        "an index of aborted transactions is deleted before the deletion of its log file is durable",
        "broker/storage/log_segments.py",
        "            if any(names.TXN_INDEX_SUFFIX in path and env.disk.exists(path) for path in here):\n",
        "            if False:\n",
        finding="storage seed 185",
        world="storage",
        test="unit/broker/storage/log/test_recovery.py::test_deleted_segment_never_comes_back_without_what_was_aborted_in_it",
    ),
    Mutant(
        "a start deletes an index of aborted transactions before the deletion of its log file is durable",
        "broker/storage/leftovers.py",
        "    if any(name.endswith(names.TXN_INDEX_SUFFIX + names.DELETED_SUFFIX) for name, _ in files):\n",
        "    if False:\n",
        finding="storage seed 185",
        world="storage",
        test="unit/broker/storage/log/test_recovery.py::test_deleted_segment_never_comes_back_without_what_was_aborted_in_it",
    ),
    Mutant(
        "a start after a crash does not save where logs start",
        "broker/storage/manager_load.py",
        "                is_wanted = offsets != known\n",
        "                is_wanted = False\n",
        finding="storage seed 1812",
        world="storage",
        test="unit/broker/storage/manager/test_log_manager.py"
        "::test_start_after_a_crash_saves_log_starts_before_recovery_points",
    ),
    # -- settings that change, and a process without a free descriptor
    Mutant(
        "a disk that fails during a change of settings keeps it from all other logs",
        "broker/storage/manager.py",
        "            except LogDirFault as fault:\n                # The log has reported it. The other logs",
        "            except ZeroDivisionError as fault:\n                # The log has reported it. The other logs",
        finding="core 6",
        world="storage",
        test="unit/broker/storage/manager/test_failing_dirs.py"
        "::test_disk_that_fails_as_settings_change_leaves_the_settings_of_other_logs_changed",
    ),
    Mutant(
        "a roll that fails leaves its segment for the next start",
        "broker/storage/log_segments.py",
        "            self._discard([segment])\n            raise\n        self._flusher.unsynced.add(segment.log_path)\n",
        "            raise\n        self._flusher.unsynced.add(segment.log_path)\n",
        finding="core 20",
        world="storage",
        test="unit/broker/storage/log/test_descriptors.py"
        "::test_segment_that_cannot_be_begun_keeps_no_descriptor_and_hides_no_record_from_the_next_start",
    ),
    Mutant(
        "a segment that could not be rolled counts as one with room",
        "broker/storage/segment.py",
        "        last = self.time_index.last_entry  # opens both indexes, so that they have room\n"
        "        self._index_full = True  # if the rest fails",
        "        self._index_full = True\n        last = self.time_index.last_entry  # if the rest fails",
        finding="storage seed 1052",
        world="storage",
        test="unit/broker/storage/log/test_descriptors.py"
        "::test_segment_that_could_not_be_ended_takes_records_though_its_indexes_were_not_open_before",
    ),
    Mutant(
        "the blocks of an index entry are allocated after its batch was written",
        "broker/storage/segment.py",
        "            self.offset_index.reserve_entry()\n            self.time_index.reserve_entry()\n",
        "            pass\n",
        finding="core 20",
        world="storage",
        test="unit/broker/storage/log/test_descriptors.py"
        "::test_change_without_a_free_descriptor_is_done_or_left_undone_or_the_fault_of_the_directory",
    ),
    Mutant(
        "a log continues after a partial truncation",
        "broker/storage/log_state.py",
        '        self.fault(descriptors.half_way(error, f"the log of {self.partition}"))\n',
        "        self.fault(error)\n",
        finding="core 20",
        world="storage",
        test="unit/broker/storage/log/test_descriptors.py"
        "::test_change_without_a_free_descriptor_is_done_or_left_undone_or_the_fault_of_the_directory",
    ),
    Mutant(
        "a follower has the leader epochs of records that it could not append",
        "broker/storage/appender.py",
        "        self._write(data, plan, first, last, max_timestamp, offset_of_max, now_ms)\n"
        "        # Only after the write: an append refused for want of a descriptor comes again, and must find the old epochs.\n"
        "        for header, _ in batches:\n"
        "            self._start_epoch(header.leader_epoch, header.base_offset)\n",
        "        for header, _ in batches:\n"
        "            self._start_epoch(header.leader_epoch, header.base_offset)\n"
        "        self._write(data, plan, first, last, max_timestamp, offset_of_max, now_ms)\n",
        finding="core 20",
        world="storage",
        test="unit/broker/storage/log/test_descriptors.py"
        "::test_leader_epochs_of_a_failed_append_are_unknown_until_it_is_repeated",
    ),
    Mutant(
        "a truncation uses a producer snapshot from below the log start",
        "broker/storage/producer_replay.py",
        "        snapshot = None\n    start = log_start_offset if snapshot is None else snapshot.offset\n",
        "        pass\n    start = log_start_offset if snapshot is None else max(snapshot.offset, log_start_offset)\n",
        finding="core 24",
        world="storage",
        test="unit/broker/storage/log/test_upkeep.py"
        "::test_transaction_whose_marker_is_below_the_log_start_is_not_open_after_a_truncation",
    ),
    Mutant(
        "a follower begins a segment after offsets that compaction removed",
        "broker/storage/appender.py",
        "self._segments.roll(end if last - end <= RELATIVE_OFFSET_MAX else first, now_ms)\n",
        "self._segments.roll(first, now_ms)\n",
        finding="core 21",
        world="storage",
        test="unit/broker/storage/log/test_recovery.py"
        "::test_offsets_removed_by_compaction_at_a_followers_segment_start_are_not_a_lost_tail",
    ),
    Mutant(
        "an index that has become too small loses entries",
        "broker/storage/index_file.py",
        "        return max(self._round(self.max_index_bytes), (entries + 1) * self.ENTRY_SIZE)\n",
        "        return self._round(self.max_index_bytes)\n",
        finding="core 22",
        world="storage",
        test="unit/broker/storage/log/test_upkeep.py"
        "::test_smaller_segment_index_bytes_cost_no_entry_of_the_segment_that_is_active",
    ),
    Mutant(
        "retention deletes segments that a worker of the cleaner reads",
        "broker/storage/manager_upkeep.py",
        "        if not log.config.is_compacted and not is_being_cleaned(log.partition):\n",
        "        if not log.config.is_compacted:\n",
        finding="core 23",
        world="storage",
        test="unit/broker/storage/cleaner/test_cleaner.py"
        "::test_log_that_is_no_longer_compacted_has_its_retention_after_its_cleaning",
    ),
    Mutant(
        "a log that moves is deleted before its copy is on disk",
        "broker/storage/manager_moves.py",
        "        self._old[old.partition] = _Old(old.directory, [])\n        self._make_safe(old, copy)\n",
        "        self._delete(old)\n",
        finding="core 1",
        world="storage",
        test="unit/broker/storage/manager/test_moves.py::test_power_cut_at_any_step_of_a_move_takes_nothing_that_was_flushed",
    ),
    Mutant(
        "of two logs of one partition the one that is used is not made durable",
        "broker/storage/manager_moves.py",
        "        _make_durable(staying, disk)\n",
        "",
        finding="storage seed 347",
        world="storage",
        test="unit/broker/storage/manager/test_moves.py::test_kill_in_a_move_and_a_power_cut_after_that_take_nothing_that_was_flushed",
    ),
    Mutant(
        "a copy takes the directory of a log that a checkpoint still lists",
        "broker/storage/manager.py",
        "                self._save_bounds(future.log_dir, then)\n\n        directory, disk",
        "                then(None)\n\n        directory, disk",
        finding="storage seed 567",
        world="storage",
        test="unit/broker/storage/manager/test_moves.py::test_power_cut_in_a_move_back_takes_nothing_that_was_flushed",
    ),
    Mutant(
        "segments that recovery or a killed process deleted come back after the next power cut",
        "broker/storage/recovery.py",
        "        self._epoch_file.unsynced.add(doubtful[0].log_path)\n",
        "",
        finding="storage seeds 1035, 153",
        world="storage",
        test="unit/broker/storage/log/test_recovery.py::test_first_flush_after_a_crash_syncs_the_directory",
    ),
    Mutant(
        "the indexes of a segment that was being replaced are trusted",
        "broker/storage/recovery.py",
        "            elif segment.base_offset in replaced:\n                segment.rebuild_indexes",
        "            elif False:\n                segment.rebuild_indexes",
        finding="storage seed 20021",
        world="storage",
        test="unit/broker/storage/log/test_recovery.py::test_indexes_of_a_segment_that_was_being_replaced_are_built_again",
    ),
    Mutant(
        "records below an unsaved log start count as durable",
        "broker/storage/log.py",
        "        return self._retention.maybe_increment_log_start_offset(offset, reason)\n",
        "        moved = self._retention.maybe_increment_log_start_offset(offset, reason)\n"
        "        self.flusher.recovery_point = max(self.flusher.recovery_point, Offset(offset))\n"
        "        return moved\n",
        finding="power cut 6",
        world="storage",
        test="simulation/test_storage_power.py::test_deleted_records_that_a_power_cut_brings_back_keep_their_aborted_transactions",
    ),
    Mutant(
        "a log that begins again without a descriptor takes its directory offline",
        "broker/storage/truncation.py",
        '        state.check_descriptors()\n        logger.info("[partition %s] dropping',
        '        logger.info("[partition %s] dropping',
        finding="storage reading 3",
        world="storage",
        test="unit/broker/storage/log/test_descriptors.py::test_cut_for_which_there_are_too_few_descriptors_is_left_undone",
    ),
    Mutant(
        "a log that has begun again is reported as failed, because there was no descriptor for its bounds",
        "broker/storage/truncation.py",
        "            if isinstance(error, OSError) and descriptors.are_exhausted(error) and not state.is_closed:\n",
        "            if False:\n",
        finding="storage seed 3",
        world="storage",
        test="unit/broker/storage/log/test_descriptors.py::test_restart_of_a_log_is_reported_when_its_bounds_are_on_disk",
    ),
    Mutant(
        "a repair of indexes that could not begin never ends",
        "broker/storage/segment.py",
        "            self.is_under_repair = False  # no descriptor",
        "            pass  # no descriptor",
        finding="storage reading 3",
        world="storage",
        test="unit/broker/storage/log/test_index_repair.py::test_repair_that_could_not_begin_begins_with_the_next_read",
    ),
    Mutant(
        "a swap of compacted segments without a descriptor is left half done",
        "broker/storage/log_segments.py",
        "                if isinstance(error, OSError) and descriptors.are_exhausted(error):\n",
        "                if False:\n",
        finding="storage reading 3",
        world="storage",
        test="unit/broker/storage/log/test_descriptors.py"
        "::test_cleaned_segments_take_their_places_when_a_descriptor_is_free_again",
    ),
    # -- with flush.messages, acknowledged records are on disk
    Mutant(
        "with flush.messages a leader commits records that are not on its own disk",
        "broker/storage/log.py",
        "        if flusher.recovery_point < flusher.due_up_to and offset > flusher.recovery_point:\n",
        "        if False:\n",
        finding="seed 33",
        profile="flushed",
        test="unit/broker/replication/test_replica_manager.py::test_leader_commits_what_is_on_its_own_disk_too",
    ),
    Mutant(
        "with flush.messages records of a killed process count before they are on disk",
        "broker/storage/recovery.py",
        "        if end_offset - recovery_point >= self._config.flush_messages:\n",
        "        if False:\n",
        finding="kill, then power",
        profile="twice",
        test="unit/broker/storage/log/test_recovery.py"
        "::test_records_of_a_killed_process_are_on_disk_before_they_count_where_flush_messages_wants_that",
    ),
    Mutant(
        "the retry of a batch that is being flushed is answered at once",
        "broker/storage/appender.py",
        "            flush_due=before.last_offset >= self._flusher.recovery_point and self._flusher.is_due(),\n",
        "            flush_due=False,\n",
        finding="core 3",
        profile="ambushes",
        test="unit/broker/replication/test_replica_manager.py"
        "::test_retry_of_a_batch_that_is_being_flushed_waits_for_the_disk_too",
    ),
    Mutant(
        "a follower that could not write its leader epochs did not append",
        "broker/storage/retention.py",
        "            if not descriptors.are_exhausted(error):\n                state.fault(error)\n",
        "            state.fault(error)\n",
        finding="tier reading 3",
        profile="scarce",
        test="unit/broker/replication/test_replica_manager.py"
        "::test_follower_keeps_its_append_if_no_descriptor_is_free_for_the_log_start",
    ),
    Mutant(
        "a deleted log is forgotten before there is a descriptor for the checkpoints",
        "broker/storage/manager_upkeep.py",
        "            if isinstance(error, OSError) and descriptors.are_exhausted(error):\n"
        "                self._env.timers.call_later(descriptors.WAIT_S, lambda: save(log_dir))\n"
        "                return\n",
        "",
        finding="tier reading 4",
        profile="scarce",
        test="unit/broker/storage/manager/test_log_manager.py"
        "::test_a_deleted_log_is_forgotten_when_a_descriptor_is_free_for_the_checkpoints",
    ),
    Mutant(
        "a coordinator's record counts as lost if no descriptor is free to flush it",
        "broker/replication/appends.py",
        "            elif isinstance(error, LogDirFault) and descriptors.are_exhausted(error.cause):\n",
        "            elif False:\n",
        finding="tier reading 5",
        profile="scarce",
        test="unit/broker/replication/test_replica_manager.py"
        "::test_own_record_that_cannot_be_flushed_without_a_descriptor_is_committed_later",
    ),
    Mutant(
        "a move that cannot read its log's producer state ends the broker",
        "broker/replication/log_dir_moves.py",
        "await self._read(current, lambda: snapshot.disk.read_file(snapshot.path))\n",
        "await self._on_thread(lambda: snapshot.disk.read_file(snapshot.path))\n",
        finding="tier reading 6",
        test="unit/broker/storage/manager/test_moves.py::test_log_that_begins_in_the_tier_moves_with_what_it_knows_of_it",
        why="brokers that run out of descriptors have no tiered logs",
    ),
    Mutant(
        "segments that no descriptor was free to delete stay until the next start",
        "broker/storage/log_segments.py",
        "                env.timers.call_later(descriptors.WAIT_S, delete)  # the disk works, and no other code deletes the files\n",
        "                return\n",
        finding="tier reading 8",
        profile="scarce",
        test="unit/broker/storage/log/test_descriptors.py"
        "::test_deleted_segment_leaves_the_disk_when_a_descriptor_is_free_to_sync_its_directory",
    ),
    Mutant(
        "a deleted topic keeps its disk space until the next start if no descriptor was free",
        "broker/storage/manager.py",
        "                self._env.timers.call_later(descriptors.WAIT_S, work)\n",
        "                return\n",
        finding="tier reading 8",
        profile="scarce",
        test="unit/broker/storage/manager/test_log_manager.py"
        "::test_a_deleted_log_is_forgotten_when_a_descriptor_is_free_for_the_checkpoints",
    ),
    Mutant(
        "a compaction that had no descriptor begins again at once",
        "broker/storage/cleaner/cleaner.py",
        "                    after_ms = self.settings.backoff_ms\n",
        "                    after_ms = 0\n",
        finding="scarcity 1",
        profile="scarce",
        test="unit/broker/storage/cleaner/test_cleaner.py::test_a_worker_without_descriptors_tries_again_after_a_pause",
    ),
    Mutant(
        "a replica that has no descriptor for the topic id of its log goes offline",
        "broker/replication/control_requests.py",
        "            if not descriptors.are_exhausted(fault.cause):\n                raise\n",
        "            raise\n",
        finding="scarcity 2",
        profile="scarce",
        test="unit/broker/replication/test_control_requests.py"
        "::test_leader_that_cannot_write_its_topic_id_without_a_descriptor_goes_on_leading",
        why="every log of the simulation has its topic id from the beginning",
    ),
    Mutant(
        "a copy that no descriptor was free to give a topic id is left to the next start",
        "broker/storage/manager.py",
        "            if not descriptors.are_exhausted(fault.cause):\n"
        "                raise\n"
        "            # The directory exists, and the next start",
        "            raise\n            # The directory exists, and the next start",
        also=(
            (
                "broker/storage/manager.py",
                "        self._share_topic_id(current, future)\n        self._rename(",
                "        self._rename(",
            ),
        ),
        finding="scarcity 3",
        profile="scarce",
        test="unit/broker/storage/manager/test_log_manager.py"
        "::test_a_copy_without_a_descriptor_for_its_topic_id_gets_it_before_it_takes_the_place_of_its_log",
    ),
    Mutant(
        "an index beside which the other cannot be opened keeps its descriptor",
        "broker/storage/segment.py",
        "            self._release_indexes()  # one of them may be open: its map keeps a descriptor\n",
        "            self._offset_index = self._time_index = None\n",
        finding="scarcity 4",
        profile="scarce",
        test="unit/broker/storage/log/test_descriptors.py"
        "::test_index_beside_which_the_other_cannot_be_opened_gives_its_descriptor_back",
    ),
    Mutant(
        "a copy in the directory of its log is moved to where the log is",
        "broker/replication/log_dir_moves.py",
        "            if future.log_dir == partition.log.log_dir:\n",
        "            if False:\n",
        finding="scarcity 5",
        profile="scarce",
        test="unit/broker/storage/manager/test_moves.py::test_copy_beside_the_log_that_a_start_goes_on_with_is_deleted",
    ),
    Mutant(
        "a log whose worker could not be started three times is left alone",
        "broker/storage/cleaner/cleaner.py",
        "self._deaths.get(partition, 0) + report.was_running\n",
        "self._deaths.get(partition, 0) + 1\n",
        finding="tier reading 9",
        world="storage",
        test="unit/broker/storage/cleaner/test_cleaner.py::test_a_log_whose_worker_cannot_be_started_is_cleaned_when_it_can",
        why="the simulation's compaction workers are not processes, and always start",
    ),
    Mutant(
        "a segment begins without a producer snapshot if no descriptor is free",
        "broker/storage/log_segments.py",
        "        state.producers.update_map_end_offset(new_base)\n"
        "        if (snapshot := state.snapshots.take(state.producers, sync=False)) is not None:\n"
        "            self._flusher.unsynced.add(snapshot)\n",
        "",
        also=(
            (
                "broker/storage/log_segments.py",
                "        state.segments.add(segment)\n        logger.info(",
                "        state.segments.add(segment)\n"
                "        state.producers.update_map_end_offset(new_base)\n"
                "        if (snapshot := state.snapshots.take(state.producers, sync=False)) is not None:\n"
                "            self._flusher.unsynced.add(snapshot)\n"
                "        logger.info(",
            ),
        ),
        finding="tier reading 11",
        world="storage",
        test="unit/broker/storage/log/test_descriptors.py::test_segment_without_a_producer_snapshot_is_not_created",
        why="logs alone have no tier, and no whole broker of the simulation runs out of descriptors",
    ),
]
