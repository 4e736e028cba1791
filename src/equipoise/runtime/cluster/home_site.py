"""The place of the proxy, and the services that it may use there besides a ``Site``'s."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.runtime.messages import Linked, Relayed
from equipoise.runtime.site import LocalSite
from equipoise.types import Array


class HomeSite:
    """The board of the run, the cut under way, and the way to the driver for workers elsewhere."""

    def __init__(self, site: LocalSite) -> None:
        self.bell, self.queues, self.note = site.bell, site.queues, site.note
        self._cut, self._board, self._send = site.cut, site.board, site.send

    def row(self, title: str) -> Mapping[str, Array]:
        """A worker's row of the board, as views."""
        return self._board.row(title)

    def cutting(self) -> tuple[int, int, bool] | None:
        """The cut under way as (number, step, may learners save now); None: there is none."""
        words, number = self._board.cut, self._cut()
        last = bool(words["save_last"][0] == number)
        return (number, int(words["step"][0]), last) if number > words["released"][0] else None

    def relay(self, title: str, message: Mapping[str, object]) -> None:
        """Pass on a message that a worker on another machine sent its driver."""
        self._send(Relayed(title=title, said=dict(message)))

    def linked(self, site: str, how: str) -> None:
        """Report that a machine's link is up, or down for the reason ``how``."""
        self._send(Linked(site=site, how=how))
