"""What doctor makes of the brokers' views of each other and of ZooKeeper."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from barnabas.services.doctor.finding import Finding, Severity
from barnabas.services.doctor.view import ClusterView, MemberView, NeighbourView
from tests.unit.services.doctor.test_doctor_cluster import BROKERS, HEALTHY, found, healthy, image, topic

CUT = NeighbourView(failing_ms=12_000, reason="no answer within 5 s")
FINE = NeighbourView(round_trip_ms=1)


def seen(views: Mapping[tuple[int, int], NeighbourView]) -> ClusterView:
    """A healthy cluster, except for what some brokers see of others."""
    brokers = {
        broker: replace(
            HEALTHY, neighbours={other: views.get((broker, other), FINE) for other in BROKERS if other != broker}
        )
        for broker in BROKERS
    }
    return replace(healthy(), brokers=brokers)


def both_ways(*pairs: tuple[int, int], view: NeighbourView = CUT) -> dict[tuple[int, int], NeighbourView]:
    return {way: view for a, b in pairs for way in ((a, b), (b, a))}


def only(view: ClusterView) -> Finding:
    [finding] = found(view).values()
    return finding


def test_broker_that_is_cut_off_from_all_others_is_the_subject() -> None:
    finding = only(seen(both_ways((2, 1), (2, 3))))
    assert (finding.check, finding.subject, finding.severity) == (
        "brokers-cannot-reach-each-other",
        "broker 2",
        Severity.ERROR,
    )
    assert "it cannot reach brokers 1, 3 (no answer within 5 s)" in finding.message
    assert "broker 1 cannot reach it" in finding.message
    assert finding.since_ms == 1_000_000 - 12_000


def test_cut_in_one_direction_says_which() -> None:
    finding = only(seen({(1, 3): CUT}))
    assert finding.subject == "brokers 1, 3"
    assert finding.message == "broker 1 cannot reach broker 3 (no answer within 5 s)"


def test_refused_logins_between_brokers_are_not_called_a_cut() -> None:
    untrusted = replace(CUT, reason="wrong password", is_untrusted=True)
    finding = only(seen({(2, 1): untrusted, (2, 3): untrusted}))
    assert (finding.check, finding.subject) == ("broker-login-refused", "broker 2")
    assert "wrong password" in finding.message and "credentials" in finding.advice


def test_broker_that_no_other_reaches_is_one_finding() -> None:
    view = replace(seen({(1, 2): CUT, (3, 2): CUT}), unreachable={2: "no answer within 5000 ms"})
    view = replace(view, brokers={broker: each for broker, each in view.brokers.items() if broker != 2})
    finding = only(view)
    assert finding.check == "advertised-listener-unreachable"
    assert "brokers 1, 3 do not reach it either" in finding.message


def test_broker_that_refuses_the_doctor_and_the_other_brokers_has_another_password() -> None:
    untrusted = replace(CUT, reason="wrong password", is_untrusted=True)
    view = replace(seen({(1, 2): untrusted, (3, 2): untrusted}), unreachable={2: "wrong password"})
    view = replace(view, brokers={broker: each for broker, each in view.brokers.items() if broker != 2})
    finding = only(view)
    assert (finding.check, finding.subject) == ("broker-login-refused", "broker 2")


def test_broker_that_only_clients_do_not_reach_runs() -> None:
    view = replace(seen({}), unreachable={2: "no answer within 5000 ms"})
    view = replace(view, brokers={broker: each for broker, each in view.brokers.items() if broker != 2})
    finding = only(view)
    assert "brokers 1, 3 reach it" in finding.message
    assert finding.advice.startswith("it runs: look at the network between clients and it")


def test_slow_way_between_brokers_names_the_broker_that_all_pairs_share() -> None:
    finding = only(seen(both_ways((2, 1), (2, 3), view=NeighbourView(round_trip_ms=602))))
    assert (finding.check, finding.subject) == ("brokers-answer-late", "broker 2")
    assert finding.message == "a request between it and brokers 1, 3 takes 602 ms to be answered"


@pytest.mark.parametrize(
    ("ahead_ms", "subject", "message"),
    [
        ({1: 0, 2: 3_600_000, 3: 5}, "broker 2", "its clock is 3600.0 s ahead of the others'"),
        ({1: 0, 2: 0, 3: -60_000}, "broker 3", "its clock is 60.0 s behind the others'"),
        ({1: 90_000, 2: 90_000, 3: 90_000}, "this machine", "its clock is 90.0 s behind the brokers'"),
    ],
)
def test_clock_that_differs_is_named(ahead_ms: dict[int, int], subject: str, message: str) -> None:
    brokers = {broker: replace(HEALTHY, clock_ahead_ms=ms) for broker, ms in ahead_ms.items()}
    finding = only(replace(healthy(), brokers=brokers))
    assert (finding.check, finding.subject, finding.message) == ("clock-skew", subject, message)


def test_broker_that_alone_does_not_reach_zookeeper_is_the_subject() -> None:
    view = healthy()
    view = replace(view, brokers={**view.brokers, 2: replace(HEALTHY, zookeeper_trouble="zk:2181 has not answered")})
    finding = only(view)
    assert (finding.check, finding.subject) == ("zookeeper-cut-off", "broker 2")
    assert finding.message == "it runs, but cannot reach ZooKeeper: zk:2181 has not answered"


def test_broker_that_lost_its_session_but_runs_is_not_called_down() -> None:
    alive = {broker: each for broker, each in BROKERS.items() if broker != 2}
    view = replace(
        healthy(),
        image=image(topic(isr=(1, 3)), brokers=alive),
        brokers={broker: replace(HEALTHY, strangers={2: 40_000}) for broker in alive},
    )
    findings = found(view)
    assert "broker-down" not in findings
    first = findings["zookeeper-cut-off"]
    assert (first.subject, first.severity, first.since_ms) == ("broker 2", Severity.ERROR, 960_000)
    assert all(each.severity is not Severity.ERROR for each in findings.values() if each is not first)


def test_all_brokers_without_zookeeper_are_a_matter_of_zookeeper() -> None:
    view = healthy()
    brokers = dict.fromkeys(BROKERS, replace(HEALTHY, zookeeper_trouble="zk:2181 has not answered"))
    finding = only(replace(view, brokers=brokers))
    assert finding.check == "zookeeper-unreachable" and "no broker reaches it" in finding.message


SERVES = MemberView()
DOWN = MemberView(failing_ms=9_000, reason="no answer within 5 s", is_up=False)
LONELY = MemberView(failing_ms=9_000, reason="it answers, but does not serve")


def ensemble(**of_member: MemberView) -> ClusterView:
    """An ensemble of a, b and c that all brokers see alike."""
    seen_members = {f"{name}:2181": of_member.get(name, SERVES) for name in "abc"}
    return replace(healthy(), brokers=dict.fromkeys(BROKERS, replace(HEALTHY, members=seen_members)))


def test_ensemble_that_serves_has_no_finding() -> None:
    assert found(ensemble()) == {}


def test_dead_member_of_zookeeper_is_a_warning_with_its_name() -> None:
    finding = only(ensemble(b=DOWN))
    assert (finding.check, finding.subject, finding.severity) == (
        "zookeeper-member-down",
        "ZooKeeper's b:2181",
        Severity.WARNING,
    )
    assert finding.since_ms == 991_000


def test_member_that_lost_the_others_is_not_called_dead() -> None:
    assert "mend the network between this member and the others" in only(ensemble(c=LONELY)).advice


def test_lost_majority_names_the_members_that_are_away_and_is_the_only_error() -> None:
    view = ensemble(a=DOWN, b=DOWN, c=LONELY)
    brokers = {broker: replace(each, zookeeper_trouble="no answer") for broker, each in view.brokers.items()}
    finding = only(replace(view, brokers=brokers))
    assert finding.check == "zookeeper-no-majority"
    assert finding.message.startswith("it has no majority: 2 of 3 members do not answer (a:2181")
    assert "Do not restart brokers" in finding.advice


def test_member_that_one_broker_does_not_reach_is_a_matter_of_the_network() -> None:
    view = ensemble()
    cut = replace(HEALTHY, members={**view.brokers[2].members, "a:2181": replace(DOWN, failing_ms=16_000)})
    finding = only(replace(view, brokers={**view.brokers, 2: cut}))
    assert finding.message == "brokers 2 do not reach it (no answer within 5 s); brokers 1, 3 do"


def test_member_that_some_brokers_have_not_asked_since_it_died_is_not_called_alive() -> None:
    view = ensemble()
    first = replace(HEALTHY, members={**view.brokers[2].members, "a:2181": DOWN})
    assert "it does not answer" in only(replace(view, brokers={**view.brokers, 2: first})).message


def test_broker_that_reaches_no_member_does_not_accuse_them() -> None:
    view = ensemble()
    cut = replace(
        HEALTHY, members=dict.fromkeys(view.brokers[2].members, DOWN), zookeeper_trouble="it has not answered since"
    )
    assert only(replace(view, brokers={**view.brokers, 2: cut})).check == "zookeeper-cut-off"


def test_member_that_lags_is_a_warning() -> None:
    assert only(ensemble(b=MemberView(is_behind=True))).check == "zookeeper-member-behind"
