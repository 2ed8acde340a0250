"""A tool of the command line as a table: its options, its actions, and the rules between them.

Parsing, refusals, `--help`, completion and docs/tool-options.md are made from the table. An action is a function, and its
parameters name the options that it reads: `replication_factor` reads `--replication-factor`, `list_` reads `--list`. An option
that the function does not have is refused with that action, so no option is accepted without a reader. Three parameters are
special: `cluster` gets a client that is connected, `client` the client's settings, and a parameter whose type is a dataclass
gets an instance with the options that its fields name.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from barnabas.base.names import did_you_mean
from barnabas.cli._command import UsageError, complain

F = TypeVar("F", bound=Callable[..., Any])

#: Filled by the core, not by an option.
CLUSTER: Final = "cluster"
CLIENT: Final = "client"
#: How a usage shows values of these types, where an option does not say it.
_METAVARS: Final[dict[object, str]] = {int: "N", float: "N", Path: "PATH"}


class WrongUse(UsageError):
    """A command line that cannot be parsed. Exit status 2."""


@dataclass(frozen=True, slots=True)
class Option:
    flag: str
    help: str = ""
    #: Converts the text of a value. `bool`: the option takes no value.
    kind: Callable[[str], Any] = str
    _: KW_ONLY
    metavar: str = ""
    #: May be repeated; the value is a tuple.
    many: bool = False
    #: Takes all words up to the next option. Implies `many`.
    rest: bool = False
    #: Value if it is not given; a text is converted like one that is given.
    default: Any = None
    required: bool = False
    #: Least value of a number.
    least: int | None = None
    #: Other spellings of the flag.
    also: tuple[str, ...] = ()
    #: Flag that switches it off; without it and without the flag it is on.
    off: str = ""
    #: Text of the value if the flag stands alone; None: a value is required.
    alone: str | None = None
    #: The words that the flag stands for.
    means: tuple[str, ...] = ()
    #: Name of the parameter, where the flag does not give it.
    name: str = ""
    #: Environment variable that is read if the flag is missing.
    env: str = ""
    #: The error for an option of Kafka's tool that does not work here.
    refused: str = ""
    #: Why an option of Kafka's tool changes nothing here. It is accepted, with a warning.
    no_effect: str = ""
    #: Like `no_effect`, for what scripts rightly pass: no warning.
    needless: str = ""
    #: What to do instead; ends the error if the action does not read the option.
    instead: str = ""

    @property
    def parameter(self) -> str:
        return self.name or self.flag.lstrip("-").replace("-", "_").replace(".", "_")

    @property
    def is_many(self) -> bool:
        return self.many or self.rest

    @property
    def is_read(self) -> bool:
        return not (self.refused or self.no_effect or self.needless or self.means)

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.flag, *self.also, self.off)))

    @property
    def shown(self) -> str:
        """The flag with a placeholder of its value, for help and documents."""
        flag = f"{self.flag}/{self.off}" if self.off else self.flag
        if self.kind is bool:
            return flag
        value = self.metavar or _METAVARS.get(self.kind) or "|".join(choices_of(self))
        value = value or self.flag.lstrip("-").rpartition("-")[2].upper()
        return f"{flag} [{value}]" if self.alone is not None else f"{flag} {value}"


@dataclass(frozen=True, slots=True)
class Argument:
    """A word that is no option. Actions that have its parameter take it, in the order of the table."""

    name: str
    help: str
    kind: Callable[[str], Any] = str
    _: KW_ONLY
    metavar: str = ""
    #: Takes all remaining words; the value is a tuple.
    many: bool = False
    default: Any = None
    required: bool = False
    #: From this argument on nothing is an option: the words belong to another program.
    ends_options: bool = False
    #: For the error if it is missing: `create needs the name of the link`.
    what: str = ""

    @property
    def shown(self) -> str:
        return self.metavar or self.name.upper()


class OneOf:
    """A kind of value: one of these words, in any case."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, text: str) -> str:
        return next(each for each in self.choices if each.lower() == text.lower())


def words(text: str) -> tuple[str, ...]:
    """A kind of value: words with commas between them."""
    return tuple(word for word in (word.strip() for word in text.split(",")) if word)


def numbers(text: str) -> tuple[int, ...]:
    """A kind of value: whole numbers with commas between them."""
    return tuple(int(word) for word in words(text))


def choices_of(each: Option | Argument) -> tuple[str, ...]:
    """Return the only valid values, if the kind of value names them."""
    if isinstance(each.kind, type) and issubclass(each.kind, Enum):
        return tuple(str(member.value) for member in each.kind)
    return each.kind.choices if isinstance(each.kind, OneOf) else ()


def convert(each: Option | Argument, text: str) -> Any:
    """Convert the text of a value.

    :raises WrongUse: if it is not valid.
    """
    what = each.flag if isinstance(each, Option) else each.shown
    choices = choices_of(each)
    if choices and text.lower() not in (choice.lower() for choice in choices):
        raise WrongUse(f"{what}: {text!r} is not valid{did_you_mean(text, choices) or f'; use {_list(choices)}'}")
    try:
        value = each.kind(text)
    except ValueError:
        raise WrongUse(f"{what}: {text!r} is not a {'whole ' if each.kind is int else ''}number") from None
    if isinstance(each, Option) and each.least is not None and value < each.least:
        raise WrongUse(f"{what}: {text} is not valid: the least value is {each.least}")
    return value


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold between options, by their flags (and arguments, by their names)."""

    is_kept: Callable[[frozenset[str]], bool]
    flags: tuple[str, ...]
    says: str


def at_most_one(*flags: str, when: str = "", says: str = "") -> Rule:
    return _counted(flags, when, says or f"only one of {_list(flags)} can be given", lambda count: count <= 1)


def exactly_one(*flags: str, when: str = "", says: str = "") -> Rule:
    return _counted(flags, when, says or f"exactly one of {_list(flags)} is required", lambda count: count == 1)


def at_least_one(*flags: str, when: str = "", says: str = "") -> Rule:
    return _counted(flags, when, says or f"one of {_list(flags)} is required", lambda count: count >= 1)


def _counted(flags: tuple[str, ...], when: str, says: str, is_right: Callable[[int], bool]) -> Rule:
    """A rule about the number of these flags that are given; `when` limits it to command lines with another one."""

    def is_kept(given: frozenset[str]) -> bool:
        return bool(when and when not in given) or is_right(len(given.intersection(flags)))

    return Rule(is_kept, (*flags, *([when] if when else [])), says)


def excludes(flag: str, *others: str, says: str = "") -> Rule:
    says = says or f"{flag} cannot be used with {' or '.join(others)}"
    return Rule(lambda given: flag not in given or given.isdisjoint(others), (flag, *others), says)


def needs(flag: str, *others: str, says: str = "") -> Rule:
    """`flag` is only of use with all of the others."""
    says = says or f"{flag} needs {' and '.join(others)}"
    return Rule(lambda given: flag not in given or given.issuperset(others), (flag, *others), says)


def _list(flags: Sequence[str]) -> str:
    return ", ".join(flags)


def _bare(flag: str) -> str:
    return flag.lstrip("-")


@dataclass(frozen=True, slots=True)
class Action:
    """`--create`, or a word as in `link create`; "" for a tool that does one thing."""

    flag: str
    help: str
    run: Callable[..., Any]
    #: Flags and names of arguments that it cannot do without.
    needs: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: Flags that Kafka's tool accepts with this action although they do nothing: a warning, not an error.
    ignores: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return _bare(self.flag)

    @property
    def parameters(self) -> tuple[str, ...]:
        return parameters_of(self.run)


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


@dataclass(slots=True)
class Given:
    """The words of a command line, before their values are converted."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tool:
    options: tuple[Option, ...] = ()
    arguments: tuple[Argument, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: Kafka's script with the same flags.
    kafka: str = ""
    #: Paragraphs below the first line of the help.
    about: str = ""
    #: For docs/tools.md, in Markdown: how it differs from Kafka's script, and the page about it.
    note: str = ""
    #: Command lines that teach. A test parses them.
    examples: tuple[str, ...] = ()
    #: Makes the settings of `cluster` and `client` from options. None: from those in CONNECTION.
    connect: Callable[..., Any] | None = None
    actions: list[Action] = field(default_factory=list)

    def action(
        self,
        flag: str,
        help: str,
        *,
        needs: Sequence[str] = (),
        rules: Sequence[Rule] = (),
        ignores: Sequence[str] = (),
    ) -> Callable[[F], F]:
        """Decorate the function that carries out an action."""

        def add(function: F) -> F:
            self.actions.append(Action(flag, help, function, tuple(needs), tuple(rules), tuple(ignores)))
            return function

        return add

    def main(self, function: F) -> F:
        """Decorate the function of a tool that does one thing."""
        return self.action("", "")(function)

    # -- what the table says ----------------------------------------------------------------------------------------------

    @property
    def has_flags(self) -> bool:
        """Whether its actions are options, as in most of Kafka's tools, and not words."""
        return any(action.flag.startswith("-") for action in self.actions)

    @property
    def has_words(self) -> bool:
        return any(action.flag and not action.flag.startswith("-") for action in self.actions)

    def flags(self) -> set[str]:
        """Return every flag that it knows."""
        known = {flag for option in self.options for flag in option.flags}
        return known | {action.flag for action in self.actions if action.flag.startswith("-")} | {"--help"}

    def readers(self, each: Option | Argument) -> list[Action]:
        """Return the actions that read an option or argument."""
        name = each.parameter if isinstance(each, Option) else each.name
        return [action for action in self.actions if name in self._read_by(action)]

    def _read_by(self, action: Action) -> set[str]:
        names = set[str]()
        for parameter in action.parameters:
            if parameter in (CLUSTER, CLIENT):
                names.update(self._reads_to_connect())
            elif (group := self.group(action, parameter)) is not None:
                names.update(group.__dataclass_fields__)
            else:
                names.add(parameter)
        return {name.rstrip("_") for name in names}

    def group(self, action: Action, parameter: str) -> Any:
        """Return the dataclass that a parameter gathers options in, if it does."""
        named = {CLUSTER, CLIENT, *(each.parameter for each in self.options), *(each.name for each in self.arguments)}
        if parameter.rstrip("_") in named:
            return None
        kind = action.run.__annotations__.get(parameter)
        return kind if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") else None

    def _reads_to_connect(self) -> tuple[str, ...]:
        return parameters_of(self.connect) if self.connect else ("bootstrap_server", "command_config")

    # -- from words to a call ---------------------------------------------------------------------------------------------

    def run(self, given: Given) -> int:
        """Check the words, carry out what they say, and return the exit status.

        :raises UsageError: if they do not go together.
        """
        action = self.choose(given)
        self.check(action, given)
        return self._call(action, given)

    def parse(self, arguments: Sequence[str]) -> Given:
        """Sort the words by option. Options may be abbreviated, as in Kafka, if only one begins so."""
        by_flag = {flag: option for option in self.options for flag in option.flags}
        known = self.flags()
        given = Given()
        words_max = next((i for i, each in enumerate(self.arguments, int(self.has_words)) if each.ends_options), None)
        rest = list(arguments)
        while rest:
            word = rest.pop(0)
            if word == "--":
                given.words += rest
                break
            if words_max is not None and len(given.words) > words_max:
                given.words += [word, *rest]
                break
            if not looks_like_option(word):
                given.words.append(word)
                continue
            flag, equals, value = word.partition("=")
            flag = complete(flag, known)
            option = by_flag.get(flag)
            if option is None:
                if flag not in known:
                    raise WrongUse(f"no such option: {flag}{did_you_mean(flag, known)}")
                if equals:
                    raise WrongUse(f"option {flag!r} does not take a value")
                given.texts[flag] = [""]
            elif option.means:
                rest[:0] = option.means
            elif option.kind is bool:
                if equals:
                    raise WrongUse(f"option {flag!r} does not take a value")
                given.texts[option.flag] = ["no" if flag == option.off else "yes"]
            else:
                given.texts.setdefault(option.flag, []).extend([value] if equals else _values(option, rest, known))
        return given

    def choose(self, given: Given) -> Action:
        """Return the action that was asked for, and take its word off the others.

        :raises UsageError: if there is not exactly one.
        """
        if not self.has_words and not self.has_flags:
            return self.actions[0]
        names = [action.flag for action in self.actions if action.flag]
        if self.has_words:
            word = given.words.pop(0) if given.words else ""
            chosen = [action for action in self.actions if action.flag == word]
            if not chosen and not word:
                raise WrongUse(f"missing argument 'action'. Choose from: {', '.join(names)}")
            if not chosen:
                raise UsageError(
                    f"{word!r} is not an action{did_you_mean(word, names) or f'; use one of {_list(names)}'}"
                )
            return chosen[0]
        chosen = [action for action in self.actions if action.flag in given.texts]
        if len(chosen) != 1 and len(names) == 1:
            raise UsageError(f'Missing required argument "[{_bare(names[0])}]"')
        if len(chosen) != 1:
            raise UsageError(f"Command must include exactly one action: {', '.join(names)}")
        return chosen[0]

    def check(self, action: Action, given: Given) -> None:
        """Refuse what does not go together.

        :raises UsageError: that says what does not.
        """
        by_flag = {option.flag: option for option in self.options}
        read = self._read_by(action)
        taken = [each for each in self.arguments if each.name in read]
        for flag in given.texts:
            if flag in by_flag and by_flag[flag].refused:
                raise UsageError(by_flag[flag].refused)
        present = {*given.texts, *(each.name for each, _ in zip(taken, given.words, strict=False))}
        present |= {each.flag for each in self.options if each.env and os.environ.get(each.env)}
        missing = [need for need in action.needs if need not in present]
        if missing:
            raise UsageError(self._lacks(action, missing))
        for flag in given.texts:
            option = by_flag.get(flag)
            if option is not None and option.is_read and option.parameter not in read and flag not in action.ignores:
                instead = f" ({option.instead})" if option.instead else ""
                raise UsageError(f'Option "[{_bare(flag)}]" can\'t be used with option "[{action.name}]"{instead}')
        for rule in (*self.rules, *action.rules):
            if not rule.is_kept(frozenset(present)) and (rule in action.rules or self._concerns(rule, read)):
                raise UsageError(rule.says)
        if len(given.words) > len(taken) and not any(each.many for each in taken):
            raise WrongUse(f"{given.words[len(taken)]!r} is not understood")
        for option in self.options:
            if option.required and option.flag not in present:
                raise WrongUse(f"missing option {option.flag!r}")
        for index, each in enumerate(taken):
            if each.required and len(given.words) <= index:
                choices = f". Choose from: {', '.join(choices_of(each))}" if choices_of(each) else ""
                raise WrongUse(f"missing argument {each.shown!r}{choices}")
        for flag in given.texts:
            why = by_flag[flag].no_effect if flag in by_flag else ""
            if why or flag in action.ignores:
                complain(f"warning: {flag} has no effect: {why or f'{action.name} does not use it'}")

    def _concerns(self, rule: Rule, read: set[str]) -> bool:
        """Whether an action reads an option that a rule of the whole tool names."""
        return any(option.parameter in read for option in self.options if option.flag in rule.flags)

    def _lacks(self, action: Action, missing: Sequence[str]) -> str:
        if not action.flag:
            return f"Missing required option(s): {', '.join(map(_bare, missing))}"
        if action.flag.startswith("-"):
            return f'Missing required argument "{",".join(f"[{_bare(each)}]" for each in missing)}"'
        what = {each.name: each.what or each.shown for each in self.arguments}
        return f"{action.name} needs {' and '.join(what.get(each, each) for each in missing)}"

    def _call(self, action: Action, given: Given) -> int:
        values = self._values(action, given)
        wanted: dict[str, Any] = {}
        for parameter in action.parameters:
            if (group := self.group(action, parameter)) is not None:
                wanted[parameter] = group(**{name: values[name.rstrip("_")] for name in group.__dataclass_fields__})
            elif parameter not in (CLUSTER, CLIENT):
                wanted[parameter] = values[parameter.rstrip("_")]
        if CLUSTER not in action.parameters and CLIENT not in action.parameters:
            return int(action.run(**wanted) or 0)
        from barnabas.cli._connection import options, run

        settings = (self.connect or options)(*(values[name.rstrip("_")] for name in self._reads_to_connect()))
        if CLIENT in action.parameters:
            return int(action.run(client=settings, **wanted) or 0)
        return int(run(settings, lambda cluster: action.run(cluster=cluster, **wanted)) or 0)

    def _values(self, action: Action, given: Given) -> dict[str, Any]:
        """Convert the values of the options and arguments that the action reads."""
        read = self._read_by(action)
        values: dict[str, Any] = {}
        for option in self.options:
            if option.parameter not in read or not option.is_read:
                continue
            values[option.parameter] = _value(option, texts_of(option, given))
        words = list(given.words)
        for each in self.arguments:
            if each.name not in read:
                continue
            if each.many:
                values[each.name] = tuple(convert(each, word) for word in words)
            else:
                values[each.name] = convert(each, words.pop(0)) if words else each.default
        return values


def texts_of(option: Option, given: Given) -> list[str]:
    """Return the values as they were typed, or the one of the environment."""
    in_environment = os.environ.get(option.env, "") if option.env else ""
    return given.texts.get(option.flag, [in_environment] if in_environment else [])


def looks_like_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not word[1:].replace(".", "", 1).isdigit()


def complete(flag: str, known: set[str]) -> str:
    """Return the flag that an abbreviation stands for; an ambiguous or unknown one is returned as it is."""
    if flag in known or not flag.startswith("--"):
        return flag
    candidates = [each for each in known if each.startswith(flag)]
    return candidates[0] if len(candidates) == 1 else flag


def _values(option: Option, rest: list[str], known: set[str]) -> Iterator[str]:
    """Take the values of an option off the remaining words."""
    is_alone = not rest or rest[0].partition("=")[0] in known
    if option.alone is not None and (is_alone or rest[0].startswith("--")):
        yield option.alone
        return
    if is_alone:
        raise WrongUse(f"option {option.flag!r} requires an argument")
    yield rest.pop(0)
    while option.rest and rest and not looks_like_option(rest[0]):
        yield rest.pop(0)


def _value(option: Option, texts: Sequence[str]) -> Any:
    if option.kind is bool:
        return texts[-1] == "yes" if texts else bool(option.off) or bool(option.default)
    if option.is_many:
        return tuple(convert(option, text) for text in texts) or option.default or ()
    if not texts and isinstance(option.default, str):
        texts = [option.default]
    return convert(option, texts[-1]) if texts else option.default


BOOTSTRAP: Final = Option(
    "--bootstrap-server",
    "The brokers to connect to first. Required.",
    metavar="HOST:PORT[,…]",
    env="BARNABAS_BOOTSTRAP_SERVER",
)
COMMAND_CONFIG: Final = Option("--command-config", "Properties file with settings of the client.", metavar="FILE")
#: How tools reach a cluster.
CONNECTION: Final = (BOOTSTRAP, COMMAND_CONFIG)
JSON: Final = Option("--json", "Print JSON instead of text.", bool)
