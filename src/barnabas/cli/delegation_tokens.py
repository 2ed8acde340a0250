"""`barnabas delegation-tokens`: kafka-delegation-tokens.sh."""

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime

from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool
from barnabas.client.admin import tokens as admin
from barnabas.client.admin.tokens import DelegationToken
from barnabas.client.asynchronous import AsyncClient


def _principal(text: str) -> str:
    if not all(text.partition(":")):
        raise UsageError(f"{text} is not a principal: write User:name")
    return text


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise UsageError("--hmac must be in base64, as --create and --describe print it") from None


TOOL = Tool(
    kafka="kafka-delegation-tokens.sh",
    options=(
        *CONNECTION,
        Option("--owner-principal", "Whose token or tokens.", _principal, metavar="User:NAME", many=True),
        Option(
            "--renewer-principal",
            "A principal that may renew it, besides the owner.",
            _principal,
            metavar="User:NAME",
            many=True,
        ),
        Option("--max-life-time-period", "Longest life; -1 for the broker's.", int, metavar="MS"),
        Option("--renew-time-period", "Until when; -1 for the broker's.", int, metavar="MS"),
        Option("--expiry-time-period", "Until when; -1 ends it at once.", int, metavar="MS"),
        Option("--hmac", "The token's HMAC, in base64.", _decoded),
        JSON,
    ),
    examples=(
        "barnabas delegation-tokens --create --max-life-time-period -1",
        "barnabas delegation-tokens --describe",
    ),
)


@TOOL.action("--create", "Create a token.", needs=("--max-life-time-period",))
async def _create(
    cluster: AsyncClient,
    owner_principal: Sequence[str],
    renewer_principal: Sequence[str],
    max_life_time_period: int,
    json: bool,
) -> None:
    owner = owner_principal[0] if owner_principal else None
    token = await admin.create_token(
        cluster, renewers=renewer_principal, lifetime_ms=max_life_time_period or -1, owner=owner
    )
    if not json:
        say(f"Created delegation token with tokenId : {token.token_id}")
    _show([token], json)


@TOOL.action("--renew", "Renew a token.", needs=("--hmac", "--renew-time-period"))
async def _renew(cluster: AsyncClient, hmac: bytes, renew_time_period: int, json: bool) -> None:
    _completed("renew", await admin.renew_token(cluster, hmac, period_ms=renew_time_period), json)


@TOOL.action("--expire", "Expire a token.", needs=("--hmac", "--expiry-time-period"))
async def _expire(cluster: AsyncClient, hmac: bytes, expiry_time_period: int, json: bool) -> None:
    _completed("expire", await admin.expire_token(cluster, hmac, period_ms=expiry_time_period), json)


@TOOL.action("--describe", "Describe tokens.")
async def _describe(cluster: AsyncClient, owner_principal: Sequence[str], json: bool) -> None:
    tokens = await admin.describe_tokens(cluster, owner_principal or None)
    if not json:
        say(f"Total number of tokens : {len(tokens)}")
    _show(tokens, json)


def _completed(action: str, ends_ms: int, json: bool) -> None:
    if json:
        say_json({"expiryTimestamp": ends_ms})
    else:
        say(f"Completed {action} operation. New expiry date : {_date(ends_ms)}")


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
