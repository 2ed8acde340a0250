"""Znodes of ACLs and delegation tokens, and the access control of the znodes themselves. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from barnabas.base.errors import Malformed
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.json_data import dump, reading


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One entry of an access control list, as Kafka stores it: `User:alice`, `Allow`, `*`, `Read`."""

    principal: str
    permission_type: str
    host: str
    operation: str


def encode_acls(entries: Iterable[AclEntry]) -> bytes:
    return dump(
        {
            "acls": [
                {
                    "principal": entry.principal,
                    "permissionType": entry.permission_type,
                    "host": entry.host,
                    "operation": entry.operation,
                }
                for entry in entries
            ],
            "version": 1,
        }
    )


def decode_acls(path: str, data: bytes | None) -> list[AclEntry]:
    if not data:
        return []
    with reading(path, data) as value:
        if int(value["version"]) != 1:
            raise Malformed(f"{path}: version {value['version']} of an access control list is not known")
        return [
            AclEntry(str(acl["principal"]), str(acl["permissionType"]), str(acl["host"]), str(acl["operation"]))
            for acl in value["acls"]
        ]


@dataclass(frozen=True, slots=True)
class AclChange:
    """A resource whose ACLs have changed."""

    #: Kafka's upper-case name: TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER.
    resource_type: str
    name: str
    prefixed: bool

    def encode(self) -> bytes:
        if not self.prefixed:
            return f"{self.resource_type}:{self.name}".encode()
        return dump({"version": 1, "resourceType": self.resource_type, "name": self.name, "patternType": "PREFIXED"})

    @staticmethod
    def decode(data: bytes, *, prefixed: bool) -> "AclChange":
        if not prefixed:
            resource_type, separator, name = data.decode("utf-8", "replace").partition(":")
            if not separator:
                raise Malformed(f"{paths.ACL_LITERAL_CHANGES}: expected TYPE:name, got {data[:200]!r}")
            return AclChange(resource_type.upper(), name, prefixed=False)
        with reading(paths.ACL_EXTENDED_CHANGES, data) as value:
            return AclChange(str(value["resourceType"]).upper(), str(value["name"]), prefixed=True)


@dataclass(frozen=True, slots=True)
class DelegationTokenInfo:
    """A delegation token without its secret, which is derived from `delegation.token.secret.key`."""

    token_id: str
    #: The owner, as a principal like `User:alice`.
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiry_timestamp_ms: int

    def encode(self) -> bytes:
        return dump(
            {
                "issueTimestamp": self.issue_timestamp_ms,
                "renewers": [paths.sanitize(each) for each in self.renewers],
                "tokenRequester": paths.sanitize(self.requester),
                "tokenId": self.token_id,
                "owner": paths.sanitize(self.owner),
                "expiryTimestamp": self.expiry_timestamp_ms,
                "maxTimestamp": self.max_timestamp_ms,
                "version": 3,
            }
        )

    @staticmethod
    def decode(data: bytes) -> "DelegationTokenInfo":
        with reading(paths.DELEGATION_TOKENS, data) as value:
            version = int(value["version"])
            if not 1 <= version <= 3:
                raise Malformed(f"{paths.DELEGATION_TOKENS}: version {version} of a token is not known")
            owner = paths.desanitize(value["owner"])
            return DelegationTokenInfo(
                token_id=str(value["tokenId"]),
                owner=owner,
                requester=paths.desanitize(value["tokenRequester"]) if version >= 3 else owner,
                renewers=tuple(paths.desanitize(each) for each in value["renewers"]),
                issue_timestamp_ms=int(value["issueTimestamp"]),
                max_timestamp_ms=int(value["maxTimestamp"]),
                expiry_timestamp_ms=int(value["expiryTimestamp"]),
            )


@dataclass(frozen=True, slots=True)
class ZnodeAcl:
    """One entry of a znode's ACL. `permissions` are ZooKeeper's bits."""

    scheme: str
    id: str
    permissions: int


PERMISSION_READ = 1
PERMISSION_ALL = 31

OPEN_ACL = (ZnodeAcl("world", "anyone", PERMISSION_ALL),)
CREATOR_ALL_ACL = (ZnodeAcl("auth", "", PERMISSION_ALL),)
CREATOR_ALL_AND_WORLD_READ_ACL = (*CREATOR_ALL_ACL, ZnodeAcl("world", "anyone", PERMISSION_READ))


def default_acl(path: str, *, secure: bool) -> tuple[ZnodeAcl, ...]:
    """Return Kafka's default: with `zookeeper.set.acl` only brokers write, and only brokers read credentials."""
    # Old consumers write below /consumers themselves, so it stays open.
    if not secure or path == paths.CONSUMERS:
        return OPEN_ACL
    return CREATOR_ALL_ACL if paths.is_sensitive(path) else CREATOR_ALL_AND_WORLD_READ_ACL
