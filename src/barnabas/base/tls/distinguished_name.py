"""Convert a client certificate's subject to a principal's name: RFC 2253's text, and `ssl.principal.mapping.rules`."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.base.errors import ConfigError

#: A subject as Python's ssl module returns it: relative names in the certificate's order, each with one or more parts.
Subject = Sequence[Sequence[tuple[str, str]]]

#: RFC 2253's short names. Other attributes use OpenSSL's long name, where Java writes a number.
_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_SPECIAL: Final = re.compile(r'([,+"\\<>;])')
_REFERENCE: Final = re.compile(r"\\(?P<escaped>.)|\$(?P<number>[0-9]+)")
_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


def format_subject(subject: Subject) -> str:
    """Format with the last relative name first, as `X500Principal.getName` does."""
    return ",".join("+".join(_part(key, value) for key, value in name) for name in reversed(subject))


def _part(key: str, value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" ") and not text.endswith("\\ "):
        text = text[:-1] + "\\ "
    return f"{_SHORT.get(key, key)}={text}"


Mapper = Callable[[str], str]


def principal_mapper(rules: str) -> Mapper:
    """Return the mapping of names. The first rule that matches the whole name decides; a name without a match is refused."""
    parsed = _parse(rules)

    def map_name(name: str) -> str:
        for pattern, replacement, case in parsed:
            if pattern is None:
                return name
            match = pattern.fullmatch(name)
            if match is not None:
                mapped = _expand(match, replacement)
                return mapped.lower() if case == "L" else mapped.upper() if case == "U" else mapped
        raise ValueError(f"no rule of ssl.principal.mapping.rules applies to {name}")

    return map_name


def _parse(rules: str) -> list[tuple[re.Pattern[str] | None, str, str]]:
    parsed: list[tuple[re.Pattern[str] | None, str, str]] = []
    text = rules.strip() or "DEFAULT"
    at = 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise ConfigError(
                f"ssl.principal.mapping.rules: cannot read {text[at : at + 80]!r}; use RULE:pattern/name/"
            )
        if match[1]:
            parsed.append((None, "", ""))
        else:
            try:
                parsed.append((re.compile(match[2]), match[3], match[4]))
            except re.error as error:
                raise ConfigError(f"ssl.principal.mapping.rules: {match[2]!r} is not a pattern: {error}") from error
        at = match.end()
        while at < len(text) and text[at] in ", \t":
            at += 1
    return parsed


def _expand(match: re.Match[str], replacement: str) -> str:
    """Expand Java's `$1`, with as many digits as there are groups for. As in Kafka, a `$` without a group stays as it is."""
    groups = match.re.groups

    def fill(found: re.Match[str]) -> str:
        if found["escaped"] is not None:
            return found["escaped"]
        digits = found["number"]
        used = len(digits)
        while used > 1 and int(digits[:used]) > groups:
            used -= 1
        number = int(digits[:used])
        if number <= groups:
            return (match[number] or "") + digits[used:]
        if not groups:
            raise ValueError(f"ssl.principal.mapping.rules: there is no group ${number}")
        return found[0]

    return _REFERENCE.sub(fill, replacement)
