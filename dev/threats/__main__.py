"""Write THREATS.md from the ids, the guards and the tests; with `--check`, fail if the page is stale."""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
PAGE = "THREATS.md"
GUARD = re.compile(r"# threat:(.*)$", re.MULTILINE)
ID = re.compile(r"S[1-9]\d*|T-[A-Z]+-\d\d")
NAMED = re.compile(r"(s0?[1-9]\d*|t_[a-z]+_\d\d)_")
"""An id at the beginning of a test's name, after `test_` or after another id."""


class Wrong(Exception):
    """The ids, the guards and the tests do not fit together."""


@dataclass(slots=True)
class Threat:
    id: str
    area: str
    attack: str
    open: str = ""
    accepted: str = ""
    guards: set[str] = field(default_factory=set[str])
    tests: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def status(self) -> str:
        if self.accepted:
            return f"ACCEPTED: {self.accepted}"
        if self.open:
            return f"OPEN: {self.open}"
        missing = [what for what, found in (("guard", self.guards), ("test", self.tests)) if not found]
        return f"OPEN: no {' and no '.join(missing)}" if missing else "MITIGATED"

    @property
    def row(self) -> str:
        guards = "<br>".join(f"`{guard}`" for guard in sorted(self.guards)) or "-"
        tests = "<br>".join(f"`{path}` ({count})" for path, count in sorted(self.tests.items())) or "-"
        return f"| {self.id} | {self.area} | {self.attack} | {guards} | {tests} | {self.status} |"


def listed(text: str) -> dict[str, Threat]:
    """Return the threats of the list.

    Raises:
        Wrong: a row lacks a field, has an unknown one, or is both open and accepted.
    """
    found: dict[str, Threat] = {}
    for id, row in tomllib.loads(text).items():
        if not ID.fullmatch(id) or not {"area", "attack"} <= row.keys() <= {"area", "attack", "open", "accepted"}:
            raise Wrong(f"{id}: an id with area and attack, and at most one of open and accepted")
        if len({"open", "accepted"} & row.keys()) > 1 or not all(str(value).strip() for value in row.values()):
            raise Wrong(f"{id}: a field is empty, or the threat is open and accepted")
        found[id] = Threat(id, **row)
    return found


def ids_of_guards(text: str) -> list[str]:
    """Return the ids that the comments of a source file name.

    Raises:
        Wrong: a comment names something else.
    """
    found: list[str] = []
    for comment in GUARD.findall(text):
        for name in str(comment).split(","):
            if not ID.fullmatch(name.strip()):
                raise Wrong(f"`# threat:{comment}` names {name.strip()!r}, which is not an id")
            found.append(name.strip())
    return found


def ids_of_tests(text: str) -> list[str]:
    """Return the ids that the names of a test file's tests begin with."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            place = len("test_")
            while match := NAMED.match(node.name, place):
                found.append(_id(match[1]))
                place = match.end()
    return found


def _id(name: str) -> str:
    return f"S{int(name[1:])}" if name[0] == "s" else name.upper().replace("_", "-")


def filled(threats: Mapping[str, Threat], sources: Mapping[str, str], tests: Mapping[str, str]) -> None:
    """Enter the guards and tests into the threats.

    Raises:
        Wrong: a guard or a test names an unknown id.
    """
    for path, text in sources.items():
        for id in ids_of_guards(text):
            _known(threats, id, path).guards.add(path)
    for path, text in tests.items():
        for id in ids_of_tests(text):
            threat = _known(threats, id, path)
            threat.tests[path] = threat.tests.get(path, 0) + 1


def _known(threats: Mapping[str, Threat], id: str, path: str) -> Threat:
    if id not in threats:
        raise Wrong(f"{path} names {id}, which dev/threats/ids.toml does not list")
    return threats[id]


def page(template: str, threats: Iterable[Threat]) -> str:
    """Return the page.

    Raises:
        Wrong: the trust boundaries name an unknown id.
    """
    rows = list(threats)
    unknown = set(ID.findall(template)) - {threat.id for threat in rows}
    if unknown:
        raise Wrong(f"the template names {', '.join(sorted(unknown))}, which dev/threats/ids.toml does not list")
    head = "| Id | Area | Attack | Guard | Tests | Status |\n|---|---|---|---|---|---|"
    return template.replace("{table}", "\n".join([head, *(threat.row for threat in rows)]))


def generated(root: Path) -> str:
    """Return the page of a repository."""
    threats = listed((HERE / "ids.toml").read_text("utf-8"))
    sources, tests = (_texts(root, folder) for folder in ("src", "tests"))
    filled(threats, sources, tests)
    return page((HERE / "page.md").read_text("utf-8"), threats.values())


def _texts(root: Path, folder: str) -> dict[str, str]:
    paths = sorted((root / folder).rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in paths}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is stale")
    check = bool(parser.parse_args(arguments).check)
    try:
        new = generated(ROOT)
    except Wrong as problem:
        print(f"threats: {problem}", file=sys.stderr)
        return 1
    path = ROOT / PAGE
    old = path.read_text("utf-8") if path.exists() else ""
    if check and new != old:
        print(f"threats: {PAGE} is stale; run: make threats", file=sys.stderr)
        return 1
    if new != old:
        path.write_text(new, "utf-8")
    counts = {word: len(re.findall(rf"\| {word.upper()}\b", new)) for word in ("mitigated", "open", "accepted")}
    print("threats: " + ", ".join(f"{number} {word}" for word, number in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
