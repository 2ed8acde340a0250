"""What ends: certificates and delegation tokens. Pure."""

from barnabas.base.times import utc
from barnabas.services.doctor.finding import Finding, Severity
from barnabas.services.doctor.view import ClusterView


def certificates_last(view: ClusterView) -> list[Finding]:
    findings = []
    for broker_id, broker in view.brokers.items():
        ends_ms = broker.certificate_ends_ms
        if ends_ms is not None and ends_ms - view.now_ms < view.limits.certificate_ms:
            message = f"its certificate ends at {utc(ends_ms)}"
            advice = "put a new one in its place: brokers take changed files up while they serve"
            means = "from then on no client can connect"
            findings.append(
                Finding(Severity.WARNING, "certificate-ends", f"broker {broker_id}", message, advice, means)
            )
    return findings


def tokens_last(view: ClusterView) -> list[Finding]:
    findings = []
    for token in view.tokens:
        left_ms = token.ends_ms - view.now_ms
        if left_ms < view.limits.token_ms and left_ms < (token.ends_ms - token.issued_ms) * view.limits.token_share:
            message = f"it ends at {utc(token.ends_ms)}"
            advice = "renew it (barnabas delegation-tokens --renew)"
            if token.ends_ms >= token.max_ms:
                advice = "make a new one: it cannot be renewed any more"
            means = "who logs in with it is refused from then on"
            subject = f"token {token.token_id} of {token.owner}"
            findings.append(Finding(Severity.WARNING, "token-ends", subject, message, advice, means))
    return findings
