"""The parts that `barnabas share-groups` and `barnabas streams-groups` have in common: both act on groups of one type."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from barnabas.base.ids import TopicPartition
from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json, table
from barnabas.cli.consumer_groups import MISSING, parse_names
from barnabas.cli.tool import at_most_one
from barnabas.client.admin.groups import list_groups
from barnabas.client.asynchronous import AsyncClient

ONE_VIEW = at_most_one(
    "--members",
    "--offsets",
    "--state",
    says="Option [describe] takes at most one of these options: [members], [offsets], [state]",
)


class Description(Protocol):
    """A description of a group of either type."""

    @property
    def group_id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def coordinator_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def assignment_epoch(self) -> int: ...
    @property
    def members(self) -> Sequence[object]: ...


async def chosen(cluster: AsyncClient, type_: str, groups: Sequence[str], all_groups: bool) -> list[str]:
    if not all_groups:
        return sorted(groups)
    return [each.group_id for each in await list_groups(cluster, types=[type_])]


def only_one(groups: Sequence[str], type_: str) -> str:
    if len(groups) != 1:
        raise UsageError(f"Name one {type_.lower()} group with --group")
    return groups[0]


async def print_list(
    cluster: AsyncClient, type_: str, valid_states: Sequence[str], state: str | None, *, as_json: bool
) -> None:
    states = parse_names(state, valid_states, "state") if state else ()
    listed = await list_groups(cluster, types=[type_], states=states)
    if as_json:
        say_json([{"group": each.group_id, "state": each.state} for each in listed])
    elif state is not None:
        table(("GROUP", "STATE"), [(each.group_id, each.state) for each in listed])
    else:
        for each in listed:
            say(each.group_id)


def print_state(cluster: AsyncClient, description: Description, verbose: bool) -> None:
    broker = cluster.image.brokers.get(description.coordinator_id)
    where = f"{broker.host}:{broker.port} ({broker.id})" if broker else MISSING
    epochs = [str(description.epoch), str(description.assignment_epoch)] if verbose else []
    row = (description.group_id, where, description.state, *epochs, str(len(description.members)))
    names = ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"] if verbose else []
    table(("GROUP", "COORDINATOR (ID)", "STATE", *names, "#MEMBERS"), [row])


def print_new_offsets(group: str, plan: Mapping[TopicPartition, int], *, as_json: bool) -> None:
    if as_json:
        say_json([{"topic": where.topic, "partition": where.partition, "newOffset": at} for where, at in plan.items()])
        return
    rows = [(group, where.topic, str(where.partition), str(at)) for where, at in sorted(plan.items())]
    table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows)
