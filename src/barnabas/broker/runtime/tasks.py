"""Tasks that continue after the call that started them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

#: Starts a task under a name. The broker's task group owns it: an exception in it ends the broker.
Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
