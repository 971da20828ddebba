"""Tools for the files of a session, which a model sees under `/workspace`.

Reading is `pure`. Writing, editing and deleting are `once`: each change is signed with its call, so that after a crash
the file log shows whether it happened.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Literal, cast

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.offload import offload, weight_of
from perdure.services.files.paths import normal, shown
from perdure.services.files.protocol import SessionFiles
from perdure.services.files.shapes import FileInfo, FileStat, SessionFile
from perdure.services.files.stored import StoredFiles
from perdure.services.files.tree import FilesChanged
from perdure.tools.context import ToolContext
from perdure.tools.decorator import AnyTool, tool
from perdure.tools.errors import OutcomeUnknown, ToolError
from perdure.tools.execution_result import Image, ToolResult
from perdure.tools.file_text import Edit, diff, edited, lines_of, window
from perdure.tools.verdicts import CannotTell, DidNotHappen, Happened, Verdict

MAX_LISTED = 1000
MAX_CONTEXT_LINES = 20
MAX_FOUND_BYTES = 64 * 1024
MAX_LINE_CHARS = 1000
_PICTURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_FIXABLE = {code for code in Code if code.startswith("file")} | {Code.INVALID_TEXT}


def file_tools() -> tuple[AnyTool, ...]:
    """Return all file tools, for an agent."""
    found = (read_file, write_file, edit_file, list_directory, grep_files, delete_file, stat_file)
    return cast("tuple[AnyTool, ...]", found)


@contextmanager
def _fixable_errors() -> Generator[None]:
    """Convert errors that a model can fix into `ToolError`, and store failures into `OutcomeUnknown`."""
    try:
        yield
    except Error as problem:
        if problem.code in _FIXABLE:
            sentence = ". ".join(part for part in (problem.message, problem.because, problem.hint) if part)
            raise ToolError(sentence, code=problem.code) from None
        if problem.code in (Code.STORE_UNAVAILABLE, Code.STORE_FAILED):
            raise OutcomeUnknown(problem.message) from problem
        raise


def _signed(ctx: ToolContext[object]) -> SessionFiles:
    files = ctx.files
    if isinstance(files.system, StoredFiles):
        files = replace(files, system=files.system.signed(ctx.idempotency_key))
    return files


async def _change(ctx: ToolContext[object]) -> FilesChanged | Verdict:
    """Return the change made by a call in doubt. Without a change log the verdict is unknown."""
    system = _signed(ctx).system
    if not isinstance(system, StoredFiles):
        return CannotTell("this file system has no change log")
    return await system.signed_change(ctx.session_id) or DidNotHappen()


async def _was_written(ctx: ToolContext[object]) -> Verdict:
    change = await _change(ctx)
    if not isinstance(change, FilesChanged):
        return change
    put = change.put[0]
    return Happened({"path": shown(put.path), "size_bytes": put.size, "content_hash": f"sha256:{put.hash}"})


async def _was_deleted(ctx: ToolContext[object]) -> Verdict:
    change = await _change(ctx)
    return Happened({"deleted": True}) if isinstance(change, FilesChanged) else change


def _hash(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def _about(file: SessionFile) -> dict[str, Json]:
    return {"path": shown(file.path), "size_bytes": file.size_bytes, "content_hash": _hash(file.data)}


async def _existing(files: SessionFiles, path: str) -> SessionFile:
    found = await files.read_file(path)
    if found is None:
        raise ToolError(f"File not found: {shown(normal(path))}", code="file_unknown")
    if found.is_directory:
        raise ToolError(f"{shown(found.path)} is a directory: list it instead", code="file_kind_conflict")
    return found


@tool(effect="pure", title="Read File")
async def read_file(
    ctx: ToolContext[object], path: str, offset: int | None = None, limit: int | None = None
) -> ToolResult:
    """Read a file of the workspace. Lines come as `N|text`; edit_file needs the `content_hash`.

    Args:
        path: The file, e.g. `/workspace/notes.md`.
        offset: The first line to read, counted from 1.
        limit: Maximum number of lines: at most 2000.
    """
    with _fixable_errors():
        file = await _existing(ctx.files, path)
    return await offload(file.size_bytes, _shown_to_model, file, offset, limit)


def _shown_to_model(file: SessionFile, offset: int | None, limit: int | None) -> ToolResult:
    data, about = file.data, _about(file)
    if file.encoding == "text":
        seen = window(file.name, file.content or "", offset, limit)
        lines: dict[str, Json] = {"first_line": seen.first, "last_line": seen.last, "total_lines": seen.total}
        return ToolResult.success(
            {**about, **lines, "truncated": seen.truncated, "content": seen.text}
        )  # fmt: skip
    media_type = _picture(data)
    if media_type is None:
        return ToolResult.success({**about, "binary": True})
    picture = Image(b64encode(data).decode(), media_type)
    return ToolResult.success_with_images({**about, "media_type": media_type}, [picture])


def _picture(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in _PICTURES.items() if data.startswith(magic)), None)


@tool(effect="once", probe=_was_written, title="Write File")
async def write_file(
    ctx: ToolContext[object], path: str, content: str, encoding: Literal["text", "base64"] = "text"
) -> dict[str, Json]:
    """Write a file of the workspace, replacing its content. Parent directories are created.

    Args:
        path: The file, e.g. `/workspace/notes.md`.
        content: The complete new content.
        encoding: `text`, or `base64` for binary content.
    """
    with _fixable_errors():
        written = await _signed(ctx).write_file(path, content, encoding)
        return await offload(written.size_bytes, _about, written)


@tool(effect="once", probe=_was_written, title="Edit File")
async def edit_file(ctx: ToolContext[object], path: str, expected_hash: str, edits: list[Edit]) -> dict[str, Json]:
    """Replace parts of a text file. Nothing is changed unless all edits match and the file is unchanged since you read
    it.

    Args:
        path: The file, e.g. `/workspace/notes.md`.
        expected_hash: The `content_hash` of the file when you read it.
        edits: The replacements: each `old_text` must occur exactly once in the file, and edits must not overlap.
    """
    with _fixable_errors():
        files = _signed(ctx)
        file = await _existing(files, path)
        old = file.content or ""
        new = await offload(file.size_bytes, _edited, file, expected_hash, edits)
        written = await files.write_file_if_content_matches(path, old, "text", new, "text")
        if written is None:
            now = await _existing(files, path)
            raise await offload(now.size_bytes, _stale, now, expected_hash)
    about = await offload(written.size_bytes, _about, written)
    shown_diff = await offload(weight_of((old, new)), diff, shown(written.path), old, new)
    return {**about, "edits": len(edits), "diff": shown_diff}


def _edited(file: SessionFile, expected_hash: str, edits: list[Edit]) -> str:
    if file.encoding != "text":
        raise ToolError(f"{shown(file.path)} is not text", code="file_content_invalid")
    if _hash(file.data) != expected_hash:
        raise _stale(file, expected_hash)
    return edited(file.content or "", edits)


def _stale(file: SessionFile, expected: str) -> ToolError:
    return ToolError(
        f"File '{shown(file.path)}' changed since the last read. Expected {expected}, found {_hash(file.data)}. "
        "Read the file again before editing.",
        code="file_stale",
    )


@tool(effect="pure", title="List Directory")
async def list_directory(ctx: ToolContext[object], path: str = "/workspace", limit: int = 200) -> dict[str, Json]:
    """List a directory of the workspace.

    Args:
        path: The directory.
        limit: Maximum number of entries: at most 1000.
    """
    with _fixable_errors():
        found = await ctx.files.list_directory(path)
    entries = [_entry(info) for info in found[: min(max(1, limit), MAX_LISTED)]]
    return {
        "path": shown(normal(path)),
        "total": len(found),
        "truncated": len(entries) < len(found),
        "entries": entries,
    }


def _entry(info: FileInfo | FileStat) -> dict[str, Json]:
    kind = "directory" if info.is_directory else "file"
    return {
        "path": shown(info.path),
        "type": kind,
        "size_bytes": info.size_bytes,
        "is_readonly": info.is_readonly,
        "updated_at": info.updated_at,
    }


@tool(effect="pure", title="Search Files")
async def grep_files(
    ctx: ToolContext[object], pattern: str, path_pattern: str | None = None, context: int = 0, limit: int = 200
) -> dict[str, Json]:
    """Search the text files of the workspace for lines that match a regular expression.

    Args:
        pattern: The regular expression, without look-around and back-references.
        path_pattern: Filter for files: a glob such as `*.py`, or a part of the path.
        context: Number of lines to show around each match: at most 20.
        limit: Maximum number of matches: at most 1000.
    """
    with _fixable_errors():
        found = await ctx.files.grep_files(pattern, path_pattern)
    around = min(max(0, context), MAX_CONTEXT_LINES)
    texts: dict[str, list[str]] = {}
    matches: list[dict[str, Json]] = []
    size = 0
    for one in found[: min(max(1, limit), MAX_LISTED)]:
        match: dict[str, Json] = {"path": shown(one.path), "line_number": one.line_number, "line": _short(one.line)}
        if around:
            if one.path not in texts:
                read = await ctx.files.read_file(one.path)
                texts[one.path] = lines_of((read.content if read else None) or "")
            first, at = max(0, one.line_number - 1 - around), one.line_number
            match["before"] = [_short(line) for line in texts[one.path][first : at - 1]]
            match["after"] = [_short(line) for line in texts[one.path][at : at + around]]
        size += len(str(match).encode())
        if size > MAX_FOUND_BYTES:
            break
        matches.append(match)
    return {"total": len(found), "truncated": len(matches) < len(found), "matches": matches}


def _short(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} […]"


@tool(effect="once", probe=_was_deleted, title="Delete File")
async def delete_file(ctx: ToolContext[object], path: str, recursive: bool = False) -> dict[str, Json]:
    """Delete a file or a directory of the workspace.

    Args:
        path: The file or directory.
        recursive: Delete a directory with its contents.
    """
    with _fixable_errors():
        files = _signed(ctx)
        if await files.delete_file(path, recursive):
            return {"deleted": True}
        known = await files.stat_file(path)
    if known is None:
        raise ToolError(f"File not found: {shown(normal(path))}", code="file_unknown")
    raise ToolError(f"{shown(known.path)} is not empty: set recursive to delete it", code="file_kind_conflict")


@tool(effect="pure", title="File Info")
async def stat_file(ctx: ToolContext[object], path: str) -> dict[str, Json]:
    """Return the metadata of a file or directory of the workspace.

    Args:
        path: The file or directory.
    """
    with _fixable_errors():
        found = await ctx.files.stat_file(path)
        if found is None:
            raise ToolError(f"File not found: {shown(normal(path))}", code="file_unknown")
    return _entry(found)
