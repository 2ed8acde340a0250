"""Java's properties files, in which broker settings are written.

`parse` and `format_properties` are pure. `load` reads a file, applies `--override k=v`, and replaces the variables of config
providers. Files are read as UTF-8; older Java versions read Latin-1. Escapes mean the same in both.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.base.errors import ConfigError

_BLANK: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_VARIABLE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")

PROVIDERS: Final = "config.providers"
#: Kafka's JVM property that restricts the config providers. It is set in KAFKA_OPTS.
ALLOWED_PROVIDERS: Final = "org.apache.kafka.automatic.config.providers"
#: Variables of the image apache/kafka for its JVM, not for the broker.
_FOR_JAVA: Final = frozenset(
    [
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_OPTS",
        "KAFKA_JMX_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_JMX_HOSTNAME",
    ]
)


def parse(text: str) -> dict[str, str]:
    """Parse the properties in `text`; the last one of a repeated key wins.

    :raises ConfigError: for an escape that Java also refuses.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            properties[_unescape(key)] = _unescape(value)
        except ValueError as error:
            raise ConfigError(f"line {number}: {error}") from error
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments and blank lines, with continued lines joined, each with the number of its first line."""
    lines = re.split(r"\r\n|\n|\r", text)
    pending, first = "", 0
    for number, raw in enumerate(lines, start=1):
        line = raw.lstrip(_BLANK)
        if not pending:
            if not line or line[0] in "#!":
                continue
            first = number
        pending += line
        if _ends_with_open_backslash(line):
            pending = pending[:-1]
            if number < len(lines):
                continue
        yield first, pending
        pending = ""
    if pending:
        yield first, pending


def _ends_with_open_backslash(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Split into key and value, still escaped: the key ends at the first unescaped blank, `=` or `:`."""
    end, escaped = 0, False
    while end < len(line) and (escaped or line[end] not in _BLANK + "=:"):
        escaped = line[end] == "\\" and not escaped
        end += 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            parts.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise ValueError(f"\\u must be followed by four hexadecimal digits, not {digits!r}")
            parts.append(chr(int(digits, 16)))
            position += 4
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    return _join_surrogates("".join(parts))


def _join_surrogates(text: str) -> str:
    """Join two escaped halves of a character beyond the basic plane into one character."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def format_properties(properties: Mapping[str, str]) -> str:
    """Format text from which `parse`, and Java, read the same properties."""
    lines = (f"{_escape(key, is_key=True)}={_escape(value, is_key=False)}\n" for key, value in properties.items())
    return "".join(lines)


def _escape(text: str, *, is_key: bool) -> str:
    parts: list[str] = []
    for position, character in enumerate(text):
        if character == " ":
            parts.append("\\ " if is_key or position == 0 else " ")
        elif character in "\t\n\r\f":
            parts.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[character])
        elif character in "\\=:#!":
            parts.append("\\" + character)
        elif " " <= character <= "~":
            parts.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass")
            parts.extend(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))
    return "".join(parts)


def parse_overrides(overrides: Iterable[str], *, option: str = "--override") -> dict[str, str]:
    """Parse `--override k=v` arguments.

    :raises ConfigError: for an argument without a name or an equals sign.
    """
    merged: dict[str, str] = {}
    for argument in overrides:
        name, equals, value = argument.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{option} {argument}: expected name=value")
        merged[name.strip()] = value
    return merged


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Read settings from variables as the image apache/kafka does: KAFKA_LOG_DIRS is log.dirs, `__` is _ and `___` is -."""
    return {
        name.removeprefix("KAFKA_").lower().replace("_", ".").replace("...", "-").replace("..", "_"): value
        for name, value in environment.items()
        if name.startswith("KAFKA_") and name not in _FOR_JAVA
    }


def of_opentelemetry(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that OpenTelemetry's variables give; a file's settings override them."""
    given = {
        "barnabas.otel.endpoint": environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT"),
        "barnabas.otel.sample.ratio": environment.get("OTEL_TRACES_SAMPLER_ARG"),
    }
    return {name: value for name, value in given.items() if value}


def load(
    path: str | None,
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    with_environment: bool = False,
) -> dict[str, str]:
    """Load the settings of the file at `path` with overrides, and replace every variable of a config provider.

    `with_environment`: settings in variables (`from_environment`) override the file's; overrides override both.

    :raises ConfigError: with a one-line message, if the file cannot be read or used.
    """
    environment = os.environ if environment is None else environment
    properties = _read(path) if path is not None else {}
    if with_environment:
        properties.update(from_environment(environment))
    properties.update(parse_overrides(overrides))
    return resolve_variables(properties, environment)


def _read(path: str) -> dict[str, str]:
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: byte {error.start} is not UTF-8") from error
    except ConfigError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def resolve_variables(properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Replace `${provider:path:key}` and `${provider:key}` for the providers in `config.providers`.

    As in Kafka, a variable of another provider, or with an unknown key, stays as it is.

    :raises ConfigError: if a provider cannot be used.
    """
    providers = _providers(properties, environment)
    if not providers:
        return dict(properties)

    def fill(match: re.Match[str]) -> str:
        provider = providers.get(match[1])
        found = None if provider is None else provider.look_up(match[2] or "", match[3])
        return match[0] if found is None else found

    return {name: _VARIABLE.sub(fill, value) for name, value in properties.items()}


@dataclass(frozen=True, slots=True)
class _Provider:
    kind: str
    environment: Mapping[str, str]
    #: Empty means no restriction.
    allowed_paths: tuple[Path, ...]
    allowed_names: re.Pattern[str]

    def look_up(self, path: str, key: str) -> str | None:
        match self.kind:
            case "EnvVarConfigProvider":
                if path:
                    raise ConfigError(f"Path is not supported for EnvVarConfigProvider, invalid value '{path}'")
                return self.environment.get(key) if self.allowed_names.fullmatch(key) else None
            case "FileConfigProvider":
                return _read(path).get(key) if path and self._allows(path) else None
            case _:
                return self._from_directory(path, key) if path and self._allows(path) else None

    def _allows(self, path: str) -> bool:
        resolved = Path(path).resolve()
        return not self.allowed_paths or any(resolved.is_relative_to(allowed) for allowed in self.allowed_paths)

    @staticmethod
    def _from_directory(path: str, key: str) -> str | None:
        file = Path(path) / key
        if file.name != key or not file.is_file():
            return None
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Could not read file {file} for property {key}: {error}") from error


_KINDS: Final = ("FileConfigProvider", "DirectoryConfigProvider", "EnvVarConfigProvider")


def _providers(properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, _Provider]:
    names = [name for name in re.split(r"\s*,\s*", properties.get(PROVIDERS, "").strip()) if name]
    return {name: _provider(name, properties, environment) for name in names}


def _provider(name: str, properties: Mapping[str, str], environment: Mapping[str, str]) -> _Provider:
    class_name = properties.get(f"{PROVIDERS}.{name}.class", "").strip()
    kind = class_name.rpartition(".")[2]
    if kind not in _KINDS:
        raise ConfigError(
            f"{PROVIDERS}.{name}.class={class_name}: expected org.apache.kafka.common.config.provider."
            f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}"
        )
    allowed = re.search(rf"-D{re.escape(ALLOWED_PROVIDERS)}=(\S*)", environment.get("KAFKA_OPTS", ""))
    if allowed is not None and class_name not in allowed[1].split(","):
        raise ConfigError(f"{class_name} is not allowed: KAFKA_OPTS has {allowed[0]}")
    parameters = f"{PROVIDERS}.{name}.param."
    pattern = properties.get(f"{parameters}allowlist.pattern", ".*")
    try:
        allowed_names = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{parameters}allowlist.pattern={pattern}: {error}") from error
    paths = [path.strip() for path in properties.get(f"{parameters}allowed.paths", "").split(",")]
    return _Provider(
        kind=kind,
        environment=environment,
        allowed_paths=tuple(Path(path).resolve() for path in paths if path),
        allowed_names=allowed_names,
    )
