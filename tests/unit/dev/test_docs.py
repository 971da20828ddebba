"""Checks of the documents: code runs and prints what the page shows, names exist, links lead somewhere.

A `python {.runnable}` block runs in an empty folder; a `text {.output}` block after it is its exact output. Plain
`python` blocks compile, and the names and keywords of perdure in them exist. `console` blocks name commands that exist.
`console {.run}` blocks of the front page run in order, and print what the page shows.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypedDict, cast
from xml.etree import ElementTree

import pytest
import typer.main
import yaml

import perdure
from dev import mentions
from perdure.cli.app import app
from perdure.errors import TRAITS, Code
from perdure.models.wording import plain
from perdure.tools.decorator import ToolOptions

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTEXT.md", "AGENTS.md", "CHANGELOG.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "changes").glob("*.md"),
    ]
)
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")  # an image too
OURS = re.compile(r"https://github\.com/perdure/perdure/(?:blob|tree)/main/")
COMMAND = re.compile(r"^\$ (?:\S*/)?perdure (?P<words>[^|&;#\n]*)", re.MULTILINE)
SLEEP = re.compile(r"\btime\.sleep\((?:[5-9]|\d\d+)\)")  # invites a kill: not waited for here
ADR_PARTS = ["Context", "Decision", "Consequences", "What would make us revisit"]


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["info"].strip(), found["text"])
        for found in FENCE.finditer(text)
    ]


def runnable() -> Iterator[tuple[Block, str | None]]:
    """Blocks to run, each with the output the page promises."""
    for page in PAGES:
        found = blocks(page)
        for block, after in pairwise([*found, None]):
            if block and block.info == "python {.runnable}":
                yield block, after.text if after and after.info == "text {.output}" else None


def without_code(page: Path) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """Return the link targets of this page: headings as they are rendered, and explicit anchors."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_there_is_something_to_check() -> None:
    assert {block.page.name for block, _ in runnable()} >= {"README.md", "tools.md"}
    assert len(PAGES) > 15


@pytest.mark.parametrize(("block", "promised"), [pytest.param(*found, id=found[0].id) for found in runnable()])
def test_a_runnable_block_runs_and_prints_what_the_page_says(
    block: Block, promised: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "block.py"
    script.write_text(SLEEP.sub("time.sleep(0)", block.text))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    ran = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    if promised is not None:
        assert plain(ran.stdout) == plain(promised)


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "perdure":
            for alias in node.names:
                yield node.module or "", alias.name


def test_shown_code_compiles_and_its_imports_exist() -> None:
    failures: list[str] = []
    for block in (block for page in PAGES for block in blocks(page) if block.info.split(" ")[0] == "python"):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
        try:
            tree = compile(block.text, block.id, "exec", flags)
        except SyntaxError as problem:
            failures.append(f"{block.id}: {problem}")
            continue
        for module, name in imported(tree):
            try:
                found = hasattr(importlib.import_module(module), name)
            except ImportError:
                found = False
            if not found:
                failures.append(f"{block.id}: from {module} import {name}")
    assert failures == []


def keywords(name: str) -> set[str] | None:
    """Keyword arguments of a public function or class; None if any is taken."""
    if name == "tool":  # its options are a TypedDict
        return set(ToolOptions.__annotations__)
    parameters = inspect.signature(getattr(perdure, name)).parameters
    open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return None if open_ended else set(parameters)


def test_shown_calls_use_keywords_that_exist() -> None:
    checked = {"Agent", "InitialFile", "RetryPolicy", "Runtime", "ToolHints", "client_tool", "process", "tool"}
    known = {name: keywords(name) for name in checked}
    failures: list[str] = []
    for block in (block for page in PAGES for block in blocks(page) if block.info.split(" ")[0] == "python"):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
        for node in ast.walk(compile(block.text, block.id, "exec", flags)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                allowed = known.get(node.func.id)
                given = {each.arg for each in node.keywords if each.arg}
                if allowed is not None and given - allowed:
                    failures.append(f"{block.id}: {node.func.id}({', '.join(sorted(given - allowed))})")
    assert failures == []


def same(printed: str) -> list[str]:
    """Lines without the ids, times, durations and widths that differ from run to run."""
    for pattern, placeholder in (
        (r"\bapr_[0-9a-f]{16}\b", "APPROVAL"),
        (r"\b[0-9a-v]{26}\b", "TURN"),
        (r"\b\d\d:\d\d:\d\d\b", "TIME"),
        (r"\d+(?= +(?:-|\d+)$)", "MS"),
    ):
        printed = re.sub(pattern, placeholder, printed, flags=re.M)
    return [" ".join(line.split()) for line in plain(printed).strip().splitlines()]


KILLABLE = (
    'until test -s bank.txt || test -n "$(perdure approvals list -q --db travel.db 2>/dev/null)"; do sleep 0.1; done'
)
"""The event for which the page allows five seconds: the card is charged, or the call waits for a decision."""


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(180)
def test_front_page_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    """The agent is killed, started again, given an approval and killed once more, as a newcomer would do it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    clean["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    clean["PYTHONUNBUFFERED"] = "1"  # output and notes in the order of a terminal
    agent = tmp_path / "agent.py"
    approval: tuple[str, str] | None = None
    for block in blocks(ROOT / "docs" / "index.md"):
        if block.info == "python {.runnable}":
            agent.write_text(block.text)
        elif block.info == "python" and block.text.startswith("@tool("):  # the decorator is replaced
            decorated = re.sub(r"^@tool\(.*$", block.text.splitlines()[0], agent.read_text(), flags=re.M)
            agent.write_text(SLEEP.sub("time.sleep(0)", decorated))
        elif block.info == "console {.run}":
            for shown in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
                command, _, promised = shown.partition("\n")
                command = command.replace("sleep 5", KILLABLE)
                if approval:
                    command = command.replace(*approval)
                ran = subprocess.run(
                    ["bash", "-c", command],
                    cwd=tmp_path,
                    env=clean,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,  # as in a terminal
                    text=True,
                    check=False,
                )
                printed = re.sub(r"^bash: .*Killed.*\n", "", ran.stdout, flags=re.M)
                assert same(printed) == same(promised), command
                if re.fullmatch(r"apr_\w+\n+", promised):
                    approval = (promised.strip(), printed.strip())
    assert approval


def test_shown_commands_and_options_exist() -> None:
    commands = dict(_commands())
    failures: list[str] = []
    for block in (block for page in PAGES for block in blocks(page) if block.info.split(" ")[0] == "console"):
        for line in COMMAND.finditer(block.text):
            words = line["words"].split()
            options = {word.partition("=")[0] for word in words if word.startswith("-")}
            name = next((name for name in (" ".join(words[:2]), words[0] if words else "") if name in commands), None)
            if name is None and not options & {"--help", "--version"}:
                failures.append(f"{block.id}: {line.group()}")
            elif name and not options <= commands[name] | {"--help", "-h"}:
                failures.append(f"{block.id}: {options - commands[name]} of perdure {name}")
    assert failures == []


def prose() -> Iterator[tuple[str, str]]:
    """All that users and contributors read: pages, docstrings of the package and its examples, texts of errors."""
    for page in PAGES:
        yield str(page.relative_to(ROOT)), page.read_text()
    for module in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")]):
        text = module.read_text()
        for line, said in [*mentions.docstrings(text), *mentions.error_texts(text)]:
            yield f"{module.relative_to(ROOT)}:{line}", said


def test_names_of_the_api_in_prose_exist() -> None:
    """`rt.x`, `session.x(k=...)`, `Runtime(k=...)`: attributes and keywords of today's classes."""
    assert [f"{place}: {name}" for place, text in prose() for name in mentions.unknown_names(text)] == []


def test_commands_in_prose_exist_with_their_options() -> None:
    assert [f"{place}: {name}" for place, text in prose() for name in mentions.unknown_commands(text)] == []


def test_words_that_docstrings_and_errors_quote_are_names_of_today() -> None:
    failures: list[str] = []
    for module in sorted((ROOT / "src").rglob("*.py")):
        text = module.read_text()
        texts = [*mentions.docstrings(text), *mentions.error_texts(text)]
        stale = [*mentions.unknown_words(text), *((line, k) for line, t in texts for k in mentions.unknown_keywords(t))]
        failures += [f"{module.relative_to(ROOT)}:{line}: {name}" for line, name in stale]
    assert failures == []


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ("until `session.revoke(...)`; take it from session.messages()", ["session.revoke"]),
        ("`rt.approvals.approve(id, by=…, edit={…})`", ["rt.approvals.approve(edit=)"]),
        ("open it with Runtime(codec=...)", ["Runtime(codec=)"]),
        ("`ctx.files.read_file(path)`, `ctx.files.load(path)`", ["ctx.files.load"]),
        ('`@tool(effect="once", approve=True)`', ["tool(approve=)"]),
        ("`rt.start(nightly, day(hour=3), anything=1)`", []),
    ],
)
def test_a_stale_name_in_prose_is_noticed(text: str, stale: list[str]) -> None:
    assert list(mentions.unknown_names(text)) == stale


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ("`perdure processes edges ID` shows", [" processes edges ID"]),
        ("perdure resolve - --ok 3", [" resolve - --ok 3"]),
        ("`perdure schedules list | show | cancel`", [" schedules cancel"]),
        ("`perdure approvals settle ID happened --by ana`, then perdure doctor --db app.db", []),
    ],
)
def test_a_stale_command_in_prose_is_noticed(text: str, stale: list[str]) -> None:
    assert list(mentions.unknown_commands(text)) == ["perdure" + command for command in stale]


def test_links_lead_somewhere() -> None:
    failures: list[str] = []
    for page in PAGES:
        for target in LINK.findall(without_code(page)):
            path, _, anchor = OURS.sub("", target).partition("#")
            folder = ROOT if OURS.match(target) else page.parent
            file = (folder / path).resolve() if path else page
            if "://" in path:
                continue
            if not file.exists() or (anchor and anchor not in anchors(file)):
                failures.append(f"{page.relative_to(ROOT)} links to {target}")
    assert failures == []


def test_front_page_has_no_relative_link() -> None:
    """The page is the description of the wheel, and an index of packages has no other file."""
    assert [
        link for link in LINK.findall(without_code(ROOT / "README.md")) if not link.startswith(("https:", "#"))
    ] == []


class Site(TypedDict):
    """The part of mkdocs.yml that is checked here."""

    nav: list[dict[str, list[dict[str, str]]]]


def test_navigation_lists_every_page_once() -> None:
    """Decisions are reached from their list, and everything for contributors comes last."""
    site = cast(Site, yaml.safe_load((ROOT / "mkdocs.yml").read_text()))
    listed = [page for tab in site["nav"] for pages in tab.values() for entry in pages for page in entry.values()]
    docs = ROOT / "docs"
    pages = [str(page.relative_to(docs)) for page in docs.rglob("*.md") if not re.match(r"20\d\d-", page.name)]
    assert sorted(listed) == sorted(pages)
    assert [page.startswith("contributing/") for page in listed] == sorted(
        page.startswith("contributing/") for page in listed
    )


def test_list_of_decisions_names_each_by_its_title() -> None:
    folder = ROOT / "docs" / "contributing" / "adr"
    listed = re.findall(r"^- \[(.+)\]\(adr/(.+)\)$", (folder.parent / "decisions.md").read_text(), re.M)
    titles = [(page.read_text().splitlines()[0].removeprefix("# "), page.name) for page in folder.glob("20*.md")]
    assert sorted(listed) == sorted(titles)


def test_reference_pages_name_what_exists() -> None:
    """A directive names a public object; a member that a filter hides exists, so that no filter outlives its reason."""
    failures: list[str] = []
    directive = re.compile(r"^::: (?P<path>[\w.]+)$(?P<options>(?:\n {4}.*$)*)", re.M)
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for found in directive.finditer(page.read_text()):
            module, _, name = found["path"].rpartition(".")
            target: object = getattr(importlib.import_module(module), name, None)
            hidden = [one for group in re.findall(r"\^\(([\w|]+)\)", found["options"]) for one in group.split("|")]
            classes = target.__mro__ if isinstance(target, type) else ()
            ours = [each for each in classes if each.__module__.startswith("perdure")]
            defined = {one for each in ours for one in [*vars(each), *getattr(each, "__annotations__", {})]}
            defined |= {one for each in ours for one in re.findall(r"\bself\.(\w+)\b", inspect.getsource(each))}
            if target is None or name.startswith("_"):
                failures.append(f"{page.name}: {found['path']}")
            failures += [f"{page.name}: {name}.{one}" for one in hidden if one not in defined]
    assert failures == []


def test_reference_describes_every_option_of_a_tool() -> None:
    assert "::: perdure.tools.decorator.ToolOptions" in (ROOT / "docs" / "reference" / "tool.md").read_text()
    body = ast.parse(inspect.getsource(ToolOptions)).body[0]
    assert isinstance(body, ast.ClassDef)
    described = [
        one.target.id
        for one, text in pairwise(body.body)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, ast.Expr)
    ]
    assert sorted(described) == sorted(ToolOptions.__annotations__)


def test_drawings_are_small_titled_and_self_contained() -> None:
    svg = "{http://www.w3.org/2000/svg}"
    drawings = sorted((ROOT / "docs" / "assets").rglob("*.svg"))
    failures: list[str] = []
    for drawing in drawings:
        text = drawing.read_text()
        root = ElementTree.fromstring(text)  # raises where the drawing is not XML
        named = {
            each.get("id", ""): "".join(each.itertext()).strip()
            for each in root
            if each.tag in (f"{svg}title", f"{svg}desc")
        }
        references = [
            value
            for each in root.iter()
            for name, value in each.attrib.items()
            if name.rpartition("}")[2] in ("href", "src") and not value.startswith("#")
        ]
        outside = [*references, *re.findall(r"url\((?!#)[^)]*\)|@import|<!ENTITY|<script|<foreignObject", text)]
        problems = {
            "not an <svg> with a viewBox and no width": root.tag != f"{svg}svg"
            or not root.get("viewBox")
            or root.get("width"),
            "no title or desc that aria-labelledby names": sorted(named)
            != sorted((root.get("aria-labelledby") or "").split())
            or len(named) != 2
            or not all(named.values()),
            "over 15 kB": len(text.encode()) > 15_000,
            f"refers to {outside}": outside,
        }
        failures += [f"{drawing.name}: {problem}" for problem, found in problems.items() if found]
    assert drawings
    assert failures == []


def test_named_paths_exist() -> None:
    """`runtime/turns/loop.py`, `tests/crash/test_sweep.py`: as they stand in the tree, or below the package."""
    named = re.compile(r"`([a-z_]+(?:/[a-z_0-9]+)+(?:\.py|\.sql|/))`")
    assert [
        f"{page.relative_to(ROOT)} names {name}"
        for page in PAGES
        for name in named.findall(page.read_text())
        if not (ROOT / name).exists() and not (ROOT / "src" / "perdure" / name).exists()
    ] == []


def test_the_error_page_lists_every_code_as_it_is() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d+) \| (\w+) \| (.+) \|$", page, re.M)
    listed = [(code, int(status), retry) for code, status, retry, _ in rows]
    assert listed == [(code.value, TRAITS[code].status, TRAITS[code].retry) for code in Code]
    assert all(meaning.endswith(".") for *_, meaning in rows)


def test_the_command_page_lists_every_command_and_option() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    sections = {
        found[1]: found[2] for found in re.finditer(r"^### `perdure ([a-z -]+).*?`\n(.*?)(?=^##)", page, re.M | re.S)
    }
    commands = dict(_commands())
    assert {name.strip() for name in sections} == set(commands)
    for name, section in ((name.strip(), text) for name, text in sections.items()):
        named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", section))
        assert commands[name] <= named, f"cli.md does not explain {commands[name] - named} of perdure {name}"
        assert named <= commands[name] | {"-q"}, f"cli.md invents {named - commands[name]} of perdure {name}"


def _commands() -> Iterator[tuple[str, set[str]]]:
    root = typer.main.get_group(app)
    for name, command in root.commands.items():
        below = getattr(command, "commands", None)
        for path, leaf in (
            {f"{name} {verb}": leaf for verb, leaf in below.items()}.items() if below else [(name, command)]
        ):
            options = {opt for param in leaf.params for opt in (*param.opts, *param.secondary_opts)}
            yield path, {opt for opt in options if opt.startswith("-")}


def test_a_decision_has_four_parts_and_its_name_is_the_decision() -> None:
    pages = sorted((ROOT / "docs" / "contributing" / "adr").glob("20*.md"))
    failures: list[str] = []
    for page in pages:
        text = page.read_text()
        slug = re.sub(r"[^a-z0-9]+", "-", text.splitlines()[0].removeprefix("# ").lower().replace("'", "")).strip("-")
        if re.findall(r"^## (.+)$", text, re.M) != ADR_PARTS or not re.fullmatch(rf"20\d\d-\d\d-{slug}", page.stem):
            failures.append(page.name)
    assert pages
    assert failures == []


def test_every_test_that_the_page_about_the_seeds_names_exists() -> None:
    """The second column says which test of ours it is."""
    rows = [
        line.split("|")
        for line in (ROOT / "docs" / "contributing" / "seeds.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    named = {name for row in rows for cell in row[2:] for name in re.findall(r"\btest_\w+(?!\.py)\b", cell)}
    known = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        known |= set(re.findall(r"def (test_\w+)", path.read_text()))
    assert sorted(named - known) == []


SEED_TESTS_OF_004 = [
    "test_echo_tool",
    "test_failing_tool_with_tool_error",
    "test_failing_tool_with_internal_error",
    "test_tool_result_conversion",
    "test_tool_registry",
    "test_tool_registry_builder",
    "test_tool_display_name_in_definition",
    "test_success_with_raw_output_object_preserves_shape",
    "test_success_with_raw_output_scalar_unwraps_to_string",
    "test_success_result_with_raw_output_scalar_key_is_not_unwrapped",
    "test_success_result_with_only_raw_output_scalar_key_is_not_unwrapped",
    "test_echo_tool_display_name",
    "test_all_default_tools_have_display_names",
    "test_tool_registry_as_executor",
    "test_tool_to_definition",
    "test_with_defaults_has_expected_tools",
    "test_with_defaults_tools_are_executable",
    "test_with_defaults_math_tools",
    "test_with_defaults_excludes_capability_only_tools",
    "test_spawn_background_executes_and_signals_session",
    "test_spawn_background_persists_failure_artifacts",
    "test_spawn_background_rejects_when_session_active_run_limit_reached",
    "test_spawn_background_requires_task_registry",
    "test_spawn_background_requires_file_store",
    "test_spawn_background_caps_output_log_size",
    "test_spawn_background_can_create_scheduled_monitor",
    "test_spawn_background_rejects_invalid_scheduled_at",
    "test_spawn_background_rejects_ambiguous_schedule_shape",
    "test_is_canceled_outcome_detects_sentinel",
    "test_is_canceled_outcome_does_not_match_other_errors",
    "test_cancel_background_run_via_task_registry",
    "reattach_fails_with_missing_file_store",
    "reattach_fails_with_missing_task_registry",
    "reattach_fails_with_unknown_tool_name",
    "reattach_fails_with_missing_tool_spec_field",
]
"""All that the document has, in its order."""


def test_seeds_page_maps_every_seed_test_about_tools() -> None:
    page = (ROOT / "docs" / "contributing" / "seeds.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.M))
    assert [name for name in SEED_TESTS_OF_004 if name not in told] == []
    for name in SEED_TESTS_OF_004:
        assert re.search(r"\btest_\w+|same name|decision \d|…\[", told[name]), name
        assert "later, with" not in told[name], name
