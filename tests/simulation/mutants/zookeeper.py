"""Wrongs of the embedded ZooKeeper, and of the session of a broker."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    # -- the embedded ZooKeeper and the session
    Mutant(
        "a broker that was killed waits for its former session",
        "broker/zookeeper_client",
        "            if self._former is not None and await self._former.end(stat.ephemeral_owner):",
        "            if False:",
        profile="power",
    ),
    Mutant(
        "a broker keeps the key to its session only after it has registered",
        "broker/zookeeper_client",
        """            await self._former.keep(await self._session.key())
        while True:
""",
        "            pass\n        while True:\n",
        also=(
            (
                "broker/zookeeper_client",
                "                self._registered(stat.czxid)\n                return self._epoch\n",
                "                self._registered(stat.czxid)\n"
                "                if self._former is not None:\n"
                "                    await self._former.keep(await self._session.key())\n"
                "                return self._epoch\n",
            ),
        ),
        finding="tier seed 73",
        profile="starts",
        test="unit/broker/zookeeper_client/test_registration.py"
        "::test_broker_that_was_killed_as_it_registered_closes_that_session_too",
    ),
    Mutant(
        "ZooKeeper takes a torn flush for damage",
        "zookeeper",
        "        if not mark and len(head) == RECORD_HEADER.size:",
        "        if len(head) == RECORD_HEADER.size:",
        finding="R11",
        profile="coincidences",
        test="unit/zookeeper/test_store.py::test_power_cut_may_take_any_page_of_the_last_flush",
    ),
    Mutant(
        "a bad byte in a snapshot of ZooKeeper hides the older good one",
        "zookeeper/snapshot.py",
        "            table[number] = tuple((source.i32(), source.text(), source.text()) for _ in range(source.i32()))\n",
        "            table[number] = tuple(\n"
        '                (source.i32(), (source.buffer() or b"").decode(), (source.buffer() or b"").decode())\n'
        "                for _ in range(source.i32())\n"
        "            )\n",
        finding="R11",
        profile="meetings",
        test="unit/zookeeper/test_store.py::test_snapshot_damaged_anywhere_is_passed_over_for_an_older_one",
    ),
    Mutant(
        "ZooKeeper takes a page of zeros among acknowledged writes for the end",
        "zookeeper",
        "        if mark > at:\n",
        "        if False:\n",
        also=(("zookeeper", "            self._disk.fdatasync(self._fd)\n", "            pass\n"),),
        profile="zookeeper",
    ),
    Mutant(
        "ephemeral znodes outlive their session",
        "zookeeper",
        "        paths = tuple(self.tree.ephemerals.get(session_id, ()))",
        "        paths = ()",
        also=(
            (
                "zookeeper",
                "        for path in dict.fromkeys((*txn.paths, *self.tree.ephemerals.get(session_id, ()))):",
                "        for path in txn.paths:",
            ),
        ),
        profile="zookeeper",
    ),
    Mutant(
        "ZooKeeper answers before its log is synced",
        "zookeeper",
        "        if self._records:\n            held = self._waiting\n        elif self._flushing is not None:\n            held = self._flushing\n        else:\n",
        "        if True:\n",
        profile="zookeeper",
    ),
    Mutant(
        "a conditional write ignores the version",
        "zookeeper",
        "    if expected not in (-1, current):\n        raise Refusal(Err.BAD_VERSION)\n",
        "",
        profile="zookeeper",
    ),
    Mutant(
        "a watch is not told",
        "zookeeper",
        "        clients = table.trigger(path, event)\n",
        "        clients = table.trigger(path, event)[1:]\n",
    ),
    Mutant(
        "a repeated operation is sent twice in another order",
        "broker/zookeeper_client",
        "        return self.order < other.order",
        "        return self.order > other.order",
    ),
    Mutant(
        "a foreign notification ends the broker",
        "broker/zookeeper_client",
        "        except Malformed as error:\n"
        '            log.error("[notifications %s] ignoring %s, change the resource again: %s", self._root, name, error)\n'
        "        except Exception:",
        "        except ZeroDivisionError:",
        profile="meetings",
        finding="R8",
        test="unit/broker/zookeeper_client/test_config_store.py::test_notification_that_makes_no_sense_is_passed_over",
    ),
    # -- moves between log directories, and the session of a broker
    Mutant(
        "a server of ZooKeeper that is behind says that a topic is gone",
        "broker/zookeeper_client/topic_lookup.py",
        "        await session.catch_up(paths.BROKER_TOPICS)\n",
        "",
        finding="control 4",
        test="unit/broker/zookeeper_client/test_topic_lookup.py"
        "::test_topic_that_a_server_of_zookeeper_has_not_heard_of_yet_exists",
        profile="ensemble",
    ),
    Mutant(
        "a broker that hosts a new topic has the settings that its server of ZooKeeper knows so far",
        "broker/zookeeper_client/config_store.py",
        "            await self._session.catch_up(paths.config_type(entity_type))\n",
        "            pass\n",
        finding="control 5",
        test="unit/broker/zookeeper_client/test_config_store.py"
        "::test_settings_of_a_topic_that_a_server_of_zookeeper_has_not_heard_of_yet_are_read",
        profile="ensemble",
    ),
    Mutant(
        "a quota that the server of ZooKeeper has not heard of yet is said to be removed, and stays",
        "broker/zookeeper_client/config_store.py",
        '            await self._session.catch_up("/")\n',
        "            pass\n",
        profile="ensemble",
        test="unit/broker/zookeeper_client/test_config_store.py"
        "::test_quota_that_a_server_of_zookeeper_has_not_heard_of_yet_is_removed",
    ),
    Mutant(
        "a broker that is back forgets the settings of a topic that it hears of while it reads all of them again",
        "broker/zookeeper_client/config_store.py",
        "for entity in known if entity not in found}",
        "for entity in self._known() if entity not in found}",
        finding="seed 1055",
        profile="ensemble",
        test="unit/broker/zookeeper_client/test_config_store.py"
        "::test_settings_of_a_topic_that_is_heard_of_while_all_are_read_again_stay",
        why="of the seeds of its profile, the first that notices it is 1055",
    ),
    Mutant(
        "entries of ACLs are left as the server of ZooKeeper knows them so far",
        "broker/security/acl_store.py",
        '        await self._session.catch_up("/")\n',
        "",
        profile="ensemble",
        test="unit/broker/security/test_acl_store.py::test_entry_that_a_server_of_zookeeper_has_not_heard_of_yet_is_removed",
        why="no cluster of the worlds has ACLs",
    ),
    Mutant(
        "a broker whose session expires as it registers ends",
        "broker/compose.py",
        "        await self._unless_stopped(self.session.outlive(self.registrar.register))\n",
        "        await self._unless_stopped(self.registrar.register())\n",
        finding="chaos 3607",
        profile="coincidences",
        test="simulation/test_start.py::test_a_broker_whose_session_expires_as_it_starts_goes_on_with_the_next_one",
    ),
    Mutant(
        "a broker that is not connected to ZooKeeper as it registers ends",
        "broker/zookeeper_client/session.py",
        '        while (found := self._connection.key) is None:\n            await self.exists("/")\n',
        '        if (found := self._connection.key) is None:\n            raise TypeError("no key")\n',
        finding="seed 10",
        profile="coincidences",
        test="unit/broker/zookeeper_client/test_registration.py"
        "::test_broker_registers_when_the_connection_is_back_that_was_lost_just_before",
    ),
    Mutant(
        "a broker that returns without a restart knows topics for ever that were deleted meanwhile",
        "broker/zookeeper_client/deleted_topics.py",
        "        if epochs != self._checked_epochs:\n            self._checked_epochs = epochs\n",
        "        if False:\n",
        finding="core 7",
        profile="coincidences",
        test="unit/broker/zookeeper_client/test_deleted_topics.py"
        "::test_broker_that_returns_forgets_topics_that_were_deleted_meanwhile",
    ),
    Mutant(
        "settings that changed while a broker was away for long are not read again",
        "broker/zookeeper_client/notifications.py",
        "            self._is_reload_due = True\n",
        "            pass\n",
        finding="core 8",
        profile="coincidences",
        test="unit/broker/zookeeper_client/test_config_store.py"
        "::test_broker_that_was_away_for_so_long_that_notifications_are_gone_reads_all_settings_again",
    ),
    Mutant(
        "where a group lives is counted by what the controller has told so far",
        "broker/zookeeper_client/internal_topic.py",
        "        if self.partitions:\n            return partition_of(key, self.partitions)\n",
        "        if counted := self._metadata.partition_count(self.name):\n            return partition_of(key, counted)\n",
        finding="chaos 3309",
        profile="coincidences",
        test="unit/broker/zookeeper_client/test_internal_topic.py"
        "::test_group_keeps_its_partition_while_the_controller_has_announced_only_some",
    ),
    # -- what strangers write into ZooKeeper
    Mutant(
        "somebody who deletes the place of notifications ends every broker",
        "broker/zookeeper_client/notifications.py",
        "                except ZkError as error:\n                    # A client has deleted or locked",
        "                except ZeroDivisionError as error:\n                    # A client has deleted or locked",
        finding="core 11",
        profile="strangers",
        test="unit/broker/zookeeper_client/test_config_store.py"
        "::test_broker_continues_when_the_parent_of_notifications_was_deleted",
    ),
    Mutant(
        "an assignment in ZooKeeper that makes no sense takes the controller from the cluster, or deletes all replicas",
        "broker/zookeeper_client/znodes.py",
        "        everyone = tuple(dict.fromkeys(replicas))\n        coming, going = set(adding), set(removing)\n",
        "        return ReplicaAssignment(tuple(replicas), adding=tuple(adding), removing=tuple(removing))\n"
        "        everyone = tuple(dict.fromkeys(replicas))\n        coming, going = set(adding), set(removing)\n",
        finding="core 14",
        profile="strangers",
        test="scenarios/controller/test_reassignment_scenarios.py"
        "::test_assignment_that_makes_no_sense_takes_the_controller_from_nobody_and_deletes_nothing",
    ),
    # -- topics and settings that change while nobody looks
    Mutant(
        "a topic that was made again has the partitions of the former one as well",
        "broker/zookeeper_client/metadata_cache.py",
        "            topic.partitions.clear()\n        for state in states:",
        "        for state in states:",
        profile="meetings",
        test="unit/broker/zookeeper_client/test_metadata_cache.py"
        "::test_nothing_of_a_topic_is_left_when_its_successor_is_heard_of_first",
    ),
    Mutant(
        "of two changes of an entity's settings at once one is lost",
        "broker/zookeeper_client/config_store.py",
        "            await self._session.set(path, data, version)\n",
        "            await self._session.set(path, data)\n",
        profile="meetings",
        test="unit/broker/compose/test_broker_settings.py::test_changes_of_several_settings_at_once_lose_none",
    ),
    Mutant(
        "an expired token that somebody has locked ends one controller after the other",
        "broker/security/token_store.py",
        "                except ZkError as error:\n",
        "                except NodeExists as error:\n",
        test="unit/broker/security/test_delegation_tokens.py"
        "::test_expired_token_that_cannot_be_removed_ends_no_broker_and_keeps_no_other",
        why="the simulation has no delegation tokens",
    ),
]
