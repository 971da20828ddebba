"""What a model call cost, in buckets that do not overlap, so that sums mean something."""

from __future__ import annotations

from perdure.vocab.wire import Value


class Usage(Value, frozen=True):
    """Tokens of one or many model calls. `input` excludes what was read from or written to a cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning=self.reasoning + other.reasoning,
            calls=self.calls + other.calls,
        )

    @property
    def tokens(self) -> int:
        """All tokens, whichever bucket they fell into."""
        return self.input + self.output + self.cache_read + self.cache_write + self.reasoning
