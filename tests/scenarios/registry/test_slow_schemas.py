"""A schema that is slow to parse or to compare: other writes do not wait, and their changes are taken into account."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from barnabas.services.registry.parsing import Parser
from tests.scenarios.registry.conftest import DEADLINE_S, Registry
from tests.scenarios.registry.test_api import A_B, AB, A

SLOW = '{"type":"record","name":"Slow","fields":[{"name":"a","type":"string"}]}'
SLOWER = '{"type":"record","name":"Slow","fields":[{"name":"a","type":"string"},{"name":"b","type":"string"}]}'


class Held:
    """Comparisons of the slow schema wait here."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.comparisons = 0
        self._pool = ThreadPoolExecutor()

    def register(self, subject: str, schema: str) -> "Future[Any]":
        asked = self._pool.submit(self.registry.register, subject, schema)
        assert self.begun.wait(DEADLINE_S)
        return asked


@contextmanager
def held(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    compare, scene = Parser.incompatibilities, Held(registry)

    def slowly(parser: Parser, level: str, new: Any, previous: Any, **more: Any) -> list[str]:
        if "Slow" in new.text:
            scene.comparisons += 1
            scene.begun.set()
            assert scene.go_on.wait(DEADLINE_S)
        return compare(parser, level, new, previous, **more)

    monkeypatch.setattr(Parser, "incompatibilities", slowly)
    try:
        yield scene
    finally:
        scene.go_on.set()


def test_others_register_while_a_large_schema_is_compared(
    own_registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_registry.register("slow", SLOW)
    with held(own_registry, monkeypatch) as scene:
        slow = scene.register("slow", SLOWER)
        assert own_registry.register("other", A)["version"] == 1
        assert own_registry.put("/config/other", {"compatibility": "NONE"}) == {"compatibility": "NONE"}
        assert own_registry.register("other", AB)["version"] == 2
        assert own_registry.delete("/subjects/other") == [1, 2]
        assert not slow.done()
        scene.go_on.set()
        assert slow.result(DEADLINE_S)[:2] == (409, 409)
        assert scene.comparisons == 1, "writes to other subjects do not change what it was compared with"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda registry: registry.put("/config/slow", {"compatibility": "NONE"}), 2),
        (lambda registry: registry.put("/config", {"compatibility": "NONE"}), 2),
        (lambda registry: registry.delete("/subjects/slow"), 2),
        (lambda registry: registry.put("/mode/slow", {"mode": "READONLY"}), (422, 42205)),
    ],
    ids=["level", "level of all", "deletion", "mode"],
)
def test_change_during_the_comparison_counts(
    own_registry: Registry, monkeypatch: pytest.MonkeyPatch, change: Any, expected: Any
) -> None:
    own_registry.register("slow", SLOW)
    with held(own_registry, monkeypatch) as scene:
        slow = scene.register("slow", SLOWER)
        change(own_registry)
        scene.go_on.set()
        answer = slow.result(DEADLINE_S)
    assert (answer["version"] if isinstance(answer, dict) else answer[:2]) == expected


def test_registrations_of_one_subject_are_compared_with_each_other(
    own_registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_registry.register("slow", SLOW)
    with held(own_registry, monkeypatch) as scene, ThreadPoolExecutor() as pool:
        own_registry.put("/config/slow", {"compatibility": "FULL"})
        slow = scene.register("slow", SLOWER)
        second = pool.submit(own_registry.register, "slow", A_B)
        scene.go_on.set()
        assert slow.result(DEADLINE_S)[:2] == (409, 409)
        assert second.result(DEADLINE_S)[:2] == (409, 409), "another name"
    assert own_registry.get("/subjects/slow/versions") == [1]
