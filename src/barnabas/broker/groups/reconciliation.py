"""One step of a member towards its target assignment (KIP-848): first revoke partitions, then take free ones. Pure."""

from collections.abc import Callable
from dataclasses import replace

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.consumer_group import ConsumerMember, MemberState
from barnabas.broker.groups.records import Partitions


def reconcile(
    member: ConsumerMember,
    *,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_held: Callable[[bytes, int], bool],
) -> ConsumerMember:
    """Return the member after this heartbeat. `owned`: the partitions that it reports; None if it reports none."""
    if member.is_reconciled_to(target_epoch):
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_owns(owned, member.pending_revocation):
            return member
        # The member has revoked everything that this epoch asked for.
        return _next(member, member.member_epoch + 1, target_epoch, target, owned, is_held)
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise Refused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The member is in an unknown state. It must abandon all its partitions and rejoin.",
            )
        return _next(member, target_epoch, target_epoch, target, owned, is_held)
    return _next(member, member.member_epoch, target_epoch, target, owned, is_held)


def _next(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_held: Callable[[bytes, int], bool],
) -> ConsumerMember:
    kept: dict[bytes, frozenset[int]] = {}
    revoked: dict[bytes, frozenset[int]] = {}
    given: dict[bytes, frozenset[int]] = {}
    is_waiting = False
    for topic_id in dict.fromkeys((*target, *member.assigned)):
        wanted = target.get(topic_id, frozenset())
        current = member.assigned.get(topic_id, frozenset())
        if keep := current & wanted:
            kept[topic_id] = keep
        if revoke := current - wanted:
            revoked[topic_id] = revoke
        missing = wanted - current
        if free := frozenset(number for number in missing if not is_held(topic_id, number)):
            given[topic_id] = free
        is_waiting = is_waiting or len(free) < len(missing)
    if revoked and _still_owns(owned, revoked):
        return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    assigned = {
        topic_id: kept.get(topic_id, frozenset()) | given.get(topic_id, frozenset())
        for topic_id in dict.fromkeys((*kept, *given))
    }
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return _moved(member, target_epoch, state, assigned, {})


def _moved(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Partitions, pending_revocation: Partitions
) -> ConsumerMember:
    return replace(
        member,
        state=state,
        previous_member_epoch=member.member_epoch,
        member_epoch=epoch,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )


def _still_owns(owned: Partitions | None, revoked: Partitions) -> bool:
    """Whether the member still has revoked partitions. A member that does not report what it owns has revoked nothing."""
    if owned is None:
        return True
    return any(not numbers.isdisjoint(revoked.get(topic_id, frozenset())) for topic_id, numbers in owned.items())
