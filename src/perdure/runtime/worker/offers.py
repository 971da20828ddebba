"""Direct inputs: handed to a session in memory instead of its inbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure.errors import Code, Error
from perdure.inbox.items import Input


@dataclass(frozen=True, slots=True)
class Offer:
    """A direct input and its result: durable, declined, or refused by the store."""

    item: Input
    future: asyncio.Future[bool]

    def answer(self, accepted: bool | Error) -> None:
        """Report the result to the sender.

        After a lost lease the input counts as declined, because nothing was written. After other refusals only the log
        knows.
        """
        if self.future.done():
            return
        if isinstance(accepted, Error) and accepted.code is not Code.LEASE_LOST:
            self.future.set_exception(accepted)
        else:
            self.future.set_result(accepted is True)
