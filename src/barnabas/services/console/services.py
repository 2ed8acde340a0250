"""Services that all endpoints of a console share."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from barnabas.services.console.settings import Settings

if TYPE_CHECKING:
    from barnabas.services.console.guard import Guard
    from barnabas.services.console.inside_sources import InsideSources
    from barnabas.services.console.web import Endpoint


@dataclass(slots=True)
class Tasks:
    """The parent of all background tasks. The group exists while the application runs."""

    group: asyncio.TaskGroup | None = None

    def start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        assert self.group is not None, "the application has not started"
        return self.group.create_task(work, name=name)


@dataclass(slots=True, kw_only=True)
class Services:
    settings: Settings
    tasks: Tasks
    guard: "Guard"
    inside: "InsideSources"
    #: Endpoints that can be watched, by path.
    live: "dict[str, Endpoint]" = field(default_factory=dict)
    #: Functions to call once when the application ends.
    closing: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    async def close(self) -> None:
        for close in self.closing:
            await close()
