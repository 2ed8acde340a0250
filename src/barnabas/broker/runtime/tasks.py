"""Work that goes on after the call that began it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

#: Begins work under a name. The broker's task group is its parent: work that fails ends the broker.
Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
