"""Requests with so many elements that a broker answers them in slices."""

import re
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.runtime.turns import SLICE_ELEMENTS
from barnabas.broker.server.large import SLICED
from barnabas.wire.messages.base import Message
from barnabas.wire.versions import api_of
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper

COUNT = 2 * SLICE_ELEMENTS + 100


def element(kind: str | type[Message], number: int, name: str, inner: str | None) -> Any:
    if kind == "string":
        return f"n{number}"
    assert not isinstance(kind, str)
    lists = {} if inner is None else {inner: [_innermost(kind, inner)]}
    key = "name" if "name" in kind.__wire__ else name
    return kind(**{key if key in kind.__wire__ else "resource_name": f"n{number}"}, **lists)


def _innermost(kind: type[Message], inner: str) -> Any:
    spec = kind.__wire__[inner]
    return 0 if isinstance(spec.type, str) else spec.type()


@pytest.mark.parametrize("api_key", SLICED, ids=lambda key: api_of(key).name)
async def test_every_element_of_a_sliced_request_is_answered_once(tmp_path: Path, api_key: int) -> None:
    api, shape = api_of(api_key), SLICED[api_key]
    kind = api.request_class.__wire__[shape.wanted].type
    request = api.request_class(
        **{shape.wanted: [element(kind, number, shape.named, shape.inner) for number in range(COUNT)]}
    )
    async with (
        zookeeper() as ensemble,
        live_broker(ensemble, tmp_path, {"auto.create.topics.enable": "false"}) as broker,
    ):
        response = await ask(broker, request, api.response_class, version=api.max_version)
    said = [re.findall(r"'(n\d+)'", str(each)) for each in getattr(response, shape.answered)]
    assert sorted(said) == sorted([f"n{number}"] for number in range(COUNT))
