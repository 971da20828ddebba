"""The store that forgets: everything in one process's memory. The reference the laws were written against."""

from perdure.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
