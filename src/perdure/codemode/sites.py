"""Static analysis of a program's text: which calls are awaited.

`x = price(1)` needs a value, and `asyncio.gather(price(1), price(2))` needs two awaitables, but the interpreter sees
equal calls. It reports an await too late. So the analysis follows values from each `await` back to their calls, through
variables, containers, loops and functions. A call that is not found is answered with its value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

Site: TypeAlias = tuple[int, int]
"""A call: start and end of its text, in bytes."""

EVERY: Site = (-1, -1)
"""Stands for all calls of a text."""

MAX_READ_CHARS = 32_768
"""A longer text is not parsed, to limit the worker's time. If it gathers, all its calls count as awaited."""

_PASSES = 10
"""Maximum passes over a text: the longest chain of variables between a call and its `await`, in the worst order."""

_GATHERS = frozenset({"gather", "run", "wait_for", "create_task", "ensure_future", "shield", "wait", "as_completed"})
_PUTS = frozenset({"append", "extend", "insert", "add", "setdefault", "update", "appendleft"})

_Def: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Scope: TypeAlias = "_Def | None"
_Name: TypeAlias = tuple[_Scope, str]


class Texts(msgspec.Struct, frozen=True):
    """The programs given to an interpreter: their number, and their awaited calls.

    Functions stay for later programs, so a call may be in the text of an earlier one.
    """

    given: int = 0
    awaited: dict[str, list[Site]] = msgspec.field(default_factory=dict[str, list[Site]])

    def and_(self, code: str) -> Texts:
        """Return the texts with one more program. The interpreter does not count empty ones."""
        if all(not line.strip() or line.lstrip().startswith("#") for line in code.splitlines()):
            return self
        found = sorted(awaited_calls(code))
        name = f"<python-input-{self.given}>"
        return Texts(self.given + 1, {**self.awaited, name: found} if found else self.awaited)

    def awaits(self, text: str, call: Site) -> bool:
        """Return True if the value of a call is awaited."""
        found = self.awaited.get(text, ())
        return call in found or EVERY in found


def awaited_calls(code: str) -> frozenset[Site]:
    """Return the calls of a program whose values are awaited.

    If a text cannot be parsed here and uses `gather`, all its calls count as awaited.
    """
    if "await" not in code and "asyncio" not in code:
        return frozenset()
    try:
        if len(code) <= MAX_READ_CHARS:
            return frozenset(_SiteScan(ast.parse(code), code).sites())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass  # the interpreter reports the error, if there is one
    return frozenset({EVERY}) if re.search(r"\bgather\b", code) else frozenset()


class _SiteScan:
    """The analysis of one text."""

    def __init__(self, tree: ast.Module, code: str) -> None:
        self._lines = _line_starts(code)
        self._scope_of: dict[ast.AST, _Scope] = {}
        self._bound: dict[_Scope, set[str]] = {None: set()}
        self._gathers = set(_GATHERS)
        self._awaited: set[ast.expr] = set()
        self._names: set[_Name] = set()
        self._functions: set[str] = set()
        self._awaiting_arguments: set[str] = set()
        self._place(tree, None)

    def sites(self) -> Iterator[Site]:
        """Yield the awaited calls."""
        known = -1
        for _ in range(_PASSES):
            if known == (known := len(self._awaited) + len(self._names) + len(self._functions)):
                break
            for node in self._scope_of:
                self._look(node)
        return (self._site(node) for node in self._awaited if isinstance(node, ast.Call))

    # --- names

    def _place(self, node: ast.AST, scope: _Scope) -> None:
        """Determine the enclosing function of every node, and the names that each function binds."""
        todo: list[tuple[ast.AST, _Scope]] = [(node, scope)]
        while todo:
            one, inside = todo.pop()
            self._scope_of[one] = inside
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                self._bound[inside].add(one.id)
            if isinstance(one, ast.ImportFrom):
                self._gathers |= {name.asname or name.name for name in one.names if name.name in _GATHERS}
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = one
                self._bound[one] = set(_parameters(one))
            todo.extend((child, inside) for child in ast.iter_child_nodes(one))

    def _named(self, node: ast.AST, name: str) -> _Name:
        scope = self._scope_of[node]
        return (scope, name) if name in self._bound[scope] else (None, name)

    def _holds(self, target: ast.AST) -> bool:
        """Return True if the target contains an awaited variable."""
        return any(isinstance(one, ast.Name) and self._named(one, one.id) in self._names for one in ast.walk(target))

    # --- awaits and the values they receive

    def _look(self, node: ast.AST) -> None:
        match node:
            case ast.Await(value=value):
                self._comes(value)
            case ast.Call(func=func, args=args) if _last_name(func) in self._gathers:
                self._all(args)
            case ast.Call(func=ast.Attribute(value=kept, attr=attr), args=args) if attr in _PUTS and self._holds(kept):
                self._all(args)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in self._awaiting_arguments:
                self._all([*args, *(keyword.value for keyword in keywords)])
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as made) if name in self._functions:
                self._comes(made)
            case ast.Assign(targets=targets, value=value) if any(map(self._holds, targets)):
                self._comes(value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) if self._holds(target):
                self._comes(value)
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value) if self._holds(
                target
            ):
                self._comes(value)
            case ast.For(target=target, iter=iterable) | ast.comprehension(target=target, iter=iterable) if self._holds(
                target
            ):
                self._comes(iterable)
            case ast.Return(value=ast.expr() as value):
                inside = self._scope_of[node]
                if isinstance(inside, ast.FunctionDef) and inside.name in self._functions:
                    self._comes(value)
            case _:
                pass

    def _all(self, values: Sequence[ast.expr]) -> None:
        for value in values:
            self._comes(value)

    def _comes(self, value: ast.expr) -> None:
        """Mark a value, and the values it contains, as awaited."""
        if value in self._awaited:
            return
        self._awaited.add(value)
        match value:
            case ast.Name(id=name):
                self._names.add(named := self._named(value, name))
                self._functions.add(name)
                if named[0] is not None and name in _parameters(named[0]):
                    self._awaiting_arguments.add(named[0].name)
            case ast.Call(func=ast.Name(id=name), args=args):
                self._functions.add(name)
                if name in ("list", "tuple", "set", "sorted", "reversed", "map", "filter", "zip", "enumerate", "iter"):
                    self._all(args)
            case ast.Call(func=ast.Attribute(value=kept)) | ast.Subscript(value=kept) | ast.Starred(value=kept):
                self._comes(kept)
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                self._all(elements)
            case ast.Dict(values=values) | ast.BoolOp(values=values):
                self._all(values)
            case ast.IfExp(body=body, orelse=orelse):
                self._all((body, orelse))
            case ast.BinOp(left=left, right=right):
                self._all((left, right))
            case ast.NamedExpr(target=target, value=inner):
                self._all((target, inner))
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                self._comes(element)
            case ast.DictComp(value=inner) | ast.Lambda(body=inner):
                self._comes(inner)
            case _:
                pass

    def _site(self, node: ast.Call) -> Site:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )


def _parameters(function: _Def) -> list[str]:
    args = function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    return [one.arg for one in named]


def _last_name(func: ast.expr) -> str:
    match func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _line_starts(code: str) -> list[int]:
    starts = [0]
    for end in re.finditer(rb"\r\n|\r|\n", code.encode()):
        starts.append(end.end())
    return starts
