"""Builds the responses to requests that are refused as a whole, with the error wherever a response has a field for it.

    refusal()                                                   # error_code, and error_message if the response has it
    refusal("topics.partitions <- topics.partitions")           # an error for each partition that the request names
    refusal("responses <- resources")                           # an error for each resource
    refusal(producer_id=-1)                                     # other fields of the response that are not zero

Items of the response copy their identity (`name`, `topic_id`, `partition_index`, …) from the items of the request. If an item
of the request is a plain value, such as a partition number, that value is the identity.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from barnabas.base.errors import ErrorCode
from barnabas.wire.messages.base import ApiMessage, Message
from barnabas.wire.versions import Api

M = TypeVar("M", bound=Message)

#: Fields that identify an item of a response.
IDENTITIES = (
    "name",
    "topic",
    "topic_id",
    "partition_index",
    "partition",
    "partition_id",
    "index",
    "group_id",
    "transactional_id",
    "producer_id",
    "resource_type",
    "resource_name",
)

#: Fields for an error code. AddPartitionsToTxn has its own name for it.
ERROR_CODES = ("error_code", "partition_error_code")


class Refusal:
    def __init__(self, path: str | None, fields: dict[str, object]) -> None:
        answered, _, requested = (path or "").partition(" <- ")
        self._answered = answered.split(".") if answered else []
        self._requested = requested.split(".") if requested else []
        if len(self._answered) != len(self._requested):
            raise ValueError(f"{path!r}: both sides need the same number of names")
        self._fields = fields

    def of(self, api: Api) -> Callable[[Any, ErrorCode, str | None], ApiMessage]:
        """Return the function that builds the response. The API's message classes load at the first refusal."""

        def refuse(request: ApiMessage, code: ErrorCode, message: str | None) -> ApiMessage:
            error = dict.fromkeys(ERROR_CODES, code) | {"error_message": message} | self._fields
            response = _build(api.response_class, error)
            _fill(response, request, self._answered, self._requested, error)
            return response

        return refuse


def refusal(path: str | None = None, **fields: object) -> Refusal:
    return Refusal(path, fields)


def _build(kind: type[M], values: dict[str, object]) -> M:
    return kind(**{name: value for name, value in values.items() if name in kind.__wire__})


def _fill(
    response: Message, request: Message, answered: Sequence[str], requested: Sequence[str], error: dict[str, object]
) -> None:
    if not answered:
        return
    kind = type(response).__wire__[answered[0]].type
    if isinstance(kind, str):
        raise TypeError(f"{type(response).__name__}.{answered[0]} is a list of {kind}, which cannot carry an error")
    items = []
    for item in getattr(request, requested[0]) or ():
        answer = _build(kind, _identity(item, kind) | error)
        if isinstance(item, Message):
            _fill(answer, item, answered[1:], requested[1:], error)
        items.append(answer)
    setattr(response, answered[0], items)


def _identity(item: object, kind: type[Message]) -> dict[str, object]:
    names = [name for name in IDENTITIES if name in kind.__wire__]
    if not isinstance(item, Message):
        return {names[0]: item}
    return {name: getattr(item, name) for name in names if name in item.__wire__}
