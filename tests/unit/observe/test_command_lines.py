"""S20: a word in a printed command is one argument, whatever its characters."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import typer
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.cli.app import app
from perdure.observe.command_lines import command_line

SOURCES = Path(perdure.__file__).parent
QUOTED = {"command_line", "own_command", "db_flag", "_db_flag", "quote"}


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_s20_each_word_is_one_argument(words: list[str]) -> None:
    flags = ["--db", "a b"]
    like_an_option = any(word.startswith("-") for word in words)
    expected = [*flags, "--", *words] if like_an_option else [*words, *flags]
    line = command_line("sessions watch", *words, flags=f" {shlex.join(flags)}")
    assert shlex.split(line) == ["perdure", "sessions", "watch", *expected]


def test_s20_word_that_begins_with_a_hyphen_is_no_option() -> None:
    assert command_line("sessions show", "--db=x", flags=" --db a") == "perdure sessions show --db a -- --db=x"


def test_s20_no_hint_in_the_code_has_an_unquoted_word() -> None:
    found = [
        f"{path.relative_to(SOURCES)}:{part.lineno}"
        for path in sorted(SOURCES.rglob("*.py"))
        for text in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(text, ast.JoinedStr)
        for part in words_of_commands(text)
        if not is_quoted(part.value)
    ]
    assert not found, "use command_line() or shlex.quote() for the words of a printed command"


def words_of_commands(text: ast.JoinedStr) -> Iterator[ast.FormattedValue]:
    """Yield the values that a text inserts after the name of one of our commands."""
    before, named = "", False
    for part in text.values:
        if isinstance(part, ast.FormattedValue):
            if named:
                yield part
            before += "perdure" if called(part.value) == "program" else "{}"
        else:
            before += str(part.value) if isinstance(part, ast.Constant) else ""
        named = named or bool(COMMANDS.search(before))


def is_quoted(value: ast.expr) -> bool:
    """A call of a function that quotes, or a variable that holds only such text."""
    return called(value) in QUOTED or (isinstance(value, ast.Name) and value.id in {"db", "again"})


def called(value: ast.expr) -> str:
    match value:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
        case _:
            return ""


def command_names() -> list[str]:
    names = [group.name for group in app.registered_groups]
    names += [one.name or (one.callback.__name__ if one.callback else "") for one in app.registered_commands]
    assert isinstance(app, typer.Typer)
    return [str(name) for name in names]


COMMANDS = re.compile(rf"\bperdure ({'|'.join(map(re.escape, command_names()))})\b")
