"""The guides to testing, and examples/shop, are run as a reader runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.testing.running import Ran, run_pytest

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
PAGES = ("testing.md", "testing-crashes.md", "store-laws.md")
TEXT = "\n".join((ROOT / "docs" / "guides" / name).read_text() for name in PAGES)
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FILES_PAGE = (ROOT / "docs" / "guides" / "files.md").read_text()
KEY = re.compile(r"perdure-tool:[^\s,]+")

OURS = {
    "test_a_purchase[memory]",
    "test_a_purchase[sqlite]",
    "test_a_minute_later[memory]",
    "test_a_minute_later[sqlite]",
    "test_a_ledger",
    "test_a_purchase_survives_a_crash_anywhere[memory]",
    "test_a_purchase_survives_a_crash_anywhere[sqlite]",
    "test_a_purchase_survives_a_crash_anywhere[kill]",
    "test_the_probe_settles_every_doubt",
    "test_it_is_published_once",
    "test_it_is_found_out",
    "test_a_store_that_fails_for_a_moment[memory]",
    "test_a_store_that_fails_for_a_moment[sqlite]",
}


def files() -> dict[str, str]:
    """Return the blocks of the pages by file; blocks of one file are joined."""
    found: dict[str, str] = {}
    for block in FENCE.finditer(TEXT):
        info = block["info"].strip()
        if info.startswith("python"):
            named = re.fullmatch(r"python \{\.file name=(\S+)\}", info)
            assert named, f"this block is not run: {block['text']}"
            name = named[1]
            found[name] = f"{found[name]}\n\n{block['text']}" if name in found else block["text"]
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_pytest(tmp_path_factory.mktemp("page"), files(), "-o", "asyncio_mode=auto", "-s")


@pytest.mark.slow
def test_every_block_of_the_page_is_run_and_true(page: Ran) -> None:
    assert page.code == 0, page.output
    assert page.failed == set()
    assert page.outcomes.keys() >= OURS
    assert len(page.outcomes.keys() - OURS) > 120, "the laws of a store"


def test_the_report_on_the_page_is_what_is_printed(page: Ran) -> None:
    promised = next(block["text"] for block in FENCE.finditer(TEXT) if block["info"] == "text {.report}")
    assert promised.strip() in KEY.sub("KEY", page.output)


@pytest.mark.slow
def test_the_laws_on_the_page_about_files_are_run(tmp_path: Path) -> None:
    named = re.compile(r"^```python \{\.file name=(\S+)\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    ran = run_pytest(tmp_path, dict(named.findall(FILES_PAGE)), "-o", "asyncio_mode=auto")
    assert ran.code == 0, ran.output
    assert len(ran.outcomes) > 60, "the laws of session files"


@pytest.mark.slow
def test_an_example_is_tested_with_the_kit(tmp_path: Path) -> None:
    names = ("shop.py", "test_shop.py")
    copied = {name: (ROOT / "examples" / "shop" / name).read_text() for name in names}
    ran = run_pytest(tmp_path, copied)
    assert ran.code == 0, ran.output
    assert ran.outcomes == dict.fromkeys(
        (
            "test_an_order_is_refunded[memory]",
            "test_an_order_is_refunded[sqlite]",
            "test_it_is_refunded_once_wherever_the_process_dies[memory]",
            "test_it_is_refunded_once_wherever_the_process_dies[sqlite]",
            "test_it_is_refunded_once_wherever_the_process_dies[kill]",
        ),
        "passed",
    )
