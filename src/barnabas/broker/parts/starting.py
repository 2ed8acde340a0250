"""Interrupts work of the start that may wait long for ZooKeeper, if the broker has to stop meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class StoppedEarly(Exception):
    """The broker had to stop while it waited for ZooKeeper."""


async def unless_stopped(stop: asyncio.Event, tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, object]) -> None:
    """Do the work. Raises `StoppedEarly` if `stop` is set before it is done."""
    stopping = tasks.create_task(stop.wait(), name="stop while starting")
    working = tasks.create_task(_outcome(work), name="find the cluster")
    await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        raise StoppedEarly
    error = working.result()
    if error is not None:
        raise error


async def _outcome(work: Coroutine[Any, Any, object]) -> BaseException | None:
    """Return the error: raised here, it would end the task group instead of reaching the caller that waits."""
    try:
        await work
    except Exception as error:
        return error
    return None
