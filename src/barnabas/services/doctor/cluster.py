"""`check_cluster`: look at a cluster once and report its problems."""

import dataclasses
from dataclasses import dataclass
from typing import Final

from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.errors import AuthenticationFailed, ClientError, OtherProtocol
from barnabas.services.doctor.checks import examine
from barnabas.services.doctor.finding import Finding, Severity, in_order
from barnabas.services.doctor.look import Looker
from barnabas.services.doctor.view import Limits

#: The doctor waits less long than a client would.
TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Report:
    #: The most severe first.
    findings: tuple[Finding, ...]
    #: Number of brokers in the cluster; None if none answered.
    brokers: int | None


async def check_cluster(config: ClientConfig, limits: Limits | None = None) -> Report:
    patient = dataclasses.replace(
        config,
        connect_timeout_ms=min(config.connect_timeout_ms, TIMEOUT_MS),
        request_timeout_ms=min(config.request_timeout_ms, TIMEOUT_MS),
        api_timeout_ms=min(config.api_timeout_ms, 2 * TIMEOUT_MS),
    )
    async with AsyncClient(patient) as cluster:
        try:
            image = await cluster.refresh(None)
        except ClientError as error:
            where = ",".join(f"{host}:{port}" for host, port in config.bootstrap)
            advice = "start the brokers, or correct --bootstrap-server"
            means = "clients that are given this address cannot connect"
            if isinstance(error, AuthenticationFailed | OtherProtocol):
                advice = "give the settings that this cluster requires with --command-config"
                means = "clients with these settings cannot connect"
            finding = Finding(Severity.ERROR, "bootstrap-unreachable", where, str(error), advice, means)
            return Report((finding,), None)
        view = await Looker(cluster, image, limits or Limits()).look()
        return Report(tuple(in_order(examine(view))), len(image.brokers))
