"""Complete names that only the cluster knows: topics, groups, brokers.

A person waits for the completion, so any failure or delay offers no names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

if TYPE_CHECKING:
    from barnabas.client.asynchronous import AsyncClient

_TIMEOUT_S: Final = 3.0
_TIMEOUT_MS: Final = "2000"

Names = Callable[["AsyncClient"], Awaitable[Iterable[str]]]


async def _topics(cluster: "AsyncClient") -> Iterable[str]:
    return (await cluster.refresh(None)).topics


async def _groups(cluster: "AsyncClient") -> Iterable[str]:
    from barnabas.client.admin.groups import list_groups

    return [group.group_id for group in await list_groups(cluster)]


async def _brokers(cluster: "AsyncClient") -> Iterable[str]:
    return [str(broker_id) for broker_id in (await cluster.refresh(())).brokers]


_ENTITIES: Final[dict[str, Names]] = {"topics": _topics, "groups": _groups, "brokers": _brokers}
#: By option, for all tools.
_OPTIONS: Final[dict[str, Names]] = {
    "--topic": _topics,
    "--group": _groups,
    "--broker": _brokers,
    "--broker-logger": _brokers,
    "--id": _brokers,
}

#: Arguments, by their name in the usage.
_ARGUMENTS: Final[dict[str, Names]] = {"ID": _brokers}
#: Parameters that name a file with client settings.
_FILES: Final = ("command_config", "consumer_config_file", "producer_config_file", "admin_config")


def offer_names(command: Callable[..., Any]) -> None:
    """Add completion to the options of a command whose values are names in the cluster."""
    for hint in get_type_hints(command, include_extras=True).values():
        for info in get_args(hint)[1:]:
            # If typer gets no default, it takes the first name as the default.
            names = {getattr(info, "default", None), *(getattr(info, "param_decls", None) or ())}
            known = sorted(name for name in names if name in _OPTIONS)
            if known:
                info.autocompletion = _completer(_OPTIONS[known[0]])
            elif isinstance(info, ArgumentInfo) and info.metavar in _ARGUMENTS:
                info.autocompletion = _completer(_ARGUMENTS[info.metavar])
            elif "--entity-name" in names:
                info.autocompletion = _complete_entity


def _completer(names: Names) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return _ask(names, ctx, incomplete)

    return complete


def _complete_entity(ctx: typer.Context, incomplete: str) -> list[str]:
    kinds = ctx.params.get("entity_type") or ()
    names = _ENTITIES.get(kinds[-1] if isinstance(kinds, list | tuple) and kinds else str(kinds))
    return _ask(names, ctx, incomplete) if names is not None else []


def _ask(names: Names, ctx: typer.Context, incomplete: str) -> list[str]:
    from barnabas.base.errors import BarnabasError
    from barnabas.client.asynchronous import AsyncClient
    from barnabas.client.config import client_config, load_properties

    async def ask() -> list[str]:
        file = next((ctx.params[name] for name in _FILES if ctx.params.get(name)), None)
        settings = load_properties(file) if file else {}
        limits = {"socket.connection.setup.timeout.ms": _TIMEOUT_MS, "default.api.timeout.ms": _TIMEOUT_MS}
        config = client_config(ctx.params.get("bootstrap_server"), settings | limits, client_id="barnabas-completion")
        if not config.bootstrap:
            return []
        async with asyncio.timeout(_TIMEOUT_S), AsyncClient(config) as cluster:
            return sorted(name for name in await names(cluster) if name.startswith(incomplete))

    try:
        return asyncio.run(ask())
    except (BarnabasError, OSError, TimeoutError):
        return []
