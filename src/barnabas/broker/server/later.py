"""Answers that a coordinator gives when it can: at once, or when a rebalance is over and a record is committed.

A request that waits keeps its call and nothing else: no task, and no place among `queued.max.requests`. Members of a group wait
for each other, so counting them could keep out the very one that the others wait for.
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

#: What may start behind a group request that waits. A member that leaves must not have to wait for the rebalance that it holds
#: up, and what it commits belongs to the generation that it was read in, not to the one that it waits for.
OVERLAPS = frozenset({api_named("OffsetCommit").key, api_named("LeaveGroup").key})


def answer_later(
    call: Call, request: ApiMessage, future: "asyncio.Future[R]", finish: Callable[[R], ApiMessage] | None = None
) -> HandlerResult:
    """`finish` makes the response of the coordinator's answer; a refusal is the API's own way to say no."""
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
    """What answers the call when it is given the coordinator's answer, or what kept it from coming."""
    call.overlaps = OVERLAPS
    # Not a function inside of this one: Python would make its annotations again for every commit.
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
            raise failure or AssertionError("neither an answer nor a failure")
        response: ApiMessage = answer if finish is None else finish(answer)
    except Refused as refusal:
        response = call.api.refuse(request, refusal.code, refusal.message)
    except Exception as error:
        # As the pipeline does it: a call without an answer would hold its connection for ever.
        log.exception("%s failed", call.api.name, exc_info=error)
        response = call.api.refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR, BUG_MESSAGE)
    call.reply(response)


def requester_of(call: Call) -> Requester:
    return Requester(call.client_id or "", f"/{call.channel.peer_host}", call.api_version)
