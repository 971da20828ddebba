"""Print the ten longest functions and files, as a hint for review: is each of them one idea?"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    where: str
    lines: int
    statements: int


def functions(tree: ast.AST, where: str, prefix: str = "") -> Iterator[Function]:
    """Yield every function below `tree` under its dotted name. A nested one counts for itself and for its parent."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions(node, where, prefix)
            continue
        name = prefix + node.name
        if not isinstance(node, ast.ClassDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            statements = sum(isinstance(child, ast.stmt) for child in ast.walk(node)) - 1
            yield Function(name, f"{where}:{node.lineno}", lines, statements)
        yield from functions(node, where, f"{name}.")


def main(arguments: list[str]) -> None:
    folders = [ROOT / argument for argument in arguments] or [ROOT / "src"]
    texts = {path: path.read_text("utf-8") for folder in folders for path in sorted(folder.rglob("*.py"))}
    found = [f for path, text in texts.items() for f in functions(ast.parse(text), str(path.relative_to(ROOT)))]
    print("lines  statements  function (aim: 40 statements)")
    for f in sorted(found, key=lambda f: f.lines, reverse=True)[:SHOWN]:
        print(f"{f.lines:5}  {f.statements:10}  {f.name}  {f.where}")
    print("\nlines  file (aim: 400)")
    lengths = sorted(((len(text.splitlines()), path) for path, text in texts.items()), reverse=True)
    for lines, path in lengths[:SHOWN]:
        print(f"{lines:5}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
