"""Wrongs of the controller, and of what administrators ask it for."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    # -- controller
    Mutant(
        "AlterPartition that comes late is granted",
        "broker/controller",
        "        if proposed.partition_epoch < current.partition_epoch:\n            return ErrorCode.INVALID_UPDATE_VERSION\n",
        "",
        also=(
            (
                "broker/controller/isr_machine.py",
                "            partition_epoch=proposed.partition_epoch,\n            controller_epoch=context.epoch,\n",
                "            partition_epoch=current.partition_epoch,\n            controller_epoch=context.epoch,\n",
            ),
        ),
        profile="sync",
    ),
    Mutant(
        "anybody alive is elected, in sync or not",
        "broker/controller",
        "leader = next((each for each in live if each in state.isr), None)",
        "leader = next(iter(live), None)",
    ),
    Mutant(
        "the leader epoch does not rise with an election",
        "broker/zookeeper_client",
        "            self.leader_epoch + 1,\n",
        "            self.leader_epoch,\n",
    ),
    Mutant(
        "a broker that bounced is not noticed",
        "broker/controller",
        "each for each in set(found) & set(context.brokers) if found[each][1] > context.broker_epochs[each]",
        "each for each in set(found) & set(context.brokers) if found[each][1] < 0",
    ),
    Mutant(
        "a broker that went is not noticed",
        "broker/controller",
        "went = sorted(set(context.brokers) - set(found))",
        "went: list[int] = []",
        profile="power",
    ),
    Mutant(
        "a new controller trusts who was away (Kafka's gap)",
        "broker/controller",
        "younger = frozenset(each for each in state.isr if context.born(each) > written)",
        "younger: frozenset[int] = frozenset()",
    ),
    Mutant(
        "a failed directory is not acted on",
        "broker/controller",
        "            if error is ErrorCode.KAFKA_STORAGE_ERROR:\n                now.add(partition)",
        "            if error is ErrorCode.KAFKA_STORAGE_ERROR:\n                now.discard(partition)",
        profile="meetings",
        test="scenarios/controller/test_leadership_scenarios.py"
        "::test_replica_in_a_failed_log_directory_loses_the_lead_and_its_place_in_the_isr",
    ),
    Mutant(
        "two controllers at once",
        "broker/controller",
        "    if (yield from current_controller()) == state.settings.broker_id:",
        "    if True:",
        also=(
            (
                "broker/controller",
                "        if term is None or self._controller_id != self._state.settings.broker_id:",
                "        if term is None:",
            ),
        ),
        profile="zookeeper",
    ),
    Mutant(
        "a process that is dead is not suspected",
        "broker/controller",
        "        if registration is None or context.broker_epochs[broker] != broker_epoch or is_self:",
        "        if True:",
        profile="elections",
    ),
    Mutant(
        "a suspect that answers stays out",
        "broker/controller",
        "        if broker in context.suspects and error is ErrorCode.NONE:",
        "        if False:",
        profile="sync",
    ),
    Mutant(
        "a suspect whose session has ended stays one",
        "broker/controller",
        "        over = [broker for broker, epoch in suspects.items() if broker not in found or found[broker][1] != epoch]",
        "        over: list[int] = []",
        profile="elections",
    ),
    Mutant(
        "nobody deposes a dead controller",
        "broker/controller",
        "    if registration.broker_id == controller and registration.kraft_epoch < 0:",
        "    if False:",
        profile="elections",
    ),
    Mutant(
        "a broker that only looks dead is replaced by one that lacks records",
        "broker/controller/elections.py",
        "    if unclean and live and context.suspects.keys().isdisjoint(state.isr):",
        "    if unclean and live:",
        profile="sync",
    ),
    Mutant(
        "what waits for a broker that is gone goes on waiting",
        "broker/compose.py",
        "            self.broker_connections.brokers_changed()\n",
        "            pass\n",
        profile="power",
    ),
    Mutant(
        "a broker that returns leads on in an epoch of its former life while the state cannot be read",
        "broker/controller/replica_state_machine.py",
        "leadership is not None and not self._led_before(replica, leadership):",
        "leadership is not None:",
        profile="coincidences",
        finding="seed 51",
        test="scenarios/controller/test_leadership_scenarios.py"
        "::test_broker_that_returns_does_not_lead_on_in_an_epoch_of_its_former_life_while_the_state_cannot_be_read",
    ),
    Mutant(
        "what waits for the former life of a broker goes on waiting",
        "broker/zookeeper_client/features.py",
        "if returned := {broker for broker in now if now[broker] != before.get(broker, now[broker])}:",
        "if returned := set():",
        profile="answers",
        finding="seed 100108",
        test="unit/broker/zookeeper_client/test_features.py::test_broker_that_returns_at_once_with_other_features_is_noticed",
    ),
    Mutant(
        "what waits for the former life of a broker that was seen to be away goes on waiting",
        "broker/zookeeper_client/features.py",
        "            self._broker_epochs = {**before, **now}\n",
        "            self._broker_epochs = now\n",
        profile="answers",
        finding="seed 6",
        test="unit/broker/zookeeper_client/test_features.py::test_broker_that_returns_after_it_was_missed_is_noticed",
    ),
    Mutant(
        "a new controller keeps silent towards the replicas",
        "broker/controller",
        "self._replicas.to_online(each for each in replicas if context.replica_state(each) is ReplicaState.ONLINE)",
        "self._replicas.to_online(iter(()))",
        profile="administrator",
    ),
    # -- moves between log directories, and the session of a broker
    Mutant(
        "a controller ends at a reassignment whose state in ZooKeeper is nonsense",
        "broker/controller/reassignment_machine.py",
        "            if partition not in context.leadership:\n",
        "            if False:\n",
        finding="core 12",
        profile="coincidences",
        test="scenarios/controller/test_reassignment_scenarios.py"
        "::test_partition_whose_state_cannot_be_read_waits_and_the_cluster_keeps_its_controller",
    ),
    Mutant(
        "of the members of an ISR that are gone at once one stays in it, whichever",
        "broker/controller/replica_state_machine.py",
        "        if not (for_good and isr) and not any(self._state.context.is_online(each, partition) for each in isr):\n",
        "        if not isr:\n",
        finding="seed 50070",
        profile="coincidences",
        test="scenarios/controller/test_membership_scenarios.py"
        "::test_members_of_an_isr_that_go_at_once_all_stay_in_it_and_who_returns_first_leads",
    ),
    Mutant(
        "a reassignment that replaces another removes the leader, and elects nobody",
        "broker/controller/reassignment_machine.py",
        "            if context.leadership[partition].leader in unneeded:\n",
        "            if False:\n",
        finding="control 1",
        profile="coincidences",
        test="scenarios/controller/test_reassignment_scenarios.py"
        "::test_plan_that_does_without_the_replica_that_leads_elects_another_first",
    ),
    Mutant(
        "replicas that a reassignment removed are told after ZooKeeper has forgotten them",
        "broker/controller/reassignment_machine.py",
        "            self._requests.flush()\n",
        "            pass\n",
        finding="control 2",
        profile="coincidences",
        test="scenarios/controller/test_reassignment_scenarios.py"
        "::test_controller_dies_as_a_reassignment_ends_and_nobody_leads_on",
    ),
    # -- what strangers write into ZooKeeper
    Mutant(
        "a topic that another request fails to make is said to exist",
        "broker/controller/topics.py",
        "        timeout_ms -= await self._until_created(names, timeout_ms=timeout_ms)\n",
        "",
        also=(
            (
                "broker/controller/topics.py",
                "                ErrorCode.REQUEST_TIMED_OUT,\n                f\"Topic '{topic.name}' is being created",
                "                ErrorCode.TOPIC_ALREADY_EXISTS,\n                f\"Topic '{topic.name}' is being created",
            ),
        ),
        finding="seed 427",
        profile="meetings",
        test="unit/broker/controller/test_driver.py::test_topic_that_another_request_fails_to_create_is_not_reported_as_existing",
    ),
    Mutant(
        "a CreateTopics that is refused changes the settings of the topic",
        "broker/controller/topics.py",
        "        if topic.name in being_created:\n",
        "        if False:\n",
        also=(
            (
                "broker/controller/topics.py",
                "for (_, each), result in zip(left_over, existing, strict=True) if not result.ok])",
                "for (_, each), result in zip(left_over, existing, strict=True)])",
            ),
            (
                "broker/controller/topics.py",
                "        timeout_ms -= await self._until_created(names, timeout_ms=timeout_ms)\n",
                "",
            ),
            (
                "broker/controller/topics.py",
                "                del being_created[name]\n",
                "                being_created.pop(name, None)\n",
            ),
        ),
        finding="core 5",
        profile="strangers",
        test="unit/broker/controller/test_driver.py::test_request_for_a_topic_that_is_being_created_does_not_change_its_settings",
    ),
    Mutant(
        "settings of a topic that cannot be read take the controller from the whole cluster",
        "broker/controller/partition_state_machine.py",
        "            except Malformed as error:\n                _log.error(\"[controller] the topic's settings",
        "            except ZeroDivisionError as error:\n                _log.error(\"[controller] the topic's settings",
        finding="core 13",
        profile="coincidences",
        test="scenarios/controller/test_leadership_scenarios.py"
        "::test_settings_of_a_topic_that_cannot_be_read_take_the_controller_from_nobody",
    ),
    # -- topics and settings that change while nobody looks
    Mutant(
        "the end of a topic is merged with the news of its successor",
        "broker/controller/channel.py",
        "            and not _is_about_successors(request, last)\n",
        "",
        profile="meetings",
        test="unit/broker/controller/test_channel.py::test_deletion_of_a_topic_is_not_merged_into_the_metadata_of_its_successor",
    ),
    Mutant(
        "a topic is refused to the request that has made it",
        "broker/controller/topics.py",
        "            if result.ok or name in ours:\n",
        "            if result.ok:\n",
        profile="meetings",
        test="unit/broker/controller/test_driver.py::test_creation_whose_answer_was_lost_succeeds",
    ),
]
