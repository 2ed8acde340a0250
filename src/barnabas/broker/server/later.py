"""Answers that a coordinator gives later: after a rebalance, or when a record is committed.

A waiting request keeps only its call: no task, and no place among `queued.max.requests`. Members of a group wait for each
other, so counting them could block the very member that the others wait for.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.group import Requester
from barnabas.broker.server.call import Call
from barnabas.broker.server.handler import HandlerResult
from barnabas.broker.server.pipeline import BUG_MESSAGE
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.versions import api_named

log = logging.getLogger(__name__)
R = TypeVar("R", bound=ApiMessage)

#: APIs that may start while a group request of the same connection waits. A member that leaves must not wait for the rebalance
#: that it holds up, and its commits belong to its present generation, not to the one that it waits for.
OVERLAPS = frozenset({api_named("OffsetCommit").key, api_named("LeaveGroup").key})


def answer_later(
    call: Call, request: ApiMessage, future: "asyncio.Future[R]", finish: Callable[[R], ApiMessage] | None = None
) -> HandlerResult:
    """Answer the call when `future` is done. `finish` builds the response from the coordinator's answer."""
    if future.done():
        answer = future.result()
        return answer if finish is None else finish(answer)
    reply = replying(call, request, finish)

    def replied(done: "asyncio.Future[R]") -> None:
        failure = done.exception()
        if failure is None:
            reply(done.result(), None)
        else:
            reply(None, failure)

    future.add_done_callback(replied)
    return None


def replying(
    call: Call, request: ApiMessage, finish: Callable[[R], ApiMessage] | None = None
) -> Callable[[R | None, BaseException | None], None]:
    """Return a callback that answers the call, given the coordinator's answer or its failure."""
    call.overlaps = OVERLAPS
    # Not a nested function: Python would create its annotations again for every commit.
    return partial(_reply, call, request, finish)


def _reply(
    call: Call,
    request: ApiMessage,
    finish: Callable[[R], ApiMessage] | None,
    answer: R | None,
    failure: BaseException | None,
) -> None:
    try:
        if answer is None:
            raise failure or AssertionError("the coordinator gave neither an answer nor a failure")
        response: ApiMessage = answer if finish is None else finish(answer)
    except Refused as refusal:
        response = call.api.refuse(request, refusal.code, refusal.message)
    except Exception as error:
        # As in the pipeline: a call without an answer would block its connection for ever.
        log.exception("[request %s] failed by a bug, report it", call.api.name, exc_info=error)
        response = call.api.refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR, BUG_MESSAGE)
    call.reply(response)


def requester_of(call: Call) -> Requester:
    return Requester(call.client_id or "", f"/{call.channel.peer_host}", call.api_version)
