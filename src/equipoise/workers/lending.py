"""The words of an elastic run (``actors/lending.py``) in the memory of its learners."""

from __future__ import annotations

from equipoise.actors.lending import Lending
from equipoise.workers.shared import Shared

OWNER = "learner"  # the kind of worker that has the memory
KEY = "lending"


def lending(shared: Shared) -> Lending | None:
    """The words of an elastic run; None: the run is of another kind."""
    own = shared.own.get(OWNER)
    views = None if own is None else own.views.get(KEY)
    return None if views is None else Lending(views)
