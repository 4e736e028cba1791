"""``equipoise train --dataset STORE --algorithm reward_model``: a reward model of the answers in a
store.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence

from equipoise.console.place import say

NAME = "reward_model"
READ = ("dataset", "seed")  # options that a fit to clips reads


def fit(
    env: str,
    given: Mapping[str, object],
    settings: Sequence[str],
    out: str | None,
    *,
    others: Mapping[str, object],
    quiet: bool,
) -> None:
    """Fit a reward model to a store of clips of an env, and print how good it is.

    ``others``: options that a fit does not read, by name; ValueError if one is given.
    """
    from equipoise.api.reward_fitting import fit_reward_model

    unread = [f"--{name.replace('_', '-')}" for name in given if name not in READ]
    unread += [name for name, value in others.items() if value]
    if unread:
        raise ValueError(
            f"{unread[0]}: must be left out of a reward model of clips, which is fitted without a "
            "run, got one; it reads --seed, --out and --set algorithm.KEY=VALUE"
        )
    found = fit_reward_model(
        str(given["dataset"]), env, out=out, seed=int(str(given.get("seed", 0))), settings=settings
    )
    if not quiet:
        say(f"{found.path}: a reward model of {env}, version {found.version[:12]}")
        say(
            f"labels     {found.labels:,}: {found.held_out:,} held out, {found.left_out:,} left out"
        )
        say(f"held out   accuracy {_number(found.accuracy)}, ECE {_number(found.ece)}")
        say(f"next: equipoise train {env} --reward run:{found.path}", file=sys.stderr)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
