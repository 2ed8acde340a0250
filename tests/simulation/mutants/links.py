"""Mutants of links between clusters."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "a topic that the controller does not know is promoted without records",
        "broker/features/link",
        "        count = await self._store.partition_count(name)\n",
        "        count = self._metadata.partition_count(name)\n",
        also=(
            (
                "broker/features/link",
                "        if count == 0 or (is_planned and (link.name, name) not in self._whole):\n            return\n",
                "",
            ),
        ),
        finding="link seed 9",
        world="link",
    ),
    Mutant(
        "a cluster with a link hands out producer ids as one without a link",
        "broker/features/link",
        "ProducerIdSpace((1 + zlib.crc32(cluster_id.encode()) % _RANGES) * _RANGE)",
        "ProducerIdSpace(0)",
        world="link",
    ),
    Mutant(
        "the next leader of a mirror does not ask where the source's epochs end",
        "broker/features/link",
        "        return self.epochs.latest_epoch\n",
        "        return None\n",
        world="link",
        profile="cut",
    ),
    Mutant(
        "a mirror takes records of clients",
        "broker/storage/log_append.py",
        "        or config.barnabas_link_name\n",
        "",
        world="link",
    ),
    Mutant(
        "the epochs that a mirror's leader noted after a truncation count for replicas that were not truncated",
        "broker/features/link/replica.py",
        "        if last is not None and last < known.noted_in:\n",
        "        if False:\n",
        finding="noted after a cut",
        world="link",
        profile="cut",
        test="unit/broker/features/link/test_mirror_replica.py"
        "::test_epoch_recorded_after_a_truncation_does_not_apply_to_replicas_that_have_not_truncated",
    ),
    Mutant(
        "a mirror whose records are not replicated keeps all others from ending",
        "broker/features/link/replica.py",
        "            async with asyncio.timeout(_COMMIT_TIMEOUT_S):\n",
        "            async with asyncio.timeout(None):\n",
        finding="link 1",
        world="link",
        profile="stuck",
        test="unit/broker/features/link/test_each_by_itself.py::test_mirror_whose_records_are_not_replicated_does_not_keep_other_mirrors_from_ending",
    ),
    Mutant(
        "a promotion waits for a restarted broker as long as the broker ran before",
        "broker/features/link/steward.py",
        "            broker: min(turns, then.get(broker, 0)) for broker, turns in now.items()\n",
        "            broker: then.get(broker, 0) for broker in now\n",
        finding="link 2",
        world="link",
        profile="long",
        test="unit/broker/features/link/test_each_by_itself.py"
        "::test_broker_that_restarts_in_a_promotion_is_not_waited_for_as_long_as_it_ran_before",
    ),
    Mutant(
        "an error of the source counts as an absence of records where a mirror begins",
        "broker/features/link/source.py",
        "        if found.error is not ErrorCode.NONE:  # an error, not just a missing record\n",
        "        if False:\n",
        finding="link 3",
        world="link",
        profile="later",
        test="unit/broker/features/link/test_each_by_itself.py::test_source_that_does_not_say_where_a_mirror_begins_is_asked_again",
    ),
    Mutant(
        "a token with an unknown end is fetched on the event loop",
        "client/connection.py",
        "        conversation = await asyncio.to_thread(security.exchange, connection.address)\n",
        "        await asyncio.to_thread(security.tokens.get)\n"
        "        conversation = security.exchange(connection.address)\n",
        test="unit/wire/auth/test_oauth.py::test_token_without_a_known_expiry_is_fetched_once_per_login_and_never_on_the_loop",
        why="the simulation has no threads and no logins",
    ),
]
