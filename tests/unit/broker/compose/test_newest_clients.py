"""What Kafka 4's clients ask, in versions that Kafka 3.9 does not have."""

from barnabas.base.errors import ErrorCode
from barnabas.broker.compose import Broker
from barnabas.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from barnabas.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tests.unit.broker.compose.live_broker import ask


async def test_feature_that_cannot_be_updated_is_an_error_in_every_version(broker: Broker) -> None:
    """From v2 on there is no answer for single features, and a client would take it for done."""

    update = FeatureUpdateKey(feature="metadata.version", max_version_level=20)
    request = UpdateFeaturesRequest(feature_updates=[update])
    for version in range(UpdateFeaturesRequest.MAX_VERSION + 1):
        answer = await ask(broker, request, UpdateFeaturesResponse, version=version)
        codes = [answer.error_code, *(result.error_code for result in answer.results)]
        assert ErrorCode.INVALID_REQUEST in codes, version


async def test_topic_with_a_name_that_no_topic_can_have_is_described_as_invalid(broker: Broker) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a b"), TopicRequest(name="orders")])
    answer = await ask(broker, request, DescribeTopicPartitionsResponse, version=0)
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "orders": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
