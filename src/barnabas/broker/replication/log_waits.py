"""Reading and truncating a log from a coroutine, which waits while the log has to."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from barnabas.base.errors import LogDirFault
from barnabas.base.host import descriptors
from barnabas.broker.storage.index_under_repair import IndexUnderRepair
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import ReadResult

Where = TypeVar("Where", contravariant=True)

#: How often a read waits for an index that is being rebuilt: once is enough unless the new index is damaged too.
REPAIRS_AWAITED: Final = 3


async def read_log(log: Log, offset: int, *, max_bytes: int, max_offset: int) -> ReadResult:
    """Read at least one batch, like `Log.read`; wait for the repair of an index, and for a free file descriptor.

    Without a free descriptor the disk is healthy, and no other code would repeat this read.
    """
    repairs = 0
    while True:
        try:
            return log.read(offset, max_bytes=max_bytes, max_offset=max_offset)
        except IndexUnderRepair as under_repair:
            if repairs == REPAIRS_AWAITED:
                raise
            repairs += 1
            over = asyncio.Event()
            under_repair.when_over(over.set)
            await over.wait()
        except LogDirFault as fault:
            if not descriptors.are_exhausted(fault.cause):
                raise
            await asyncio.sleep(descriptors.WAIT_S)


class Cut(Protocol[Where]):
    """`Log.truncate_then`, `Log.restart_then` or `Log.start_from_tier_then`."""

    def __call__(
        self, where: Where, /, *, is_wanted: Callable[[], bool], then: Callable[[Exception | None], None]
    ) -> None: ...


async def cut(how: Cut[Where], where: Where, *, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Truncate a log, and wait for it. `is_wanted` is called right before: if it is False, nothing is truncated."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def then(error: Exception | None) -> None:
        if done.done():
            return  # the waiting task was cancelled
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    how(where, is_wanted=lambda: not done.done() and is_wanted(), then=then)
    await done
