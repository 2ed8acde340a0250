import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.topics import check_topic_name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250])
def test_name_that_no_topic_can_have_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="Topic name is invalid") as refused:
        check_topic_name(name)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_valid_topic_name_is_accepted(name: str) -> None:
    check_topic_name(name)


def test_code_of_a_newer_broker_is_an_unknown_error() -> None:
    assert ErrorCode(32_000) is ErrorCode.UNKNOWN_SERVER_ERROR
