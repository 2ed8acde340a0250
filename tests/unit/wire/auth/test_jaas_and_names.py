"""JAAS lines, subjects of certificates, and the rules that map them."""

import pytest

from barnabas.base.errors import ConfigError
from barnabas.base.tls.distinguished_name import format_subject, principal_mapper
from barnabas.wire.auth.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from barnabas.wire.auth.registry import login_of


def test_line_as_kafka_users_write_it() -> None:
    entry = parse_jaas(
        f"""{PLAIN_MODULE} required
            username="admin" password='a "quoted" \\\\ secret'
            user_admin="x" user_alice=plain ;"""
    )
    assert entry.module == PLAIN_MODULE
    assert entry.require("username") == "admin"
    assert entry.require("password") == 'a "quoted" \\ secret'
    assert entry.users == {"admin": "x", "alice": "plain"}
    assert "secret" not in repr(entry)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Module required",
        'Module required password="hush"',
        'Module perhaps password="hush";',
        'Module required password "hush";',
        'Module required password="hush;',
        "Module required password=;",
        'Module required a="hush"; Other required b="hush";',
    ],
)
def test_line_that_cannot_be_read_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config") as refused:
        parse_jaas(text)
    assert "hush" not in str(refused.value)


def test_missing_option_is_named() -> None:
    with pytest.raises(ConfigError, match="needs password"):
        login_of({"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": f'{SCRAM_MODULE} required username="u";'})


def test_client_exchange_of_each_mechanism() -> None:
    line = f'{SCRAM_MODULE} required username="u" password="p";'
    for mechanism, first in (("PLAIN", b"\0u\0p"), ("SCRAM-SHA-256", b"n,,n=u,r="), ("SCRAM-SHA-512", b"n,,n=u,r=")):
        name, login = login_of({"sasl.mechanism": mechanism, "sasl.jaas.config": line})
        assert name == mechanism and login.begin().first().startswith(first)
    _, login = login_of({"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line})
    assert login.begin().first() != login.begin().first()  # a nonce is used once


def test_subject_is_written_as_java_writes_it() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "A, B"),),
        (("commonName", "alice"), ("userId", "7")),
    )
    assert format_subject(subject) == "CN=alice+UID=7,O=A\\, B,C=DE"
    assert format_subject(((("commonName", " #x "),),)) == "CN=\\ #x\\ "
    assert format_subject(((("commonName", "#x"),),)) == "CN=\\#x"


@pytest.mark.parametrize(
    ("rules", "name", "mapped"),
    [
        ("DEFAULT", "CN=alice,O=x", "CN=alice,O=x"),
        ("", "CN=alice,O=x", "CN=alice,O=x"),
        ("RULE:^CN=(.*?),O=.*$/$1/", "CN=alice,O=x", "alice"),
        ("RULE:^CN=(.*?),O=.*$/$1/U", "CN=alice,O=x", "ALICE"),
        ("RULE:^CN=(.*?),O=.*$/$1@x/L", "CN=Alice,O=x", "alice@x"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$2-$1/,RULE:^CN=(.*?)$/$1/,DEFAULT", "CN=a,OU=b", "b-a"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$2-$1/, RULE:^UID=(.*?)$/$1/, DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        (r"RULE:^CN=(\w+)\/(.*)$/$2/", "CN=a/b", "b"),
    ],
)
def test_rules(rules: str, name: str, mapped: str) -> None:
    assert principal_mapper(rules)(name) == mapped


def test_name_that_no_rule_maps_is_refused() -> None:
    with pytest.raises(ValueError, match="no rule"):
        principal_mapper("RULE:^CN=(.*?),O=.*$/$1/")("UID=7")


@pytest.mark.parametrize("rules", ["RULE:abc", "SOMETHING", "RULE:(/x/", "DEFAULT;RULE:a/b/"])
def test_rules_that_cannot_be_read_are_named(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        principal_mapper(rules)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/", "Alice@Ops"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$2/U", "OPS"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$4/L", "alice@$4"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$12/", "Alice2"),
        (r"RULE:^CN=(.*?),OU=.*$/\$1-$1/", "$1-Alice"),
        (r"RULE:^.*O=A\/S,.*$/slash/,DEFAULT", "slash"),
        ("RULE:^CN=Bob.*$/bob/,RULE:^CN=(.*?),.*$/$1/L,DEFAULT", "alice"),
        ("RULE:^CN=Bob.*$/bob/, DEFAULT", "CN=Alice,OU=Ops,O=A/S,C=DK"),
    ],
)
def test_rules_as_kafka_applies_them(rule: str, name: str) -> None:
    assert principal_mapper(rule)("CN=Alice,OU=Ops,O=A/S,C=DK") == name
