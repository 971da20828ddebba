"""Names of the package: old ones that are still defined (`dev/renames.tsv`), and classes that share a name."""

import ast
import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


@cache
def parsed(text: str) -> ast.Module:
    """Parse a module once."""
    return ast.parse(text)


def called(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@dataclass(frozen=True, slots=True)
class Definition:
    """A place in a module that defines a name."""

    kind: str
    name: str
    line: int
    scope: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rename:
    """A row of the table of renames."""

    kind: str
    where: str
    old: tuple[str, ...]
    new: str

    @staticmethod
    def of(row: dict[str, str]) -> "Rename":
        names = re.sub(r"\([^)]*\)", "", row["old"]).split(",")
        return Rename(row["kind"], row["where"], tuple(name.strip() for name in names), row["new"])


# The kinds of definitions that a row of the table is about.
DEFINES = {
    "class": ("class",),
    "method": ("function", "name"),
    "function": ("function", "name"),
    "field": ("name", "function", "parameter"),
    "constant": ("name",),
    "property": ("name", "function"),
    "parameter": ("parameter",),
    "fixture": ("fixture",),
    "literal": ("string", "class", "name"),
    "record tag": ("string",),
    "event": ("string", "name"),
    "word": ("string", "class", "function", "name", "parameter"),
}
SQL = {
    "table": r"CREATE TABLE (?:\w+\.)?{name}\b",
    "index": r"CREATE (?:UNIQUE )?INDEX {name}\b",
    "sequence": r"CREATE SEQUENCE {name}\b",
    "column": r"^    {name} ",
}


def is_fixture(node: ast.AST) -> bool:
    """Return whether a function is a fixture of pytest."""
    decorators = node.decorator_list if isinstance(node, Function) else []
    return any(called(d.func if isinstance(d, ast.Call) else d) == "fixture" for d in decorators)


def definitions(tree: ast.AST, scope: tuple[str, ...] = (), in_function: bool = False) -> Iterator[Definition]:
    """Yield every class, function, parameter, string, and name of a module, of a class or of `self`."""
    for node in ast.iter_child_nodes(tree):
        inner, inside = scope, in_function
        match node:
            case ast.ClassDef(name=name):
                yield Definition("class", name, node.lineno, scope)
                inner, inside = (*scope, name), False
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Definition("fixture" if is_fixture(node) else "function", name, node.lineno, scope)
                inner, inside = (*scope, name), True
            case ast.arg(arg=name):
                yield Definition("parameter", name, node.lineno, scope)
            case ast.Name(id=name, ctx=ast.Store()) if not in_function:
                yield Definition("name", name, node.lineno, scope)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield Definition("name", name, node.lineno, scope)
            case ast.Constant(value=str(text)):
                yield Definition("string", text, node.lineno, scope)
            case _:
                pass
        yield from definitions(node, inner, inside)


@cache
def defined(text: str) -> list[Definition]:
    """List the definitions of a module once."""
    return list(definitions(parsed(text)))


def braced(path: str) -> list[str]:
    """Expand the braces of a path, as a shell does."""
    match = re.search(r"\{([^}]*)\}", path)
    if not match:
        return [path]
    return [p for name in match[1].split(",") for p in braced(path[: match.start()] + name + path[match.end() :])]


def moved(path: str, rows: list[Rename]) -> str:
    """Return where a file is after the renames of modules."""
    for row in rows:
        if row.kind == "module" and row.where == path:
            return path.removesuffix(f"{row.old[0]}.py") + f"{row.new}.py"
    return path


def places(where: str) -> list[str]:
    """Split the column `where` at its commas, and expand braces."""
    return [path for part in re.split(r",\s*(?![^{]*\})", where) if part for path in braced(part)]


def selected(root: Path, row: Rename, rows: list[Rename]) -> tuple[set[Path], set[str]]:
    """Return the files that a row is about, and the classes or functions, if it names any."""
    package = root / ("tests" if row.kind == "fixture" else "src/perdure")
    everything = set(package.rglob("*.py"))
    files, scopes = set[Path](), set[str]()
    for place in places(row.where):
        folder = place.split(" ")[0]
        if place.endswith(".py"):
            # A file that is gone went to an unknown place: its old names must be nowhere.
            files |= {package / place, package / moved(place, rows)} & everything or everything
        elif inside := {path for path in everything if folder in path.relative_to(root).parts[:-1]}:
            files |= inside
        else:
            scopes.add(place.split(".")[-1].lstrip("@"))
    return files or everything, scopes


def named(row: Rename, old: str, definition: Definition) -> bool:
    """Return whether a definition has an old name of a row."""
    if definition.kind not in DEFINES[row.kind]:
        return False
    words = definition.name.lower().split("_") if row.kind == "word" else [definition.name]
    return old in words


def still_defined(root: Path, row: Rename, rows: list[Rename]) -> Iterator[Finding]:
    """Yield the places in Python that define an old name of a row."""
    files, scopes = selected(root, row, rows)
    for old in row.old:
        owner, _, name = ("", "", old) if row.kind == "event" else old.rpartition(".")
        within = scopes | ({owner, row.new.rpartition(".")[0]} if owner else set())
        for path in sorted(files):
            for d in defined(path.read_text("utf-8")):
                if named(row, name, d) and (not within or within & set(d.scope)):
                    yield Finding(str(path.relative_to(root)), d.line, "rename", f"{row.kind} {old} → {row.new}")


def still_in_schema(root: Path, row: Rename, rows: list[Rename]) -> Iterator[Finding]:
    """Yield the lines of the schemas that define an old name of a row."""
    tables = {row.where, *(table.new for table in rows if table.kind == "table" and row.where in table.old)}
    for path in sorted(root.glob("src/perdure/store/*/schema.sql")):
        table = ""
        for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
            if opened := re.match(r"CREATE TABLE (?:\w+\.)?(\w+)", line):
                table = opened[1]
            if row.kind == "column" and table not in tables:
                continue
            for old in row.old:
                if re.search(SQL[row.kind].format(name=re.escape(old)), line):
                    yield Finding(str(path.relative_to(root)), number, "rename", f"{row.kind} {old} → {row.new}")


def printed(root: Path, row: Rename) -> Iterator[Finding]:
    """Yield the strings of the command line with an old name that is no English word."""
    for old in row.old:
        if not re.search(r"[_.]|[a-z][A-Z]", old) and row.kind not in ("word", "table", "literal"):
            continue
        for path in sorted(root.glob("src/perdure/cli/**/*.py")):
            for d in defined(path.read_text("utf-8")):
                if d.kind == "string" and re.search(rf"(?<![\w.]){re.escape(old)}(?!\w)", d.name):
                    yield Finding(str(path.relative_to(root)), d.line, "rename", f"prints {old} → {row.new}")


def unrenamed(root: Path, row: Rename, rows: list[Rename]) -> list[Finding]:
    """List the places where an old name of a row is left."""
    if row.kind == "module":
        path = f"src/perdure/{row.where}"
        found = [Finding(path, 1, "rename", f"module {row.old[0]} → {row.new}")] if (root / path).exists() else []
    else:
        found = list((still_in_schema if row.kind in SQL else still_defined)(root, row, rows))
    return [*found, *printed(root, row)]


def renames(root: Path) -> list[Rename]:
    """Read the table of renames; an older checkout has none."""
    path = root / "dev/renames.tsv"
    rows = path.read_text("utf-8").splitlines() if path.exists() else []
    return [Rename.of(row) for row in csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE)]


def homonyms(root: Path) -> dict[str, list[Finding]]:
    """Find the class names that two or more modules of the package define."""
    found = defaultdict[str, dict[str, Finding]](dict)
    for path in sorted(root.glob("src/perdure/**/*.py")):
        name = str(path.relative_to(root))
        for d in defined(path.read_text("utf-8")):
            if d.kind == "class":
                found[d.name].setdefault(name, Finding(name, d.line, "class", f"{d.name} is defined more than once"))
    return {name: list(places.values()) for name, places in found.items() if len(places) > 1}
