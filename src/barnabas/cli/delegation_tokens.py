"""`barnabas delegation-tokens`: kafka-delegation-tokens.sh."""

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say, say_json
from barnabas.cli._tool import Bootstrap, CommandConfig, Json, exactly_one
from barnabas.client.admin import tokens as admin
from barnabas.client.admin.tokens import DelegationToken
from barnabas.client.asynchronous import AsyncClient

Principals = list[str] | None


def command(
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    create: Annotated[bool, typer.Option("--create", help="Create a token.")] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Renew a token.")] = False,
    expire: Annotated[bool, typer.Option("--expire", help="Expire a token.")] = False,
    describe: Annotated[bool, typer.Option("--describe", help="Describe tokens.")] = False,
    owner_principal: Annotated[
        Principals, typer.Option("--owner-principal", metavar="User:NAME", help="Whose token or tokens.")
    ] = None,
    renewer_principal: Annotated[
        Principals,
        typer.Option(
            "--renewer-principal", metavar="User:NAME", help="A principal that may renew it, besides the owner."
        ),
    ] = None,
    max_life_time_period: Annotated[
        int | None, typer.Option("--max-life-time-period", metavar="MS", help="Longest life; -1 for the broker's.")
    ] = None,
    renew_time_period: Annotated[
        int | None, typer.Option("--renew-time-period", metavar="MS", help="Until when; -1 for the broker's.")
    ] = None,
    expiry_time_period: Annotated[
        int | None, typer.Option("--expiry-time-period", metavar="MS", help="Until when; -1 ends it at once.")
    ] = None,
    hmac: Annotated[str | None, typer.Option("--hmac", help="The token's HMAC, in base64.")] = None,
    json: Json = False,
) -> None:
    """Create, renew, expire and describe delegation tokens."""
    action = exactly_one("Command", create=create, renew=renew, expire=expire, describe=describe)
    needs: dict[str, dict[str, object]] = {
        "create": {"max-life-time-period": max_life_time_period},
        "renew": {"hmac": hmac, "renew-time-period": renew_time_period},
        "expire": {"hmac": hmac, "expiry-time-period": expiry_time_period},
        "describe": {},
    }
    missing = [name for name, value in needs[action].items() if value is None]
    if missing:
        raise UsageError(f"--{action} needs --{' and --'.join(missing)}")
    for principal in (*(owner_principal or ()), *(renewer_principal or ())):
        if not all(principal.partition(":")):
            raise UsageError(f"{principal} is not a principal: write User:name")
    config = options(bootstrap_server, command_config)

    async def carry_out(cluster: AsyncClient) -> None:
        if action == "create":
            owner = owner_principal[0] if owner_principal else None
            token = await admin.create_token(
                cluster, renewers=renewer_principal or (), lifetime_ms=max_life_time_period or -1, owner=owner
            )
            if not json:
                say(f"Created delegation token with tokenId : {token.token_id}")
            _show([token], json)
        elif action == "describe":
            tokens = await admin.describe_tokens(cluster, owner_principal or None)
            if not json:
                say(f"Total number of tokens : {len(tokens)}")
            _show(tokens, json)
        else:
            change = admin.renew_token if action == "renew" else admin.expire_token
            period_ms = renew_time_period if action == "renew" else expiry_time_period
            assert period_ms is not None
            ends_ms = await change(cluster, _decoded(hmac or ""), period_ms=period_ms)
            if json:
                say_json({"expiryTimestamp": ends_ms})
            else:
                say(f"Completed {action} operation. New expiry date : {_date(ends_ms)}")

    run(config, carry_out)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise UsageError("--hmac must be in base64, as --create and --describe print it") from None


def _date(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000).strftime("%Y-%m-%dT%H:%M")


def _show(tokens: Sequence[DelegationToken], json: bool) -> None:
    if json:
        say_json(
            [
                {
                    "tokenId": each.token_id,
                    "hmac": each.hmac_base64,
                    "owner": each.owner,
                    "requester": each.requester,
                    "renewers": list(each.renewers),
                    "issueTimestamp": each.issue_timestamp_ms,
                    "expiryTimestamp": each.expiry_timestamp_ms,
                    "maxTimestamp": each.max_timestamp_ms,
                }
                for each in tokens
            ]
        )
        return
    form = "{:<15} {:<30} {:<15} {:<15} {:<25} {:<15} {:<15} {:<15}"
    titles = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")
    say("\n" + form.format(*titles))
    for each in tokens:
        times = (each.issue_timestamp_ms, each.expiry_timestamp_ms, each.max_timestamp_ms)
        renewers = f"[{', '.join(each.renewers)}]"
        fields = (each.token_id, each.hmac_base64, each.owner, each.requester, renewers, *map(_date, times))
        say("\n" + form.format(*fields))
