"""Who asks, and whether a change may go ahead: every request passes `identify`, every changing one `changing` as well."""

import logging
from typing import Any

from starlette.requests import Request

from barnabas.console.cluster import ConsoleCluster
from barnabas.console.errors import Refusal
from barnabas.console.settings import Settings
from barnabas.console.web import Call, Endpoint, User

log = logging.getLogger(__name__)


class Guard:
    """Without sign-in: everybody is the user whose settings the console was started with."""

    def __init__(self, settings: Settings, cluster: ConsoleCluster) -> None:
        self._settings = settings
        self._user = User("console", cluster)

    async def identify(self, request: Request, endpoint: Endpoint) -> User:
        return self._user

    async def changing(self, endpoint: Endpoint, call: Call) -> Any:
        if not self._settings.read_write:
            raise Refusal(403, "READ_ONLY", "this console only reads; start it with --read-write to change things")
        what = " ".join(f"{name}={value}" for name, value in call.path.items())
        log.info("user=%s does=%s %s %s", call.user.name, endpoint.method, endpoint.path, what)
        return await endpoint.handler(call)
