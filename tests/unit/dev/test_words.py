from pathlib import Path

import pytest

from dev.words import findings, machine_paths

PATHS = [Path("/srv/build/perdure"), Path("/srv/build")]
HOST = "py" + "pi.example.org"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb = '/srv/build/perdure/x.py'", 2),
        ("/srv/build", 1),
        ("file:///srv/build/x", 1),
        (f"\n\nsee https://{HOST}/simple", 3),
        ("--index-" + "url http://mirror.example.org/simple", 1),
        ("index-" + "url = 'file:///mirror'", 1),
        ('"resolved": "https://reg' + 'istry.example.org/x.tgz"', 1),
    ],
)
def test_a_path_of_this_machine_or_a_registry_is_found(text: str, line: int) -> None:
    assert [where for where, _ in findings(text.encode(), PATHS)] == [line]


@pytest.mark.parametrize(
    "text",
    [
        "/srv/builders/x",
        "docs/srv/build",
        "/srv",
        "https://example.org/srv",
        "uv pip compile --no-emit-index-url",
        "a registry",
    ],
)
def test_similar_text_is_not_reported(text: str) -> None:
    assert list(findings(text.encode(), PATHS)) == []


def test_a_folder_that_every_machine_has_is_not_searched_for() -> None:
    assert machine_paths(Path("/tmp/perdure"), "/") == [Path("/tmp/perdure")]


def test_the_repository_its_folder_and_the_home_are_searched_for() -> None:
    assert machine_paths(Path("/data/x/perdure"), "/data/me") == [
        Path("/data/me"),
        Path("/data/x"),
        Path("/data/x/perdure"),
    ]
