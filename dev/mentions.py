"""Names of the API and commands of the command line that prose mentions, and whether they exist."""

import ast
import inspect
import keyword
import re
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import typer.main

import perdure
import perdure.providers
import perdure.security
import perdure.testing
from dev.prose import MESSAGES, literals
from dev.renames import Function, called, parsed
from perdure.cli.app import app
from perdure.providers import ProviderContext
from perdure.runtime.models import ModelSources
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.schedules.schedules import ScheduleHandle
from perdure.runtime.triggers.subscriptions import SubscriptionHandle
from perdure.runtime.triggers.triggers import OccurrenceHandle
from perdure.store.sqlite.store import SqliteStore
from perdure.tools.decorator import ToolOptions
from perdure.values import DepsContext, InstructionsContext

NAME = re.compile(r"(?<![\w./])(?P<path>[A-Za-z_]\w*(?:\.[a-z_]\w*)*)(?P<opens>\()?")
KEYWORD = re.compile(r"(?:^|[(,])\s*(?P<name>[a-z_]\w*)=(?!=)")
LONE_KEYWORD = re.compile(r"(?<![\w.?&-])(?P<name>[a-z_]+)=(?=$|[,`]| and\b| or\b|\.\.\.|…|\"|True|False)")
WORD = re.compile(r"(?<!`)`(?P<name>[a-z]+(?:_[a-z]+)*)`(?!`)")
VERBS = re.compile(r"`perdure (?P<group>[a-z]+) (?P<verbs>[a-z-]+(?: \| [a-z-]+){2,})`")
COMMAND = re.compile(r"(?<![\w./:@-])perdure(?P<words>(?: +(?!-- )[\w\-.:/=<>\[\]{}…]+)+)")
CLOSED = re.compile(r"\(([^()]|\([^()]*\))*\)")

# What a short name stands for in our prose; a name that several classes share is one of them.
RECEIVERS: dict[str, tuple[type, ...]] = {
    "rt": (perdure.Runtime,),
    "runtime": (perdure.Runtime,),
    "Runtime": (perdure.Runtime,),
    "session": (perdure.Session,),
    "Session": (perdure.Session,),
    "ctx": (ProviderContext, perdure.ProcessContext, InstructionsContext, DepsContext),
    "ToolContext": (perdure.ToolContext,),
    "ProcessContext": (perdure.ProcessContext,),
    "handle": (ProcessHandle, perdure.TurnHandle, ScheduleHandle, SubscriptionHandle, OccurrenceHandle),
    "sent": (perdure.TurnHandle,),
    "TurnHandle": (perdure.TurnHandle,),
    "Agent": (perdure.Agent,),
}
FRONTS = (perdure, perdure.testing, perdure.providers, perdure.security)
CALLABLES = {name: getattr(front, name) for front in FRONTS for name in front.__all__}
CALLABLES |= {"ModelSources": ModelSources, "SqliteStore": SqliteStore}
# Words of docstrings that are names elsewhere: a pragma of SQLite, an argument that the model sees, a fixture.
QUOTED = {"query_only", "old_text", "bench"}


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module."""
    return tuple(ast.walk(parsed(text)))


@cache
def attributes_of_runtime() -> dict[str, type]:
    """Return the classes of the attributes that a runtime has from the start."""
    runtime = perdure.Runtime("memory://", worker=False)
    return {name: type(value) for name, value in vars(runtime).items() if not name.startswith("_")}


@cache
def members(owner: type) -> set[str]:
    """Return the public names of a class: methods, fields and attributes."""
    found = {*dir(owner), *getattr(owner, "__annotations__", {})}
    found |= {name for base in owner.__mro__ for name in getattr(base, "__annotations__", {})}
    ours = [base for base in owner.__mro__ if base.__module__.startswith("perdure")]
    found |= {name for base in ours for name in re.findall(r"\bself\.(\w+)\b", inspect.getsource(base))}
    return {name for name in found if not name.startswith("_")}


@cache
def class_of(owner: type, name: str) -> type | None:
    """Return the class of an attribute, as far as the code declares it."""
    if owner is perdure.Runtime and name in attributes_of_runtime():
        return attributes_of_runtime()[name]
    found = inspect.getattr_static(owner, name, None)
    if not isinstance(found, property) or found.fget is None:
        return None
    hint = typing.get_type_hints(found.fget, vars(import_module(found.fget.__module__))).get("return")
    return hint if isinstance(hint, type) and hint.__module__.startswith("perdure") else None


@cache
def keywords(target: object) -> set[str] | None:
    """Return the keywords that a function or class takes; None if it takes any, or has no signature."""
    if target is perdure.tool:  # its options are a TypedDict
        return set(ToolOptions.__annotations__)
    try:
        parameters = inspect.signature(typing.cast("typing.Callable[..., object]", target)).parameters.values()
    except (TypeError, ValueError):
        return None
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    return None if anything else {each.name for each in parameters if not each.name.startswith("_")}


@cache
def owners() -> list[type]:
    """Return the classes of the objects that an application holds."""
    found = {owner for group in RECEIVERS.values() for owner in group} | set(attributes_of_runtime().values())
    found |= {kind for owner in found for name in members(owner) if (kind := class_of(owner, name))}
    return sorted(found, key=lambda each: each.__qualname__)


@cache
def methods() -> dict[str, list[object]]:
    """Return the public methods of the objects that an application holds, by their name."""
    found: dict[str, list[object]] = {}
    for owner in owners():
        for name in members(owner):
            if inspect.isfunction(method := getattr(owner, name, None)):
                found.setdefault(name, []).append(method)
    return found


def accepted(targets: Iterable[object]) -> set[str] | None:
    """Return the keywords that at least one of the targets takes; None if one takes any."""
    each = [keywords(target) for target in targets]
    return None if None in each or not each else {name for taken in each if taken for name in taken}


def called_with(text: str, at: int) -> set[str]:
    """Return the keywords of the call whose parenthesis is at `at`, without those of calls in it."""
    call = CLOSED.match(text, at)
    if call is None:
        return set()
    inside = call.group()[1:-1]
    while (shorter := re.sub(r"\([^()]*\)|\"[^\"]*\"|'[^']*'", "", inside)) != inside:
        inside = shorter
    return {found["name"] for found in KEYWORD.finditer(inside)}


def unresolved_path(path: list[str]) -> tuple[str | None, list[object]]:
    """Return the first part of `rt.approvals.approve` that does not exist, and the functions that the path names."""
    holders, functions = RECEIVERS[path[0]], list[object]()
    for name in path[1:]:
        having = [owner for owner in holders if name in members(owner)]
        if not having:
            return name, []
        functions = [getattr(owner, name, None) for owner in having]
        holders = tuple(kind for owner in having if (kind := class_of(owner, name)))
        if not holders:
            break
    return None, [one for one in functions if inspect.isfunction(one)]


def unknown_names(text: str) -> Iterator[str]:
    """Yield the attributes and keywords in a text that our API does not have."""
    for found in NAME.finditer(text):
        path = found["path"].split(".")
        targets: list[object] = []
        if len(path) > 1 and path[0] in RECEIVERS:
            missing, targets = unresolved_path(path)
            if missing:
                yield found["path"]
        elif len(path) == 1 and path[0] in CALLABLES:
            targets = [CALLABLES[path[0]]]
        elif len(path) == 1:
            targets = methods().get(path[0], [])
        given = called_with(text, found.end() - 1) if found["opens"] else set[str]()
        taken = accepted(targets)
        if taken is not None and given - taken:
            yield f"{found['path']}({', '.join(f'{name}=' for name in sorted(given - taken))})"


@cache
def all_keywords() -> set[str]:
    """Return the keywords of all public functions and classes."""
    everything = [*CALLABLES.values(), *(one for group in methods().values() for one in group)]
    return {name for one in everything for name in keywords(one) or ()}


def unknown_keywords(text: str) -> Iterator[str]:
    """Yield the keywords, such as `say=`, that a text names apart from a call and that nothing public takes."""
    yield from (found.group() for found in LONE_KEYWORD.finditer(text) if found["name"] not in all_keywords())


@cache
def public_words() -> set[str]:
    """Return the words that a docstring may quote anywhere: public names, values and functions of the package."""
    found = {*all_keywords(), *CALLABLES, *QUOTED, *keyword.kwlist, *commands()}
    found |= {name for owner in owners() for name in members(owner)}
    for path in Path(inspect.getfile(perdure)).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        found |= {each.value for each in nodes(text) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        found |= {each.name for each in nodes(text) if isinstance(each, Function) and "_" in each.name}
    return found


def unknown_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the quoted words of docstrings that neither their module nor the public API has as a name or value."""
    quoted = [(line, found["name"]) for line, doc in docstrings(text) for found in WORD.finditer(doc)]
    known = set[str]()
    for each in nodes(text):
        match each:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.arg(arg=name):
                known.add(name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                known.add(name)
            case _:
                pass
    yield from ((line, name) for line, name in quoted if name not in known and name not in public_words())


@cache
def commands() -> dict[str, set[str]]:
    """Return the options of each command, by its words."""

    def below(command: object, words: str) -> Iterator[tuple[str, set[str]]]:
        options = {name for param in getattr(command, "params", ()) for name in (*param.opts, *param.secondary_opts)}
        yield words, {name for name in options if name.startswith("-")} | {"--help", "-h"}
        for name, each in getattr(command, "commands", {}).items():
            yield from below(each, f"{words} {name}".strip())

    return dict(below(typer.main.get_command(app), ""))


def unknown_commands(text: str) -> Iterator[str]:
    """Yield the commands in a text that do not exist, or have an option that does not exist."""
    for found in VERBS.finditer(text):
        listed = (f"{found['group']} {verb}" for verb in found["verbs"].split(" | "))
        yield from (f"perdure {command}" for command in listed if command not in commands())
    for found in COMMAND.finditer(text):
        words = found["words"].rstrip(".:").split()
        name = ""
        for word in words:
            if (longer := f"{name} {word}".strip()) not in commands():
                break
            name = longer
        options = {word.partition("=")[0].rstrip(".,:]") for word in words if word[0] == "-" != word}
        has_verbs = any(each.startswith(f"{name} ") for each in commands())
        following = words[len(name.split()) :][:1]
        unknown_verb = has_verbs and following and following[0][0] not in "-<{[.…" and following[0].islower()
        if unknown_verb or not options <= commands()[name]:
            yield found.group()


@cache
def docstrings(text: str) -> list[tuple[int, str]]:
    """Return the docstrings of a module."""
    documented = [each for each in nodes(text) if isinstance(each, ast.Module | ast.ClassDef | Function) and each.body]
    return [(each.body[0].lineno, doc) for each in documented if (doc := ast.get_docstring(each))]


@cache
def error_texts(text: str) -> list[tuple[int, str]]:
    """Return the messages, reasons and hints of the errors of a module."""
    found: list[tuple[int, str]] = []
    for node in nodes(text):
        if isinstance(node, ast.Call):
            message = node.args[MESSAGES[called(node.func)] :][:1] if called(node.func) in MESSAGES else []
            reasons = [given.value for given in node.keywords if given.arg in ("because", "hint", "message")]
            found += [one for value in [*message, *reasons] for one in literals(value)]
    return found
