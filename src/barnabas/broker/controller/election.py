"""The race for /controller. Pure: programs that the machine runs.

Winning is one transaction: it creates the ephemeral /controller and raises /controller_epoch, on condition that the epoch is
the one that was read. So there are never two controllers of one epoch, and the version of /controller_epoch guards all writes
of the winner.
"""

import logging
from dataclasses import dataclass

from barnabas.base.errors import Malformed
from barnabas.broker.controller.events import ControllerChanged
from barnabas.broker.controller.program import ControllerState, Program, ask
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Check, Create, Delete, Exists, Get, Multi, SetData, ZkCode
from barnabas.broker.zookeeper_client.znodes import (
    ControllerRegistration,
    decode_controller_epoch,
    encode_controller_epoch,
)

_log = logging.getLogger(__name__)

#: Stands for a controller's id: there is no controller.
NO_CONTROLLER = -1
#: /controller exists and cannot be read: no broker can become controller until it is deleted.
UNREADABLE = -2
#: The epoch of a new cluster; the first controller has epoch 1.
INITIAL_EPOCH = 0


@dataclass(frozen=True, slots=True)
class Term:
    """The time of one controller, from one election to the next."""

    epoch: int
    epoch_zk_version: int


def current_controller() -> Program[int]:
    """Return the controller's id, NO_CONTROLLER, or UNREADABLE. Sets a watch for changes."""
    # A watch on existence reports creation, change and deletion alike.
    _, found = yield from ask((Exists(paths.CONTROLLER, watch=ControllerChanged()), Get(paths.CONTROLLER)))
    if not found.ok:
        return NO_CONTROLLER
    try:
        return ControllerRegistration.decode(found.data or b"").broker_id
    except Malformed as error:
        _log.error("[controller] no broker can become controller, repair or delete %s: %s", paths.CONTROLLER, error)
        return UNREADABLE


def race(state: ControllerState) -> Program[Term | None]:
    """Return the term that this broker won, or None if another broker was faster."""
    try:
        epoch, version = yield from _current_epoch()
    except Malformed as error:
        # The znode's version guards every write of a controller, and brokers remember the epoch. No controller is better than a
        # guessed epoch.
        _log.error("[controller] no broker can become controller, repair %s: %s", paths.CONTROLLER_EPOCH, error)
        return None
    registration = ControllerRegistration(state.settings.broker_id, state.now_ms())
    [result] = yield from ask(
        (
            Multi(
                (
                    Create(paths.CONTROLLER, registration.encode(), ephemeral=True),
                    SetData(paths.CONTROLLER_EPOCH, encode_controller_epoch(epoch + 1), version),
                )
            ),
        )
    )
    if result.ok:
        stat = result.results[1].stat
        assert stat is not None
        return Term(epoch + 1, stat.version)
    if result.code not in (ZkCode.NODE_EXISTS, ZkCode.BAD_VERSION):
        _log.error(
            "[controller] ZooKeeper refused the creation of /controller, so this broker does not become controller: %s",
            result.code.value,
        )
        return None
    # This broker may have won all the same: the answer was lost with the connection, and the repeated write finds our own
    # znode.
    if (yield from current_controller()) == state.settings.broker_id:
        current, current_version = yield from _current_epoch()
        if current == epoch + 1:
            return Term(current, current_version)
    return None


def depose(controller: int) -> Program[None]:
    """Delete /controller of a broker whose process is dead: its session has not expired yet.

    The check of the epoch keeps a controller that was elected meanwhile. If the deposed one lives after all, the epoch of the
    next controller fences it.
    """
    epoch, found = yield from ask((Get(paths.CONTROLLER_EPOCH), Get(paths.CONTROLLER)))
    if not found.ok or not epoch.ok or epoch.stat is None:
        return
    try:
        registration = ControllerRegistration.decode(found.data or b"")
    except Malformed as error:
        _log.error("%s", error)
        return
    if registration.broker_id == controller and registration.kraft_epoch < 0:
        _log.warning("[controller] broker %d was controller and refuses connections: electing another", controller)
        yield from resign(epoch.stat.version)


def resign(epoch_zk_version: int) -> Program[None]:
    """Delete /controller, if it is still this term's."""
    yield from ask((Multi((Check(paths.CONTROLLER_EPOCH, epoch_zk_version), Delete(paths.CONTROLLER))),))


def _current_epoch() -> Program[tuple[int, int]]:
    """Return the epoch and its znode's version. Creates the znode in a new cluster."""
    while True:
        [found] = yield from ask((Get(paths.CONTROLLER_EPOCH),))
        if found.ok and found.stat is not None:
            return decode_controller_epoch(found.data or b""), found.stat.version
        yield from ask((Create(paths.CONTROLLER_EPOCH, encode_controller_epoch(INITIAL_EPOCH)),))
