import pytest

from barnabas.base.errors import Malformed
from barnabas.wire.versions import (
    API,
    INTER_BROKER,
    KRAFT_ONLY,
    SERVABLE,
    VersionRange,
    advertise,
    api_named,
    api_of,
)


@pytest.mark.parametrize("key", sorted(API), ids=lambda key: API[key].name)
def test_index_and_classes_say_the_same(key: int) -> None:
    api = API[key]
    for cls, name, flexible_from in (
        (api.request_class, f"{api.name}Request", api.request_flexible_from),
        (api.response_class, f"{api.name}Response", api.response_flexible_from),
    ):
        assert (cls.__name__, cls.API_KEY) == (name, key)
        assert api.max_version == cls.MAX_VERSION
        assert flexible_from == cls.FLEXIBLE_FROM
        assert api.min_version == cls.MIN_VERSION or (key == 0 and (cls.MIN_VERSION, api.min_version) == (3, 0))


def test_requests_of_the_controller_are_those_of_kafka_3_9() -> None:
    assert advertise(INTER_BROKER) == {
        4: VersionRange(0, 7),
        5: VersionRange(0, 4),
        6: VersionRange(0, 8),
        7: VersionRange(0, 3),
    }


def test_produce_is_advertised_from_version_0() -> None:
    assert advertise([0])[0].min_version == 0


def test_broker_advertises_what_it_has_handlers_for_in_order() -> None:
    assert list(advertise([18, 3, 1, 3])) == [1, 3, 18]


def test_quorum_apis_are_known_but_never_served() -> None:
    assert {API[key].name for key in KRAFT_ONLY} >= {"Vote", "BeginQuorumEpoch", "FetchSnapshot", "BrokerRegistration"}
    assert SERVABLE.isdisjoint(KRAFT_ONLY)
    with pytest.raises(ValueError, match="52"):
        advertise([1, 52])
    with pytest.raises(ValueError, match="999"):
        advertise([999])


def test_api_is_found_by_key_and_by_name() -> None:
    assert api_of(1) is api_named("Fetch")
    assert repr(api_of(1)) == "<Api 1 Fetch v4-18>"
    with pytest.raises(Malformed, match="unknown API key 999"):
        api_of(999)
    with pytest.raises(KeyError):
        api_named("Fetsch")


def test_header_versions_follow_flexibility_but_for_the_two_special_cases() -> None:
    fetch, api_versions, shutdown = api_of(1), api_of(18), api_of(7)
    assert [fetch.request_header_version(version) for version in (11, 12)] == [1, 2]
    assert [fetch.response_header_version(version) for version in (11, 12)] == [0, 1]
    assert [api_versions.request_header_version(version) for version in (2, 3, 99)] == [1, 2, 2]
    assert [api_versions.response_header_version(version) for version in (2, 3, 99)] == [0, 0, 0]
    assert [shutdown.request_header_version(version) for version in (0, 1, 3)] == [0, 1, 2]
