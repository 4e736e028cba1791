"""A module that takes fifteen seconds to import, as those of large simulators do."""

from __future__ import annotations

import time

from habits import Corridor

time.sleep(15.0)


def make() -> Corridor:
    return Corridor()
