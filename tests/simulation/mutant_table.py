"""The table of mutants in the docs: `python -m tests.simulation.mutant_table` writes docs/mutants.md from mutants.json."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.simulation.mutants import MUTANTS
from tests.simulation.profiles import name_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mutants.md"
TABLE = Path(__file__).with_name("mutants.json")


_WORLDS: Final = {"storage": "logs alone", "link": "linked clusters", "tier": "tiered storage"}


class NotSimulated(NamedTuple):
    """A mended finding that no simulated world can show."""

    finding: str
    what: str
    why: str
    #: A file below `tests`, and a test in it.
    file: str
    test: str


NOT_SIMULATED: Final = (
    NotSimulated(
        "R11",
        "a bad byte in a snapshot of ZooKeeper hides the older good one",
        "only the texts of ACLs were read carelessly, and znodes of the world are open to all: its snapshots have none",
        "unit/zookeeper/test_store.py",
        "test_snapshot_damaged_anywhere_is_passed_over_for_an_older_one",
    ),
    NotSimulated(
        "seed 50070",
        "of the members of an ISR that are gone at once one stays in it, whichever",
        "to wait for the wrong one costs time; if it has lost its power, the world excuses the partition",
        "scenarios/controller/test_membership_scenarios.py",
        "test_members_of_an_isr_that_go_at_once_all_stay_in_it_and_who_returns_first_leads",
    ),
    NotSimulated(
        "seed 7015",
        "batches that wait for a connection overtake each other",
        "of three attempts to connect two have to fail and the third to succeed, and the leader must not know the producer",
        "unit/client/test_client_producer.py",
        "test_batches_that_wait_for_one_connection_do_not_overtake_each_other",
    ),
    NotSimulated(
        "T5",
        "an answer from before a marker confirms a batch that comes after it",
        "two late batches, a marker and an answer have to meet within one round trip of the network",
        "unit/transactions/test_verification.py",
        "test_an_answer_from_before_a_marker_confirms_no_batch_that_came_after_it",
    ),
    NotSimulated(
        "missed epoch",
        "a coordinator that missed its successor delivers markers of what that one has ended",
        "a marker has to wait for a leader through two elections of which the coordinator hears the second alone; "
        "a hunt of two minutes found no seed",
        "unit/transactions/test_transaction_coordinator.py",
        "test_a_coordinator_that_missed_its_successor_sends_nothing_for_what_that_one_ended",
    ),
    NotSimulated(
        "T9",
        "our client sends Produce v12 and ends its transactions with EndTxn v4",
        "our client has no batch under way when it ends a transaction",
        "unit/client/test_client_transactions.py",
        "test_late_batch_of_a_finished_transaction_is_refused",
    ),
    NotSimulated(
        "T10",
        "the blocking client never signs in again after acks=0",
        "the load is asynchronous, and signs in nowhere",
        "unit/client/test_client_blocking.py",
        "test_session_is_renewed_also_after_requests_that_get_no_answer",
    ),
    NotSimulated(
        "T11",
        "the tools cannot grant TWO_PHASE_COMMIT",
        "a command line tool",
        "unit/cli/test_cli_acls.py",
        "test_two_phase_commit_can_be_granted",
    ),
    NotSimulated(
        "tier 1",
        "the objects of a finished copy go if the metadata topic is read again just then",
        "the metadata topic has to lose records between two callbacks of one copy",
        "unit/tiered/test_tier_broker.py",
        "test_a_finished_copy_stays_although_the_metadata_is_read_again_just_then",
    ),
    NotSimulated(
        "tier 2",
        "an abort whose marker leaves the disk while the store is asked is not told",
        "local retention has to run between two callbacks of one read",
        "unit/tiered/test_tier_reader.py",
        "test_an_abort_that_leaves_the_disk_while_the_store_is_asked_is_found",
    ),
    NotSimulated(
        "tier 3",
        "a timestamp in what leaves the disk while the store is asked is not found",
        "as tier 2, and no reader of the world asks for timestamps",
        "unit/tiered/test_tier_reader.py",
        "test_a_timestamp_is_found_in_what_leaves_the_disk_while_the_store_is_asked",
    ),
    NotSimulated(
        "tier 4",
        "what an overruled leader aborted hides what the log aborted",
        "the topic with unclean elections has no transactions",
        "unit/tiered/test_tier_reader.py",
        "test_what_an_overruled_leader_aborted_does_not_hide_what_the_log_aborted",
    ),
    NotSimulated(
        "tier 5",
        "a new leader's high watermark is taken for the end of the metadata topic",
        "all brokers have to die just after a copy, and somebody has to read it in the first milliseconds",
        "unit/tiered/test_metadata_topic.py",
        "test_a_new_leader_that_does_not_know_the_end_yet_has_not_told_all",
    ),
    NotSimulated(
        "tier 6",
        "a batch of nonsense in the metadata topic ends every broker that reads it",
        "nobody else writes to that topic",
        "unit/tiered/test_metadata_topic.py",
        "test_a_batch_that_was_written_as_nonsense_is_passed_over",
    ),
    NotSimulated(
        "tier 7",
        "a log whose first record is above its first offset is copied without end",
        "no tiered topic of the world was compacted before",
        "unit/tiered/test_tier_broker.py",
        "test_log_whose_first_record_is_above_its_first_offset_is_copied_once",
    ),
    NotSimulated(
        "tier 8",
        "an index larger than the cache is fetched without end",
        "the cache of the world has room for all indexes",
        "unit/tiered/test_tier_reader.py",
        "test_readers_get_everything_even_if_one_index_is_more_than_may_be_kept",
    ),
    NotSimulated(
        "core 7",
        "a broker that returns without a restart knows topics for ever that were deleted meanwhile",
        "nobody in the world asks each broker for a topic that was deleted",
        "unit/coordination/test_deleted_topics.py",
        "test_broker_that_returns_forgets_topics_that_were_deleted_meanwhile",
    ),
    NotSimulated(
        "core 8",
        "settings that changed while a broker was away for long are not read again",
        "nobody in the world is away for a quarter of an hour",
        "unit/coordination/test_config_store.py",
        "test_broker_that_was_away_for_so_long_that_notifications_are_gone_reads_all_settings_again",
    ),
    NotSimulated(
        "link 1",
        "a mirror that its replicas do not have keeps all others from their end",
        "replicas come back before anybody would notice",
        "unit/link/test_each_by_itself.py",
        "test_mirror_that_its_replicas_do_not_have_keeps_no_other_from_its_end",
    ),
    NotSimulated(
        "link 2",
        "a broker that restarts in a promotion is waited for as long as it ran before",
        "no broker of the world has run for long",
        "unit/link/test_each_by_itself.py",
        "test_broker_that_restarts_in_a_promotion_is_not_waited_for_as_long_as_it_ran_before",
    ),
    NotSimulated(
        "link 3",
        "an error of the source is taken for the absence of records where a mirror begins",
        "links of the world begin at the earliest offset",
        "unit/link/test_each_by_itself.py",
        "test_source_that_does_not_say_where_a_mirror_begins_is_asked_again",
    ),
)


def rows() -> dict[str, Any]:
    """What the hunt has found out, by mutant."""
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return {name: table.get(name, {"seed": None, "tried": 0}) for name in MUTANTS}


def render() -> str:
    found = rows()
    noticed = {name: row for name, row in found.items() if row["seed"] is not None}
    return "\n".join(
        [
            "# Mutants: does the simulation find defects?",
            "",
            f"A mutant is a small defect that is put into shipping code. There are {len(MUTANTS)}",
            f"(`tests/simulation/mutants.py`), and the simulation finds {len(noticed)} of them within 300 seeds.",
            "A change of barnabas or of the simulation may change which seed finds a mutant:",
            "`python -m tests.simulation.hunt --again` searches again. Results are in `tests/simulation/mutants.json`,",
            "and `python -m tests.simulation.mutant_table` writes this page from them. To see one:",
            "",
            '    python -m tests.simulation.simulate SEED --mutant "NAME" [--world storage|link|tier]',
            "",
            "*Put back* names a real defect that was found and fixed before. *World* is the profile of the cluster,",
            "*a mix*, *logs alone* (`storage_world.py`), *linked clusters* (`linked.py`) or *tiered storage* (`tiered.py`).",
            "*Seed* found it, *after* this many seeds. The search begins with the profile that the mutant names.",
            "",
            "| what is wrong | put back | world | seed | after | what the oracle said |",
            "|---|---|---|---|---|---|",
            *(_line(name, row) for name, row in noticed.items()),
            *_unnoticed({name: row for name, row in found.items() if row["seed"] is None and not MUTANTS[name].why}),
            "",
            "## Findings that no simulated world shows",
            "| finding | what is wrong | why | the test that notices it |",
            "|---|---|---|---|",
            *(
                f"| {each.finding} | {each.what} | {each.why} | `tests/{each.file}::{each.test}` |"
                for each in NOT_SIMULATED
            ),
            *(
                f"| {mutant.finding} | {mutant.name} | {mutant.why} | `tests/{mutant.test}` |"
                for mutant in MUTANTS.values()
                if mutant.why and mutant.name not in noticed
            ),
            "",
        ]
    )


def _line(name: str, row: dict[str, Any]) -> str:
    mutant, seed = MUTANTS[name], row["seed"]
    world = _WORLDS.get(mutant.world) or name_of(seed) or "a mix"
    return f"| {name} | {mutant.finding} | {world} | {seed} | {row['tried']} | {row['broken']} |"


def _unnoticed(left: dict[str, Any]) -> list[str]:
    if not left:
        return []
    return [
        "",
        "## Not noticed yet",
        "Each breaks a promise, but only where several faults meet within moments. The hunt goes on. A test notices each:",
        "`python -m tests.simulation.hunt --by-test` runs those, with the mutant in place.",
        "",
        "| what is wrong | put back | seeds tried | the test that notices it |",
        "|---|---|---|---|",
        *(
            f"| {name} | {MUTANTS[name].finding} | {row['tried']} | `tests/{MUTANTS[name].test}` |"
            for name, row in left.items()
        ),
    ]


def main() -> None:
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
