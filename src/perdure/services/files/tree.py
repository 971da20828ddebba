"""The files of a session as a fold of their log, and the checks of changes. Pure.

Law: every record lists exactly its changes (including created parent directories). Folding thus needs no rules, and a
change is checked on exactly the tree before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from perdure.codec import decode, encode
from perdure.errors import Code, Error
from perdure.ids import BlobHash, Seq, SessionId, join
from perdure.services.files.paths import ROOT, below, name_of, normal, parent_of, parents_of, shown
from perdure.services.files.shapes import (
    MAX_FILE_BYTES,
    MAX_SESSION_BYTES,
    Encoding,
    FileInfo,
    FileStat,
    InitialFile,
    bytes_of,
)
from perdure.vocab.blobs import Blob
from perdure.vocab.records import Row

KIND = "files_changed"
CODE = "files-1"
"""The version of this fold. Snapshots of other versions are ignored."""
MAX_ENTRIES = 10_000


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A file or directory. `hash` is the sha256 of a file's bytes, blank for a directory."""

    born: str
    created_at: int
    updated_at: int
    hash: str = ""
    size: int = 0
    encoding: Encoding = "text"
    readonly: bool = False

    @property
    def is_directory(self) -> bool:
        """True if the node is a directory."""
        return not self.hash


class Put(msgspec.Struct, frozen=True, gc=False):
    """The new content of a file."""

    path: str
    hash: str
    size: int
    encoding: Encoding = "text"
    readonly: bool = False


class FilesChanged(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One change: removals, then new directories, then files. `by` distinguishes equal changes."""

    by: str
    removed: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    put: tuple[Put, ...] = ()


class _TreeSnapshot(msgspec.Struct, frozen=True):
    nodes: dict[str, Node]


@dataclass(frozen=True, slots=True)
class Change:
    """An accepted change: the record, and its blobs."""

    record: FilesChanged
    blobs: tuple[Blob, ...] = ()


@dataclass(slots=True)
class Tree:
    """All files of a session at some seq."""

    session: SessionId
    seq: Seq = Seq(0)
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])

    # --- folding

    @staticmethod
    def of(session: SessionId, snapshot: bytes | None, seq: Seq, rows: Iterable[Row]) -> Tree:
        """Build the tree from a snapshot at `seq` and the later records."""
        nodes = decode(snapshot, _TreeSnapshot).nodes if snapshot is not None else {}
        tree = Tree(session, seq, nodes)
        for row in rows:
            tree.fold(decode(row.data, FilesChanged), row.seq, row.at)
        return tree

    def fold(self, record: FilesChanged, seq: Seq, at: int) -> None:
        """Apply one record."""
        for path in record.removed:
            for gone in [known for known in self.nodes if known == path or known.startswith(below(path))]:
                del self.nodes[gone]
        for path in record.made:
            self.nodes[path] = Node(self._born(seq, path), at, at)
        for put in record.put:
            old = self.nodes.get(put.path)
            born, created_at = (old.born, old.created_at) if old else (self._born(seq, put.path), at)
            self.nodes[put.path] = Node(born, created_at, at, put.hash, put.size, put.encoding, put.readonly)
        self.seq = seq

    def _born(self, seq: Seq, path: str) -> str:
        return "fil_" + sha256(join(self.session, str(seq), path).encode()).hexdigest()[:24]

    def snapshot(self) -> bytes:
        """Return this tree as a snapshot, for `of`."""
        return encode(_TreeSnapshot(self.nodes))

    # --- queries

    def is_directory(self, path: str) -> bool:
        """Return True if the path is a directory."""
        return path == ROOT or (path in self.nodes and self.nodes[path].is_directory)

    def children(self, path: str) -> list[str]:
        """Return the entries of a directory, ordered by name."""
        return sorted(known for known in self.nodes if parent_of(known) == path)

    def info(self, path: str) -> FileInfo | None:
        """Return the entry of a path, or None. The root always exists."""
        node = Node("fil_root", 0, 0) if path == ROOT else self.nodes.get(path)
        if node is None:
            return None
        return FileInfo(
            id=node.born,
            session_id=self.session,
            path=path,
            name=name_of(path),
            is_directory=node.is_directory,
            is_readonly=node.readonly,
            size_bytes=node.size,
            created_at=node.created_at,
            updated_at=node.updated_at,
        )

    def stat(self, path: str) -> FileStat | None:
        """Return the entry of a path without its ids, or None."""
        info = self.info(path)
        if info is None:
            return None
        return FileStat(
            path=info.path,
            name=info.name,
            is_directory=info.is_directory,
            is_readonly=info.is_readonly,
            size_bytes=info.size_bytes,
            created_at=info.created_at,
            updated_at=info.updated_at,
        )

    # --- checks

    def writing(self, path: str, content: tuple[str, str], by: str) -> Change:
        """Check and return a write of a file; `content` is the text and its encoding.

        Raises:
            Error: `file_kind_conflict`, `file_readonly`, `file_limit_exceeded`, `file_content_invalid`.
        """
        old = self.nodes.get(path)
        if old is not None and old.readonly:
            raise _readonly(path)
        return self._puts([InitialFile(path, content[0], _encoding(content[1]))], by)

    def seeding(self, seeds: Sequence[InitialFile], by: str) -> Change:
        """Check and return a write of initial files, which may be read-only and replace read-only ones.

        Raises:
            Error: as `writing`, except `file_readonly`; `file_path_invalid`.
        """
        return self._puts([msgspec.structs.replace(seed, path=normal(seed.path)) for seed in seeds], by)

    def _puts(self, files: Sequence[InitialFile], by: str) -> Change:
        made: dict[str, None] = {}
        puts: dict[str, Put] = {}
        blobs: list[Blob] = []
        for file in files:
            if self.is_directory(file.path) or file.path in made:
                raise _kind(file.path, "the path is a directory")
            for parent in parents_of(file.path):
                if parent in puts or (parent in self.nodes and not self.is_directory(parent)):
                    raise _kind(parent, "a parent of the path is a file")
                if parent not in self.nodes:
                    made[parent] = None
            data = bytes_of(file.content, file.encoding)
            blob = file_blob(data, file.encoding)
            puts[file.path] = Put(file.path, sha256(data).hexdigest(), len(data), file.encoding, file.readonly)
            blobs.append(blob)
        self._check_limits(made, puts)
        return Change(FilesChanged(by, made=tuple(made), put=tuple(puts.values())), tuple(blobs))

    def making(self, path: str, by: str) -> Change | None:
        """Check and return the creation of a directory and its parents, or None if it exists.

        Raises:
            Error: `file_kind_conflict`, `file_limit_exceeded`.
        """
        missing = [one for one in (*parents_of(path), path) if not self.is_directory(one)]
        for one in missing:
            if one in self.nodes:
                raise _kind(one, "the path is a file")
        if not missing:
            return None
        self._check_limits(dict.fromkeys(missing), {})
        return Change(FilesChanged(by, made=tuple(missing)))

    def removing(self, path: str, by: str, *, recursive: bool) -> Change | None:
        """Check and return the removal of a file or directory. A non-empty directory needs `recursive`.

        Returns None if the path is missing or not empty.

        Raises:
            Error: `file_readonly` for a read-only file, or a directory with one; `file_path_invalid` for the root.
        """
        if path == ROOT:
            raise Error(Code.FILE_PATH_INVALID, "the root cannot be deleted", hint="delete its entries")
        if path not in self.nodes:
            return None
        inside = [known for known in self.nodes if known.startswith(below(path))]
        if inside and not recursive:
            return None
        for one in (path, *inside):
            if self.nodes[one].readonly:
                raise _readonly(one)
        return Change(FilesChanged(by, removed=(path,)))

    def _check_limits(self, made: Iterable[str], puts: dict[str, Put]) -> None:
        for put in puts.values():
            if put.size > MAX_FILE_BYTES:
                raise _limit(f"{shown(put.path)} would have {put.size} bytes", f"a file has at most {MAX_FILE_BYTES}")
        sizes = {path: node.size for path, node in self.nodes.items()} | {path: put.size for path, put in puts.items()}
        total, entries = sum(sizes.values()), len({*sizes, *made})
        if total > MAX_SESSION_BYTES:
            raise _limit(f"the files would have {total} bytes", f"those of a session have at most {MAX_SESSION_BYTES}")
        if entries > MAX_ENTRIES:
            raise _limit(f"the session would have {entries} files", f"the limit is {MAX_ENTRIES}")

    def let_go(self, record: FilesChanged, after: Tree) -> tuple[BlobHash, ...]:
        """Return the blobs that are unreferenced once this record is folded into the tree `after`."""
        kept = {node.hash for node in after.nodes.values()}
        touched = (*record.removed, *(put.path for put in record.put))
        old = {
            node.hash
            for path, node in self.nodes.items()
            if any(path == one or path.startswith(below(one)) for one in touched)
        }
        return tuple(blob_name(hash) for hash in sorted(old - kept) if hash)


def blob_name(hash: str) -> BlobHash:
    """Return the blob name of a file's bytes. It differs from the names of log-referenced bytes, which have other
    release rules."""
    return BlobHash(sha256(f"file:{hash}".encode()).hexdigest())


def file_blob(data: bytes, encoding: Encoding) -> Blob:
    """Return the blob of a file's bytes."""
    media_type = "text/plain" if encoding == "text" else "application/octet-stream"
    return Blob(blob_name(sha256(data).hexdigest()), media_type, data)


def _encoding(encoding: str) -> Encoding:
    if encoding not in ("text", "base64"):
        bytes_of("", encoding)
    return "text" if encoding == "text" else "base64"


def _kind(path: str, because: str) -> Error:
    return Error(Code.FILE_KIND_CONFLICT, f"{shown(path)} has another kind", because=because, path=path)


def _readonly(path: str) -> Error:
    return Error(Code.FILE_READONLY, f"{shown(path)} is read-only", hint="write another file", path=path)


def _limit(what: str, because: str) -> Error:
    return Error(Code.FILE_LIMIT_EXCEEDED, what, because=because, hint="delete unneeded files")
