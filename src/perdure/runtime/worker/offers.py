"""An input that is handed to a session in memory instead of being put into its inbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure.errors import Code, Error
from perdure.inbox.items import Input


@dataclass(frozen=True, slots=True)
class Offer:
    """An input handed to a session in memory, and what became of it: durable, not taken, or the store's refusal."""

    item: Input
    future: asyncio.Future[bool]

    def answer(self, accepted: bool | Error) -> None:
        """Tell the sender. Whoever lost the stream has written nothing; of other refusals only the log knows more."""
        if self.future.done():
            return
        if isinstance(accepted, Error) and accepted.code is not Code.LEASE_LOST:
            self.future.set_exception(accepted)
        else:
            self.future.set_result(accepted is True)
