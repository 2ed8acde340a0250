"""One step of a member of a streams group towards its target (KIP-1071): first give up tasks, then take free ones. Pure."""

from collections.abc import Callable
from dataclasses import replace

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.streams_group import StreamsMember, TaskState
from barnabas.broker.groups.streams_tasks import NO_TASKS, TaskId, Tasks, TaskSet

#: Whether a task must wait until another member, or another role in the same process, has given it up.
MustWait = Callable[[TaskId], bool]


def reconcile_tasks(
    member: StreamsMember,
    *,
    target_epoch: int,
    target: Tasks,
    owned: Tasks | None,
    active_must_wait: MustWait,
    copy_must_wait: MustWait,
) -> StreamsMember:
    """Return the member after this heartbeat. `owned`: the tasks that it reports; None if it reports none."""
    if member.is_reconciled_to(target_epoch):
        return member
    epoch = member.member_epoch
    if member.state is TaskState.UNREVOKED_TASKS:
        if owned is None or owned.overlaps(member.pending_revocation):
            return member
        epoch += 1  # the member has given up everything that this epoch asked for
    elif member.state is TaskState.UNKNOWN:
        if owned is None or not owned.is_empty:
            raise Refused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
            )
        epoch = target_epoch
    kept = member.assigned & target
    revoked = member.assigned - kept
    if not revoked.is_empty and (owned is None or owned.overlaps(revoked)):
        return _moved(member, epoch, TaskState.UNREVOKED_TASKS, kept, revoked, target_epoch)
    missing = target - kept
    free = Tasks(
        _free(missing.active, active_must_wait),
        _free(missing.standby, copy_must_wait),
        _free(missing.warmup, copy_must_wait),
    )
    state = TaskState.STABLE if free == missing else TaskState.UNRELEASED_TASKS
    return _moved(member, target_epoch, state, kept | free, NO_TASKS, target_epoch)


def _free(tasks: TaskSet, must_wait: MustWait) -> TaskSet:
    return frozenset(task for task in tasks if not must_wait(task))


def _moved(
    member: StreamsMember, epoch: int, state: TaskState, assigned: Tasks, pending: Tasks, target_epoch: int
) -> StreamsMember:
    epochs = {task: member.active_epochs.get(task, target_epoch) for task in assigned.active | pending.active}
    moved = replace(member, state=state, assigned=assigned, pending_revocation=pending, active_epochs=epochs)
    if moved == member and epoch == member.member_epoch:
        return member
    return replace(moved, member_epoch=epoch, previous_member_epoch=member.member_epoch)
