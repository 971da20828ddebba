"""Usage of model calls, in buckets that do not overlap, so that they can be summed."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec

from perdure.vocab.wire import Value

NANO = 1_000_000_000

MAX_COUNT = 2**50
"""The highest count of a bucket, far above any real usage. A sum stays at it."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class Usage(Value, frozen=True):
    """Tokens and cost of one or many model calls.

    `input` excludes cache reads and writes, `output` excludes reasoning. `cost_nano` is the price in billionths of a US
    dollar of the `priced` calls. `estimated` calls were interrupted before the provider reported tokens; theirs are
    counted from the text sent and received.
    """

    input: Count = 0
    output: Count = 0
    cache_read: Count = 0
    cache_write: Count = 0
    reasoning: Count = 0
    calls: Count = 0
    cost_nano: Count = 0
    priced: Count = 0
    estimated: Count = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=min(self.input + other.input, MAX_COUNT),
            output=min(self.output + other.output, MAX_COUNT),
            cache_read=min(self.cache_read + other.cache_read, MAX_COUNT),
            cache_write=min(self.cache_write + other.cache_write, MAX_COUNT),
            reasoning=min(self.reasoning + other.reasoning, MAX_COUNT),
            calls=min(self.calls + other.calls, MAX_COUNT),
            cost_nano=min(self.cost_nano + other.cost_nano, MAX_COUNT),
            priced=min(self.priced + other.priced, MAX_COUNT),
            estimated=min(self.estimated + other.estimated, MAX_COUNT),
        )

    def bounded(self) -> Usage:
        """Return a reported usage with every count within its bounds. A count that is not an integer becomes 0.

        Negative counts would lower the usage of the session, and so raise its limits.
        """
        counts = {name: getattr(self, name) for name in self.__struct_fields__}
        return Usage(**{name: min(max(n, 0), MAX_COUNT) if type(n) is int else 0 for name, n in counts.items()})

    @property
    def cost(self) -> Decimal | None:
        """The price in US dollars; None if the price of any call is unknown."""
        return Decimal(self.cost_nano) / NANO if self.calls == self.priced else None

    @property
    def tokens(self) -> int:
        """All tokens, over all buckets."""
        return self.input + self.output + self.cache_read + self.cache_write + self.reasoning
