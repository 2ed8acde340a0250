"""Certificates and delegation tokens that expire soon. Pure."""

from typing import Final

from barnabas.base.config.listeners import split_list
from barnabas.base.hosts import address
from barnabas.base.times import utc
from barnabas.services.doctor.finding import Finding, Severity
from barnabas.services.doctor.view import ClusterView

_KEY_STORE: Final = "ssl.keystore.location"


def certificates_last(view: ClusterView) -> list[Finding]:
    findings = []
    for broker_id, broker in view.brokers.items():
        ends_ms = broker.certificate_ends_ms
        if ends_ms is not None and ends_ms - view.now_ms < view.limits.certificate_ms:
            message = f"its certificate ends at {utc(ends_ms)}"
            advice = (
                "replace its files, and then make the broker read them: it does so when it starts, or when a setting of its "
                f"key store is altered, also to the same value: {_reload_command(view, broker_id)}"
            )
            means = "from then on no client can connect"
            findings.append(
                Finding(Severity.WARNING, "certificate-ends", f"broker {broker_id}", message, advice, means)
            )
    return findings


def _reload_command(view: ClusterView, broker_id: int) -> str:
    """Return the command for the listener that clients see. Kafka allows this change only under a listener's own name."""
    broker, settings = view.image.brokers[broker_id], view.brokers[broker_id].settings
    at = address(broker.host, broker.port)
    endpoints = [each.partition("://") for each in split_list(settings.get("advertised.listeners", ""))]
    own = [f"listener.name.{name.lower()}.{_KEY_STORE}" for name, _, where in endpoints if where == at]
    own += sorted(name for name in settings if name.startswith("listener.name.") and name.endswith(f".{_KEY_STORE}"))
    setting = next(iter(own), f"listener.name.LISTENER.{_KEY_STORE}")
    value = settings.get(setting) or settings.get(_KEY_STORE) or "FILE"
    return (
        f"barnabas configs --bootstrap-server {at} --command-config FILE --alter --entity-type brokers "
        f"--entity-name {broker_id} --add-config {setting}={value}"
    )


def tokens_last(view: ClusterView) -> list[Finding]:
    findings = []
    for token in view.tokens:
        left_ms = token.ends_ms - view.now_ms
        if left_ms < view.limits.token_ms and left_ms < (token.ends_ms - token.issued_ms) * view.limits.token_share:
            message = f"it ends at {utc(token.ends_ms)}"
            advice = "renew it (barnabas delegation-tokens --renew)"
            if token.ends_ms >= token.max_ms:
                advice = "create a new one: it cannot be renewed any more"
            means = "clients that log in with it are refused from then on"
            subject = f"token {token.token_id} of {token.owner}"
            findings.append(Finding(Severity.WARNING, "token-ends", subject, message, advice, means))
    return findings
