"""Views that only barnabas brokers offer: replicas side by side, waiting requests, stage times, decisions, znodes,
transactions."""

from collections.abc import Iterable
from typing import Any

from barnabas.base.errors import ErrorCode
from barnabas.client.image import PartitionInfo
from barnabas.services.console.errors import Refusal, bad_request, not_found
from barnabas.services.console.inside_sources import Asked
from barnabas.services.console.web import FLAG, NUMBER, TEXT, Call, Endpoint, whole

#: Limit of shown decisions, of all brokers together.
_TIMELINE_MAX = 400


async def _ask(call: Call, view: str, brokers: Iterable[int] | None = None, **query: str) -> list[Asked]:
    return await call.services.inside.ask(call.cluster, view, brokers, **query)


async def _partition_of(call: Call) -> PartitionInfo:
    """Return the partition, if the cluster shows it to this user."""
    number = whole(call.path["partition"], "partition")
    topic = await call.cluster.topic(call.path["topic"])
    if topic.error is not ErrorCode.NONE:
        raise Refusal(403, topic.error.name, f"you may not see the topic {topic.name}")
    found = next((info for info in topic.partitions if info.index == number), None)
    if found is None:
        raise not_found(f"{topic.name} has no partition {number}")
    return found


async def sources(call: Call) -> dict[str, Any]:
    """List which brokers offer the views, and why others do not."""
    asked = await _ask(call, "")
    return {"brokers": [each.row() for each in asked], "isAvailable": any(each.answer for each in asked)}


async def partition(call: Call) -> dict[str, Any]:
    info = await _partition_of(call)
    query = {"topic": call.path["topic"], "partition": call.path["partition"]}
    if call.flag("segments"):
        query["segments"] = "true"
    asked = await _ask(call, "partition", info.replicas, **query)
    return {
        **query,
        "partition": info.index,
        "leader": info.leader,
        "isr": info.isr,
        "replicas": [each.row() for each in asked],
    }


async def producers(call: Call) -> dict[str, Any]:
    info = await _partition_of(call)
    query = {"topic": call.path["topic"], "partition": call.path["partition"]}
    [asked] = await _ask(call, "producers", [info.leader], **query)
    return asked.row()


async def waiting(call: Call) -> dict[str, Any]:
    return {"brokers": [each.row() for each in await _ask(call, "waiting", _chosen(call))]}


async def requests(call: Call) -> dict[str, Any]:
    api = call.text("api")
    asked = await _ask(call, "requests", _chosen(call), **({"api": api} if api else {}))
    return {"brokers": [each.row() for each in asked]}


def _chosen(call: Call) -> list[int] | None:
    return [call.number("broker", 0)] if call.text("broker") else None


async def timeline(call: Call) -> dict[str, Any]:
    """Return the decisions of all brokers, the newest first. Each broker has those of its own time as controller."""
    asked = await _ask(call, "controller")
    decisions = [
        {"broker": each.broker, **decision}
        for each in asked
        if each.answer is not None
        for decision in each.answer["decisions"]
        # Other brokers noticing a new controller add nothing to the new controller's own entry.
        if decision["what"] != "controller changed" or decision["details"].get("broker") in (-1, each.broker)
    ]
    decisions.sort(key=lambda each: -each["at_ms"])
    controllers = [each.broker for each in asked if each.answer is not None and each.answer["is_controller"]]
    return {
        "controller": controllers[0] if controllers else None,
        "epoch": max((each.answer["epoch"] for each in asked if each.answer is not None), default=None),
        "silent": [each.row() for each in asked if each.answer is None],
        "decisions": decisions[:_TIMELINE_MAX],
    }


async def transactions(call: Call) -> dict[str, Any]:
    asked = await _ask(call, "transactions")
    return {
        "silent": [each.row() for each in asked if each.answer is None],
        "count": sum(each.answer["count"] for each in asked if each.answer is not None),
        "transactions": [
            {"coordinator": each.broker, **transaction}
            for each in asked
            if each.answer is not None
            for transaction in each.answer["transactions"]
        ],
    }


async def znode(call: Call) -> dict[str, Any]:
    """Return one znode as any broker sees it, the brokers that watch it, and the broker whose session owns it."""
    path = call.text("path", "/")
    if not path.startswith("/"):
        raise bad_request(f"{path!r} is not the path of a znode")
    asked = await _ask(call, "znode", path=path)
    seen = next((each.answer for each in asked if each.answer is not None), None)
    if seen is None:
        reasons = sorted({each.error or "" for each in asked})
        raise not_found("; ".join(reasons) or "no broker has barnabas.inside.enable=true")
    owner = None
    if seen["ephemeral_owner"]:
        sessions = await _ask(call, "")
        of_session = [each.broker for each in sessions if _session(each) == seen["ephemeral_owner"]]
        owner = of_session[0] if of_session else None
    watchers = [
        {"broker": each.broker, "what": each.answer["watched_here"]}
        for each in asked
        if each.answer is not None and each.answer["watched_here"]
    ]
    return {**seen, "owner": owner, "watchers": watchers}


def _session(asked: Asked) -> str | None:
    return None if asked.answer is None else asked.answer["zookeeper_session"]


_PARTITION = "/inside/partitions/{topic}/{partition}"
ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/inside",
        handler=sources,
        summary="Brokers that offer internal views.",
        live_s=2.0,
    ),
    Endpoint(
        method="GET",
        path=_PARTITION,
        handler=partition,
        summary="The replicas of a partition side by side: offsets, epochs, followers' lags, segments.",
        query={"segments": FLAG},
        live_s=0.5,
    ),
    Endpoint(
        method="GET",
        path=_PARTITION + "/producers",
        handler=producers,
        summary="Producers in the leader's log.",
        live_s=2.0,
    ),
    Endpoint(
        method="GET",
        path="/inside/waiting",
        handler=waiting,
        summary="Waiting requests, and what they wait for.",
        query={"broker": NUMBER},
        live_s=1.0,
    ),
    Endpoint(
        method="GET",
        path="/inside/requests",
        handler=requests,
        summary="The last requests of each API with the times of their stages.",
        query={"broker": NUMBER, "api": TEXT},
        live_s=1.0,
    ),
    Endpoint(
        method="GET",
        path="/inside/controller",
        handler=timeline,
        summary="Decisions of controllers, with reasons.",
        live_s=1.0,
    ),
    Endpoint(
        method="GET",
        path="/inside/transactions",
        handler=transactions,
        summary="Transactions, as their coordinators see them.",
        live_s=2.0,
    ),
    Endpoint(
        method="GET",
        path="/inside/znode",
        handler=znode,
        summary="One znode: data, children, owner, watchers. Credentials are hidden.",
        query={"path": TEXT},
        live_s=2.0,
    ),
]
