"""The documents are true where that can be checked: code runs, output is what is printed, links lead somewhere.

A block marked `python runnable` is run in an empty folder; a `text output` block after it is what it must print.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import typer.main

from perdure.cli.app import app
from perdure.errors import TRAITS, Code
from perdure.models.wording import plain

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTEXT.md", "AGENTS.md", "CHANGELOG.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "changes").glob("*.md"),
    ]
)
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
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
            if block and block.info == "python runnable":
                yield block, after.text if after and after.info == "text output" else None


def without_code(page: Path) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """What a link into this page may point at: headings as they are rendered, and explicit anchors."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_there_is_something_to_check() -> None:
    assert {block.page.name for block, _ in runnable()} >= {"README.md", "tools-and-effects.md"}
    assert len(PAGES) > 15


@pytest.mark.parametrize(("block", "promised"), [pytest.param(*found, id=found[0].id) for found in runnable()])
def test_a_runnable_block_runs_and_prints_what_the_page_says(
    block: Block, promised: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "block.py"
    script.write_text(block.text)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_that_is_only_shown_is_python_too(page: Path) -> None:
    for block in blocks(page):
        if block.info.startswith("python"):
            compile(block.text, block.id, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(without_code(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}, which has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_paths_exist(page: Path) -> None:
    """`runtime/turns/loop.py`, `tests/crash/test_sweep.py`: as they stand in the tree, or below the package."""
    for name in re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+(?:\.py|\.sql|/))`", page.read_text()):
        assert (ROOT / name).exists() or (ROOT / "src" / "perdure" / name).exists(), f"{page.name} names {name}"


def test_the_error_page_lists_every_code_as_it_is() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d+) \| (\w+) \| (.+) \|$", (ROOT / "docs" / "errors.md").read_text(), re.M)
    listed = [(code, int(status), retry) for code, status, retry, _ in rows]
    assert listed == [(code.value, TRAITS[code].status, TRAITS[code].retry) for code in Code]
    assert all(meaning.endswith(".") for *_, meaning in rows)


def test_the_command_page_lists_every_command_and_option() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    sections = {
        found[1]: found[2] for found in re.finditer(r"^### `perdure ([a-z ]+).*?`\n(.*?)(?=^##)", page, re.M | re.S)
    }
    commands = dict(_commands())
    assert {name.strip() for name in sections} == set(commands)
    for name, section in ((name.strip(), text) for name, text in sections.items()):
        named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", section))
        assert commands[name] <= named, f"docs/cli.md does not explain {commands[name] - named} of perdure {name}"
        assert named <= commands[name] | {"-q"}, f"docs/cli.md invents {named - commands[name]} of perdure {name}"


def _commands() -> Iterator[tuple[str, set[str]]]:
    root = typer.main.get_group(app)
    for name, command in root.commands.items():
        below = getattr(command, "commands", None)
        for path, leaf in (
            {f"{name} {verb}": leaf for verb, leaf in below.items()}.items() if below else [(name, command)]
        ):
            options = {opt for param in leaf.params for opt in (*param.opts, *param.secondary_opts)}
            yield path, {opt for opt in options if opt.startswith("-")}


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "adr").glob("*.md")), ids=lambda page: page.name)
def test_a_decision_has_four_parts_and_its_name_is_the_decision(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, re.M) == ADR_PARTS
    title = text.splitlines()[0].removeprefix("# ")
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    assert re.fullmatch(rf"20\d\d-\d\d-{slug}", page.stem)


def test_every_test_that_the_page_about_the_seeds_names_exists() -> None:
    """The second column says which test of ours it is."""
    rows = [line.split("|") for line in (ROOT / "docs" / "seeds.md").read_text().splitlines() if line.startswith("| ")]
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


def test_every_test_of_the_seed_about_tools_is_one_of_ours_or_a_decision() -> None:
    page = (ROOT / "docs" / "seeds.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.M))
    assert [name for name in SEED_TESTS_OF_004 if name not in told] == []
    for name in SEED_TESTS_OF_004:
        assert re.search(r"\btest_\w+|same name|decision \d|…\[", told[name]), name
        assert "later, with" not in told[name], name
