"""Checks of the project's English: sentences that break a rule are counted, and no count may rise."""

import argparse
import ast
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that a script finds its neighbour

from dev.renames import Finding, Function, called, homonyms, parsed, renames, unrenamed

PERSON = re.compile(r"\b(who|whoever|whom|nobody|somebody|anybody|everybody)\b", re.I)
LEADING = re.compile(
    r"^(It|Its|They|That|Those|These|This one|Who|Whoever|Whose|What|Whatever|Which|Nobody|Somebody)\b"
)
NEGATED = re.compile(r"\bis (no|none|nothing)\b(?! longer)")
PRIVATE = re.compile(
    r"\b(grave|veil|lounge|baton|vigil|farewell|nap|crowd|seat|patience|hurry|stir|poke|nudge)s?\b", re.I
)
SUBJECT = re.compile(r"^(?!.{73})[A-Z][a-z]+ .*[^.]$")
LONG = 25
LONG_NAME = 12
IDS = re.compile(r"^((s\d+|d\d+|t [a-z]+ \d\d) )+", re.I)
"""The ids of findings and threats with which the name of a test begins. They are not words."""

CODE = re.compile(r"(`+)(?:(?!\n\n).)+?\1", re.S)
LINK = re.compile(r"\]\([^)\s]*\)")
END = re.compile(r"[.!?][\"')\]*_]*\s+(?=[\"'(\[*_]*[A-Z`])")
SKIPPED = re.compile(r"\s*(#|\||<!--|\[[^\]]+\]:\s)")
ITEM = re.compile(r"^\s*(>\s*)?([-*+]|\d+\.)\s+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of one kind of text, with inline code hidden in `plain`."""

    path: str
    line: int
    text: str
    plain: str


def hidden(match: re.Match[str]) -> str:
    """Replace inline code by one word of the same length."""
    return "`" + "X" * (len(match.group()) - 2) + "`"


def sentences(path: str, line: int, text: str) -> Iterator[Sentence]:
    """Split a paragraph that starts at `line` into sentences."""
    plain = LINK.sub(lambda match: "]" + "X" * (len(match.group()) - 1), CODE.sub(hidden, text))
    start = 0
    for end in [*(match.end() for match in END.finditer(plain)), len(plain)]:
        if re.search(r"\w", plain[start:end]):
            shown = " ".join(text[start:end].split())
            yield Sentence(path, line + text.count("\n", 0, start), shown, " ".join(plain[start:end].split()))
        start = end


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs and list items of a Markdown text without headings, tables and code blocks."""
    block: list[str] = []
    first = 1
    fence = ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        skipped = bool(fence or mark or SKIPPED.match(line) or not line.strip())
        if block and (skipped or ITEM.match(line)):
            yield first, "\n".join(block)
            block = []
        if mark and (not fence or line.strip() == fence):
            fence = "" if fence else mark.group(1)
        if not skipped:
            first = first if block else number
            block.append(ITEM.sub("", line) if not block else line.lstrip("> "))


def markdown(path: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown text."""
    for line, paragraph in paragraphs(text):
        yield from sentences(path, line, paragraph)


def docstrings(path: str, text: str) -> Iterator[Sentence]:
    """Yield the first sentence of each docstring of a module."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (doc := ast.get_docstring(node)):
            yield from islice(sentences(path, node.body[0].lineno, doc.split("\n\n")[0]), 1)


def literals(node: ast.expr) -> Iterator[tuple[int, str]]:
    """Yield the texts that an expression can evaluate to, placeholders as one word."""
    match node:
        case ast.Constant(value=str(text)):
            yield node.lineno, text
        case ast.JoinedStr(values=parts):
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "{…}" for p in parts)
        case ast.IfExp(body=one, orelse=other):
            yield from literals(one)
            yield from literals(other)
        case ast.BoolOp(values=values):
            for value in values:
                yield from literals(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from literals(left)
            yield from literals(right)
        case _:
            pass


# The place of the message in the arguments of an error.
MESSAGES = {"Error": 1, "ToolError": 0}


def errors(path: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of messages, reasons and hints of errors."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Call):
            message = node.args[MESSAGES[called(node.func)] :][:1] if called(node.func) in MESSAGES else []
            reasons = [keyword.value for keyword in node.keywords if keyword.arg in ("because", "hint", "message")]
            for line, words in (found for value in [*message, *reasons] for found in literals(value)):
                yield from sentences(path, line, words)


def is_command(node: ast.AST) -> bool:
    """Return whether a function is a command or a callback of the command line."""
    return isinstance(node, Function) and any(
        isinstance(decorator, ast.Call) and called(decorator.func) in ("command", "callback")
        for decorator in node.decorator_list
    )


def command_help(path: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of help texts and of the docstrings of commands."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, Function) and is_command(node):
            for line, paragraph in paragraphs(ast.get_docstring(node) or ""):
                yield from sentences(path, node.body[0].lineno + line - 1, paragraph)
        if isinstance(node, ast.keyword) and node.arg in ("help", "short_help", "epilog"):
            for line, words in literals(node.value):
                yield from sentences(path, line, words)


def test_names(path: str, text: str) -> Iterator[Sentence]:
    """Yield the name of each test as a sentence."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, Function) and node.name.startswith("test_"):
            yield Sentence(path, node.lineno, node.name, node.name.removeprefix("test_").replace("_", " "))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of text: its files, its sentences and the rules that apply."""

    name: str
    files: tuple[str, ...]
    read: Callable[[str, str], Iterator[Sentence]]
    rules: tuple[str, ...]
    # The highest share of sentences, in per cent, that may break `person`, `leading` and `long`.
    target: tuple[float, float, float]


COMMON = ("person", "leading", "long")
ADRS = "docs/contributing/adr/"
# A title is a decision: "Store secrets as …". Most others begin with one of these words or with a plural, a past tense
# or a gerund, or have an auxiliary verb within four words.
NO_VERB = re.compile(
    r"(the|an?|it|its|this|that|these|those|who|whoever|what|whatever|which|when|where|how|why|one|all|each|every|no|did"
    r"|do|does|is|are|on|in|of|at|by|for|from|to|with|across|between|after|before|only|nobody|somebody)\b"
    r"|\w*[^s\W]s\b|\w{3,}ed\b|\w{3,}ing\b|\S+( \S+){0,2} (is|are|was|were|has|have|must|can|may)\b",
    re.I,
)
KINDS = (
    Kind("docstrings", ("src/perdure/**/*.py",), docstrings, (*COMMON, "private"), (0.5, 1, 1)),
    Kind("docs", ("docs/**/*.md",), markdown, (*COMMON, "private"), (0.5, 1, 5)),
    Kind("readme", ("README.md",), markdown, COMMON, (0, 0, 5)),
    Kind("adr", (ADRS + "*.md",), markdown, COMMON, (0.5, 1, 10)),
    Kind("guides", ("ARCHITECTURE.md", "CONTEXT.md", "AGENTS.md"), markdown, COMMON, (0.5, 1, 10)),
    Kind("changes", ("changes/*.md", "CHANGELOG.md"), markdown, COMMON, (0, 0, 10)),
    Kind("errors", ("src/perdure/**/*.py",), errors, (*COMMON, "negated", "private"), (0, 0, 0)),
    Kind("help", ("src/perdure/cli/**/*.py",), command_help, COMMON, (0, 0, 0)),
    Kind("tests", ("tests/**/*.py", "src/perdure/testing/laws/**/*.py"), test_names, COMMON, (0, 0, 5)),
)


def broken(kind: Kind, sentence: Sentence) -> Iterator[str]:
    """Yield the rules that a sentence breaks."""
    plain = sentence.plain.lstrip("*_\"'([")
    first = plain[:1].upper() + plain[1:] if kind.name in ("errors", "tests") else plain
    found = {
        "person": PERSON.search(plain),
        "leading": LEADING.search(first),
        "long": len(IDS.sub("", plain).split()) > LONG_NAME if kind.name == "tests" else len(plain.split()) > LONG,
        "negated": NEGATED.search(plain),
        "private": PRIVATE.search(plain),
    }
    yield from (rule for rule in kind.rules if found[rule])


def read_kind(root: Path, kind: Kind) -> list[Sentence]:
    """Read all sentences of a kind of text."""
    files = sorted({path for pattern in kind.files for path in root.glob(pattern)})
    named = [(path.relative_to(root).as_posix(), path) for path in files]
    kept = [(name, path) for name, path in named if kind.name != "docs" or not name.startswith(ADRS)]
    return [s for name, path in kept for s in kind.read(name, path.read_text("utf-8"))]


def titles(root: Path) -> Iterator[Finding]:
    """Yield the titles of decision records that do not begin with a verb."""
    for path in sorted(root.glob(ADRS + "*.md")):
        title = path.read_text("utf-8").partition("\n")[0].lstrip("# ")
        if NO_VERB.match(title):
            yield Finding(path.relative_to(root).as_posix(), 1, "title", title)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything found in a checkout, and how much of each text and rule."""

    findings: list[Finding]
    sentences: dict[str, int]
    counts: dict[str, dict[str, int]]


def report(root: Path) -> Report:
    """Read a checkout and count what breaks a rule."""
    result = Report([], {}, {})
    for kind in KINDS:
        found = read_kind(root, kind)
        result.sentences[kind.name] = len(found)
        result.counts[kind.name] = dict.fromkeys(kind.rules, 0)
        for s in found:
            for rule in broken(kind, s):
                result.counts[kind.name][rule] += 1
                result.findings.append(Finding(s.path, s.line, rule, s.text))
    rows = renames(root)
    kept = [found for row in rows if (found := unrenamed(root, row, rows))]
    shared = homonyms(root)
    bad_titles = list(titles(root))
    result.counts["names"] = {"class": len(shared), "rename": len(kept), "title": len(bad_titles)}
    result.findings.extend([*bad_titles, *(f for found in [*shared.values(), *kept] for f in found)])
    return result


def risen(known: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> list[str]:
    """Name the counts that are higher than the known ones; a count that is not known is 0."""
    return [
        f"{text}: {rule} rose from {known.get(text, {}).get(rule, 0)} to {count}"
        for text, rules in now.items()
        for rule, count in rules.items()
        if count > known.get(text, {}).get(rule, 0)
    ]


def missed(found: Report) -> list[str]:
    """Name the targets that are not reached. Private words have none: the glossary allows some."""
    result: list[str] = []
    for kind in KINDS:
        for rule, target in zip(COMMON, kind.target, strict=True):
            count, size = found.counts[kind.name][rule], found.sentences[kind.name]
            if 100 * count > target * size:
                result.append(f"{kind.name}: {rule} is {100 * count / size:.1f} %, the target {target:g} %")
    zero = [("errors", "negated"), *(("names", rule) for rule in found.counts["names"])]
    counted = [(text, rule, found.counts[text][rule]) for text, rule in zero]
    return [*result, *(f"{text}: {rule} is {count}, the target 0" for text, rule, count in counted if count)]


def table(found: Report) -> Iterator[str]:
    """Yield the lines of the table that `make prose` prints."""
    yield f"{'text':11}{'sentences':>10}{'person':>8}{'leading':>8}{'long':>6}{'negated':>8}{'private':>8}  target"
    for kind in KINDS:
        cells = {rule: str(count) for rule, count in found.counts[kind.name].items()}
        target = " / ".join(f"{share:g}" for share in kind.target)
        yield f"{kind.name:11}{found.sentences[kind.name]:>10}{cells['person']:>8}{cells['leading']:>8}" + (
            f"{cells['long']:>6}{cells.get('negated', ''):>8}{cells.get('private', ''):>8}  {target} %"
        )
    names = found.counts["names"]
    yield f"class names of several modules: {names['class']}; rows of dev/renames.tsv left: {names['rename']}; " + (
        f"titles of decisions without a verb: {names['title']}"
    )


def subject_problems(message: str) -> list[str]:
    """Name what is wrong with the subject of a commit."""
    subject = message.partition("\n")[0]
    problems = {
        "at most 72 characters, a capital first, no full stop": not SUBJECT.match(subject),
        "its subject is a thing, not who or nobody": bool(PERSON.search(subject)),
        "an imperative verb first, no pronoun": bool(LEADING.match(subject)),
    }
    return [problem for problem, wrong in problems.items() if wrong]


def checkout() -> Path:
    """Return the root of the git checkout of the current directory."""
    command = ["git", "rev-parse", "--show-toplevel"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def listed(root: Path, found: Report, paths: list[str]) -> list[Finding]:
    """List the findings in the files and folders named, or in all."""
    wanted = [Path(path).resolve() for path in paths] or [root]
    return [f for f in found.findings if any((root / f.path).is_relative_to(path) for path in wanted)]


def judge(found: Report, path: Path, update: bool) -> list[str]:
    """Compare with the numbers at `path`, or write them there."""
    if update:
        path.write_text(json.dumps(found.counts, indent=2) + "\n", "utf-8")
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    problems = risen(known, found.counts)
    if problems:
        return [*problems, "list the sentences with: python3 dev/prose.py --list [PATH...]"]
    if risen(found.counts, known):
        print("fewer than before: lower the numbers with: make prose ARGS=--update")
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", nargs="*", metavar="PATH", help="print the findings, of some files or of all")
    parser.add_argument("--targets", action="store_true", help="fail if a target is missed")
    parser.add_argument("--update", action="store_true", help="write the numbers to dev/prose.json")
    parser.add_argument("--subject", metavar="FILE", help="check the subject of the commit message in a file")
    options = parser.parse_args()
    if options.subject:
        problems = subject_problems(Path(options.subject).read_text("utf-8"))
        print("\n".join(f"commit subject: {problem}" for problem in problems), end="\n" if problems else "")
        return 1 if problems else 0
    root = checkout()
    found = report(root)
    if options.list is not None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the list
        print("\n".join(map(str, listed(root, found, options.list))))
        return 0
    print("\n".join(table(found)))
    problems = missed(found) if options.targets else judge(found, root / "dev/prose.json", options.update)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
