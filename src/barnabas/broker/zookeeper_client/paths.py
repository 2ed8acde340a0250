"""Every path in ZooKeeper that Kafka 3.9 knows, relative to the chroot, and its read permission.

No other module contains these literals.
"""

from urllib.parse import quote, unquote_plus

from barnabas.base.ids import TopicPartition
from barnabas.base.znode_path import is_valid_path

ADMIN = "/admin"
BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE_ID = "/brokers/seqid"
BROKER_TOPICS = "/brokers/topics"
CLUSTER = "/cluster"
CLUSTER_ID = "/cluster/id"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONSUMERS = "/consumers"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELEGATION_TOKEN = "/delegation_token"
DELEGATION_TOKENS = "/delegation_token/tokens"
DELEGATION_TOKEN_CHANGES = "/delegation_token/token_changes"
DELETE_TOPICS = "/admin/delete_topics"
FEATURE = "/feature"
#: Barnabas only: links to other clusters, and the notifications of their changes.
BARNABAS = "/barnabas"
LINKS = "/barnabas/links"
LINK_CHANGES = "/barnabas/link_changes"
ISR_CHANGE_NOTIFICATION = "/isr_change_notification"
LATEST_PRODUCER_ID_BLOCK = "/latest_producer_id_block"
LOG_DIR_EVENT_NOTIFICATION = "/log_dir_event_notification"
MIGRATION = "/migration"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"

ACL_LITERAL = "/kafka-acl"
ACL_EXTENDED = "/kafka-acl-extended"
ACL_PREFIXED = "/kafka-acl-extended/prefixed"
ACL_LITERAL_CHANGES = "/kafka-acl-changes"
ACL_EXTENDED_CHANGES = "/kafka-acl-extended-changes"

#: Prefixes of sequential znodes: ZooKeeper appends ten digits.
CONFIG_CHANGE_PREFIX = "config_change_"
ISR_CHANGE_PREFIX = "isr_change_"
LINK_CHANGE_PREFIX = "link_change_"
LOG_DIR_EVENT_PREFIX = "log_dir_event_"
ACL_CHANGE_PREFIX = "acl_changes_"
TOKEN_CHANGE_PREFIX = "token_change_"

#: Kinds of entity under /config, with Kafka's names. Kafka creates them in this order.
TOPICS = "topics"
CLIENTS = "clients"
USERS = "users"
BROKERS_ENTITY = "brokers"
IPS = "ips"
CONFIG_ENTITY_TYPES = (TOPICS, CLIENTS, USERS, BROKERS_ENTITY, IPS)
#: Created with the first group that has settings. Kafka's name in KRaft mode; a 3.9 broker does not read it.
GROUPS = "groups"
#: The same, for subscriptions to metrics of clients (KIP-714).
CLIENT_METRICS = "client-metrics"

#: The entity name for all clients, users, addresses or brokers without their own entry.
DEFAULT_ENTITY = "<default>"

#: Resource types of ACLs, as the names of their znodes.
ACL_RESOURCE_TYPES = ("Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User")


def broker_id(broker: int) -> str:
    return f"{BROKER_IDS}/{broker}"


def is_broker_id(name: str) -> bool:
    """Whether a child of /brokers/ids is named as brokers name theirs. Other children are ignored."""
    return name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name and int(name) < 2**31


def topic(name: str) -> str:
    return f"{BROKER_TOPICS}/{name}"


def topic_partitions(name: str) -> str:
    return f"{BROKER_TOPICS}/{name}/partitions"


def topic_partition(partition: TopicPartition) -> str:
    return f"{BROKER_TOPICS}/{partition.topic}/partitions/{partition.partition}"


def partition_state(partition: TopicPartition) -> str:
    return f"{BROKER_TOPICS}/{partition.topic}/partitions/{partition.partition}/state"


def delete_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"


def config_type(entity_type: str) -> str:
    return f"{CONFIG}/{entity_type}"


def config_entity(entity_type: str, sanitized_name: str) -> str:
    """`sanitized_name` may have several levels: `alice/clients/app` for a user's client quota."""
    return f"{CONFIG}/{entity_type}/{sanitized_name}"


def config_change(sequence: str = "") -> str:
    return f"{CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}{sequence}"


def isr_change(sequence: str = "") -> str:
    return f"{ISR_CHANGE_NOTIFICATION}/{ISR_CHANGE_PREFIX}{sequence}"


def log_dir_event(sequence: str = "") -> str:
    return f"{LOG_DIR_EVENT_NOTIFICATION}/{LOG_DIR_EVENT_PREFIX}{sequence}"


def acl_resource_type(resource_type: str, *, prefixed: bool) -> str:
    return f"{ACL_PREFIXED if prefixed else ACL_LITERAL}/{resource_type}"


def acl_resource(resource_type: str, name: str, *, prefixed: bool) -> str:
    return f"{acl_resource_type(resource_type, prefixed=prefixed)}/{name}"


def acl_change(*, prefixed: bool) -> str:
    return f"{ACL_EXTENDED_CHANGES if prefixed else ACL_LITERAL_CHANGES}/{ACL_CHANGE_PREFIX}"


def delegation_token(token_id: str) -> str:
    return f"{DELEGATION_TOKENS}/{token_id}"


def delegation_token_change(sequence: str = "") -> str:
    return f"{DELEGATION_TOKEN_CHANGES}/{TOKEN_CHANGE_PREFIX}{sequence}"


def link(name: str) -> str:
    return f"{LINKS}/{name}"


def link_topics(name: str) -> str:
    return f"{LINKS}/{name}/topics"


def link_topic(name: str, topic: str) -> str:
    return f"{LINKS}/{name}/topics/{topic}"


def link_acls(name: str) -> str:
    return f"{LINKS}/{name}/acls"


def link_acl(name: str, resource_type: str, pattern_type: str, resource: str) -> str:
    return f"{LINKS}/{name}/acls/{resource_type}-{pattern_type}-{sanitize(resource)}"


def link_acl_resource(path: str) -> tuple[str, str, str]:
    """(type, pattern type, name) of a path of `link_acl`. :raises ValueError: for another path."""
    resource_type, pattern_type, resource = path.rpartition("/")[2].split("-", 2)
    return resource_type, pattern_type, desanitize(resource)


def link_partition(name: str, partition: TopicPartition) -> str:
    return f"{LINKS}/{name}/topics/{partition.topic}/{partition.partition}"


def link_change(sequence: str = "") -> str:
    return f"{LINK_CHANGES}/{LINK_CHANGE_PREFIX}{sequence}"


#: Persistent paths that every broker creates at its start if they are missing, in Kafka's order.
PERSISTENT = (
    CONSUMERS,
    BROKER_IDS,
    BROKER_TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE_ID,
    ISR_CHANGE_NOTIFICATION,
    LATEST_PRODUCER_ID_BLOCK,
    LOG_DIR_EVENT_NOTIFICATION,
    *(config_type(entity_type) for entity_type in CONFIG_ENTITY_TYPES),
)

#: Paths that an authorizer creates at its start if they are missing.
ACL_PERSISTENT = (
    *(acl_resource_type(name, prefixed=False) for name in ACL_RESOURCE_TYPES),
    *(acl_resource_type(name, prefixed=True) for name in ACL_RESOURCE_TYPES),
    ACL_LITERAL_CHANGES,
    ACL_EXTENDED_CHANGES,
)

#: Paths that hold credentials: only their creator may read below them.
SENSITIVE = (config_type(USERS), config_type(BROKERS_ENTITY), DELEGATION_TOKENS, LINKS)


def is_sensitive(path: str) -> bool:
    return path.startswith(SENSITIVE)


def parents(path: str) -> list[str]:
    """Return the ancestors of `path`, the outermost first, without the root and without `path` itself."""
    names = path.strip("/").split("/")
    return ["/" + "/".join(names[:depth]) for depth in range(1, len(names))]


def sanitize(name: str) -> str:
    """Return a valid znode name, in Kafka's encoding (URL encoding, `*` and the space as well)."""
    # Java's URLEncoder keeps `*` and encodes `~`, unlike Python's quote: both are handled here.
    return quote(name, safe="-_.").replace("~", "%7E")


def desanitize(name: str) -> str:
    return unquote_plus(name)


def is_valid_name(name: str) -> bool:
    """Whether a znode can have this name unchanged."""
    return name != "" and "/" not in name and is_valid_path(f"/{name}")
