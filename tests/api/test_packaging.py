"""The metadata of the package: each dependency has code behind it, and a package index has something to show."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from perdure.models.providers.names import PROVIDERS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = cast("dict[str, dict[str, object]]", tomllib.loads((ROOT / "pyproject.toml").read_text()))["project"]
EXTRAS = cast("dict[str, list[str]]", PROJECT["optional-dependencies"])
MODULES = {"pydantic-ai-slim": "pydantic_ai", "pydantic-monty": "pydantic_monty"}
"""The distributions whose module has another name."""

BASE_PACKAGES = 28
"""The most packages that `pip install perdure` may bring, itself included."""


def module_of(requirement: str) -> str:
    name = cast("re.Match[str]", re.match(r"[\w-]+", requirement)).group()
    return MODULES.get(name, name)


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case _:
                pass


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """The top-level modules that the package imports anywhere."""
    files = (ROOT / "src" / "perdure").rglob("*.py")
    return {name for file in files for name in imports(ast.parse(file.read_bytes()))}


@pytest.mark.slow
def test_each_base_dependency_is_imported_by_the_package(imported: set[str]) -> None:
    for requirement in cast("list[str]", PROJECT["dependencies"]):
        assert module_of(requirement) in imported, requirement


def test_each_extra_has_code_behind_it(imported: set[str]) -> None:
    for extra, requirements in EXTRAS.items():
        assert extra == "all" or any(module_of(one) in imported for one in requirements), extra


def test_each_provider_extra_exists() -> None:
    assert {provider.extra for provider in PROVIDERS.values()} <= set(EXTRAS)


def test_all_names_every_other_extra() -> None:
    assert EXTRAS["all"] == [f"perdure[{','.join(sorted(set(EXTRAS) - {'all'}))}]"]


def test_base_install_is_small() -> None:
    pins = [line for line in (ROOT / "requirements" / "base.txt").read_text().splitlines() if "==" in line[:60]]
    elsewhere = re.compile(r"sys_platform == '(win32|emscripten)'")
    here = [line for line in pins if line[0].isalpha() and not elsewhere.search(line)]
    assert 10 < 1 + len(here) <= BASE_PACKAGES, here


def test_package_index_shows_readme_and_addresses() -> None:
    assert (ROOT / cast("str", PROJECT["readme"])).is_file()
    urls = cast("dict[str, str]", PROJECT["urls"])
    assert {"Documentation", "Source", "Changelog", "Issues"} <= set(urls)
    assert all(address.startswith("https://") for address in urls.values())


def test_readme_names_the_install_command() -> None:
    assert "pip install perdure" in (ROOT / "README.md").read_text()
