"""Fail if a file to be committed names a path of this machine or a package registry. No exceptions."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Folders that every machine has.
COMMON = {Path(name) for name in ("/", "/tmp", "/var/tmp", "/home", "/opt", "/srv", "/usr", "/usr/src", "/mnt")}
REGISTRY = re.compile(
    rb"https?://[^\s\"'<>]*(?:pypi|pythonhosted|npmjs|registry)[^\s\"'<>]*"
    rb"|(?:index[-_]url|find[-_]links|registry)[\"']?[\s=:]+[\"']?(?:https?|file)://\S+",
    re.IGNORECASE,
)


def machine_paths(root: Path, home: str) -> list[Path]:
    """Return the repository, its parent folder and the home folder, as written and as resolved."""
    named = [root, root.parent, Path(home)]
    return sorted({p for path in named for p in (path, path.resolve()) if p.is_absolute() and p not in COMMON})


def findings(content: bytes, paths: list[Path]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each forbidden path or address in `content`."""
    names = b"|".join(re.escape(os.fsencode(path)) for path in sorted(paths, key=lambda p: -len(str(p))))
    # Whole paths only: the folder `/a` matches in `/a/b`, but not in `/ab` or `docs/a`.
    machine = re.compile(rb"(?<![\w.-])(?:" + names + rb")(?![\w-])[^\s\"'<>:,;)\]}]*") if paths else None
    for pattern in filter(None, (machine, REGISTRY)):
        for match in pattern.finditer(content):
            yield content.count(b"\n", 0, match.start()) + 1, match.group().decode("utf-8", "replace")


def candidates(root: Path) -> list[Path]:
    """Return the files that are tracked, or would be by `git add .`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    return sorted({root / os.fsdecode(name) for name in listed.split(b"\0") if name})


def content_of(path: Path) -> bytes:
    if path.is_symlink():
        return os.fsencode(path.readlink())
    return path.read_bytes() if path.is_file() else b""


def main() -> int:
    paths = machine_paths(ROOT, os.environ.get("HOME", "/"))
    files = candidates(ROOT)
    found = [(file, line, text) for file in files for line, text in findings(content_of(file), paths)]
    for file, line, text in found:
        print(f"{file.relative_to(ROOT)}:{line}: {text[:120]}")
    print(f"words: {len(found)} found in {len(files)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
