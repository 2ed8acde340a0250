"""The race for /controller. Pure: programs that the machine runs.

Winning is one transaction: /controller is made, ephemeral, and /controller_epoch rises, on condition that nobody raised it
since it was read. So there are never two controllers of one epoch, and the version of /controller_epoch guards
all that the winner writes.
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

#: "Nobody", as a controller's id.
NOBODY = -1
#: /controller is there and cannot be read: nobody else can become controller until it goes.
SOMEBODY = -2
#: What a new cluster starts with; the first controller has epoch 1.
INITIAL_EPOCH = 0


@dataclass(frozen=True, slots=True)
class Term:
    """The time of one controller, from one election to the next."""

    epoch: int
    epoch_zk_version: int


def who_is_controller() -> Program[int]:
    """Its id, NOBODY, or SOMEBODY. Sets a watch for changes."""
    # A watch on existence sees creation, change and deletion alike.
    _, found = yield from ask((Exists(paths.CONTROLLER, watch=ControllerChanged()), Get(paths.CONTROLLER)))
    if not found.ok:
        return NOBODY
    try:
        return ControllerRegistration.decode(found.data or b"").broker_id
    except Malformed as error:
        _log.error("nobody can become controller: %s", error)
        return SOMEBODY


def race(state: ControllerState) -> Program[Term | None]:
    """The term that was won, or None if another broker was faster."""
    try:
        epoch, version = yield from _current_epoch()
    except Malformed as error:
        # Its version guards every write of a controller, and brokers remember the epoch: to guess one is worse than none.
        _log.error("nobody can become controller: %s", error)
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
        _log.error("the race for /controller was refused: %s", result.code.value)
        return None
    # We may have won all the same: a lost connection takes the answer along, and the repetition finds our own znode.
    if (yield from who_is_controller()) == state.settings.broker_id:
        current, current_version = yield from _current_epoch()
        if current == epoch + 1:
            return Term(current, current_version)
    return None


def depose(controller: int) -> Program[None]:
    """Frees /controller of a broker whose process is dead: its session has still some time to go. The check of the epoch
    keeps a controller that was elected meanwhile, and one that lives after all is fenced by the next one's epoch."""
    epoch, found = yield from ask((Get(paths.CONTROLLER_EPOCH), Get(paths.CONTROLLER)))
    if not found.ok or not epoch.ok or epoch.stat is None:
        return
    try:
        registration = ControllerRegistration.decode(found.data or b"")
    except Malformed as error:
        _log.error("%s", error)
        return
    if registration.broker_id == controller and registration.kraft_epoch < 0:
        _log.warning("broker %d was controller and refuses connections: electing another", controller)
        yield from resign(epoch.stat.version)


def resign(epoch_zk_version: int) -> Program[None]:
    """Frees /controller, if it is still this term's."""
    yield from ask((Multi((Check(paths.CONTROLLER_EPOCH, epoch_zk_version), Delete(paths.CONTROLLER))),))


def _current_epoch() -> Program[tuple[int, int]]:
    """The epoch and its znode's version; made if this is a new cluster."""
    while True:
        [found] = yield from ask((Get(paths.CONTROLLER_EPOCH),))
        if found.ok and found.stat is not None:
            return decode_controller_epoch(found.data or b""), found.stat.version
        yield from ask((Create(paths.CONTROLLER_EPOCH, encode_controller_epoch(INITIAL_EPOCH)),))
