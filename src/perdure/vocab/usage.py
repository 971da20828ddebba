"""Usage of model calls, in buckets that do not overlap, so that they can be summed."""

from __future__ import annotations

from decimal import Decimal

from perdure.vocab.wire import Value

NANO = 1_000_000_000


class Usage(Value, frozen=True):
    """Tokens and cost of one or many model calls.

    `input` excludes cache reads and writes, `output` excludes reasoning. `cost_nano` is the price in billionths of a US
    dollar of the `priced` calls. `estimated` calls were interrupted before the provider reported tokens; theirs are
    counted from the text sent and received.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    calls: int = 0
    cost_nano: int = 0
    priced: int = 0
    estimated: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning=self.reasoning + other.reasoning,
            calls=self.calls + other.calls,
            cost_nano=self.cost_nano + other.cost_nano,
            priced=self.priced + other.priced,
            estimated=self.estimated + other.estimated,
        )

    @property
    def cost(self) -> Decimal | None:
        """The price in US dollars; None if the price of any call is unknown."""
        return Decimal(self.cost_nano) / NANO if self.calls == self.priced else None

    @property
    def tokens(self) -> int:
        """All tokens, over all buckets."""
        return self.input + self.output + self.cache_read + self.cache_write + self.reasoning
