"""Blind Cliffwalk: how many updates of Q-learning a replay needs, by which of its transitions comes
next.

    python benchmarks/cliffwalk.py --page docs/results/cliffwalk.md

Schaul et al. 2016, arXiv:1511.05952, section 3.1 and appendix B.1. Of two actions one is right and
leads to the next of n states, the last one to a reward of 1 and the end; the wrong one ends the
episode with 0. The replay holds the episodes of all 2^n sequences of actions, 2^(n+1) - 2
transitions in random order, and one of them has the reward. Tabular Q-learning, one transition an
update, step size 1/4, gamma = 1 - 1/n, first values from N(0, 0.1), 0.1 taken as the standard
deviation, until the mean squared error to the true values is below 10^-3.

- *uniform*: ``Uniform``.
- *prioritized*: ``Prioritized``, proportional. Transitions begin with the highest priority; one
  that was replayed gets its
  |TD error|, as of before its update. Without importance weights, which the paper has only later (section 3.4).
- *oracle*: the transition whose update lowers the error to the true values most; it knows them.
"""  # noqa: E501

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from equipoise.experience.replay.selectors import Prioritized, Uniform

STEP_SIZE, SOLVED, SPREAD = 0.25, 1e-3, 0.1
DRAWS = 4096  # of uniform at once: they depend on nothing


class Cliffwalk:
    """Q-learning on a problem of ``n`` states. Kind 2 s of transition is the right action in state
    s, 2 s + 1 the wrong one.
    """

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self.n, self.gamma = n, 1 - 1 / n
        self.truth = [
            0.0 if kind % 2 else self.gamma ** (n - 1 - kind // 2) for kind in range(2 * n)
        ]
        self.value: list[float] = rng.normal(0, SPREAD, 2 * n).tolist()
        # by kind
        self.copies = np.repeat(
            np.arange(2 * n), [2 ** (n - 1 - kind // 2) for kind in range(2 * n)]
        )
        rng.shuffle(self.copies)  # the replay: the kind of each of its transitions
        self.squares: float = sum((v - t) ** 2 for v, t in zip(self.value, self.truth, strict=True))

    @property
    def solved(self) -> bool:
        return self.squares < SOLVED * 2 * self.n

    def error(self, kind: int) -> float:
        """The TD error of the transitions of this kind."""
        if kind % 2:
            return -self.value[kind]
        if kind == 2 * self.n - 2:
            return 1 - self.value[kind]
        return self.gamma * max(self.value[kind + 2], self.value[kind + 3]) - self.value[kind]

    def gain(self, kind: int) -> float:
        """By how much an update lowers the sum of squares."""
        off = self.value[kind] - self.truth[kind]
        return off**2 - (off + STEP_SIZE * self.error(kind)) ** 2

    def update(self, kind: int) -> float:
        """-> the TD error before."""
        error = self.error(kind)
        self.squares -= self.gain(kind)
        self.value[kind] += STEP_SIZE * error
        return error


def uniform(walk: Cliffwalk, rng: np.random.Generator) -> Iterator[None]:
    selector = Uniform(len(walk.copies))
    selector.put((slice(0, len(walk.copies)), slice(0, 1)), np.ones((len(walk.copies), 1), bool))
    while True:
        for kind in walk.copies[selector.sample(DRAWS, rng)[0]].tolist():
            walk.update(kind)
            yield


def prioritized(
    walk: Cliffwalk, rng: np.random.Generator, *, alpha: float, epsilon: float
) -> Iterator[None]:
    selector = Prioritized(len(walk.copies), alpha=alpha, epsilon=epsilon)
    selector.put((slice(0, len(walk.copies)), slice(0, 1)), np.ones((len(walk.copies), 1), bool))
    error = np.empty(1)
    while True:
        place, _ = selector.sample(1, rng)
        error[0] = abs(walk.update(int(walk.copies[place[0]])))
        selector.update(place, error)
        yield


def oracle(walk: Cliffwalk) -> Iterator[None]:
    while True:
        walk.update(max(range(2 * walk.n), key=walk.gain))
        yield


def updates(order: str, n: int, seed: int, *, alpha: float, epsilon: float, most: int) -> int:
    """Until solved. The same seed is the same problem in every order."""
    walk, rng = Cliffwalk(n, np.random.default_rng([n, seed])), np.random.default_rng([n, seed, 1])
    orders = {"uniform": lambda: uniform(walk, rng), "oracle": lambda: oracle(walk)}
    steps = orders.get(order, lambda: prioritized(walk, rng, alpha=alpha, epsilon=epsilon))()
    for done in range(most):
        if walk.solved:
            return done
        next(steps)
    raise RuntimeError(f"{order}, n = {n}, seed {seed}: not solved after {most:,} updates")


# ----------------------------------------------------------------------------------------- the page

ORDERS = {"uniform": "#555555", "prioritized": "#2a6f97", "oracle": "#e09f3e"}  # and their colours
Counts = dict[str, dict[int, list[int]]]  # order, n: updates of each seed


def page(counts: Counts, a: argparse.Namespace, picture: str | None) -> str:
    sizes = list(counts["oracle"])
    out = [
        "# Blind Cliffwalk",
        "",
        f"    python benchmarks/cliffwalk.py --page {a.page.as_posix()}",
        "",
    ]
    out += [
        "Updates of Q-learning until the mean squared error to the true values is below 10^-3, by "
        "which transition of a full",
        "replay comes next (Schaul et al. 2016, arXiv:1511.05952, section 3.1 and appendix B.1). "
        "Only one of all has the",
        f"reward. Median of {a.seeds} seeds, lowest and highest in brackets. Prioritized: alpha "
        f"{a.alpha:g}, epsilon",
        f"{a.epsilon:g}, no importance weights. The oracle knows the true values. More: "
        "`benchmarks/cliffwalk.py --help`.",
        "",
        "| n | transitions | " + " | ".join(ORDERS) + " | uniform / prioritized |",
        "|" + "---|" * (len(ORDERS) + 3),
    ]
    for n in sizes:
        found = [counts[order][n] for order in ORDERS]
        cells = [f"{statistics.median(f):,.0f} ({min(f):,} - {max(f):,})" for f in found]
        out.append(
            f"| {n} | {2 ** (n + 1) - 2:,} | " + " | ".join(cells) + f" | {ratio(counts, n):.1f} |"
        )
    out += ["", *([f"![Updates by transitions in the replay]({picture})", ""] if picture else [])]
    out += ["The counts depend on the seeds alone, not on the machine."]
    return "\n".join(out) + "\n"


def ratio(counts: Counts, n: int) -> float:
    return statistics.median(counts["uniform"][n]) / statistics.median(counts["prioritized"][n])


def plot(counts: Counts, file: Path) -> None:
    """Medians as lines, from the lowest to the highest as bands."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "equipoise"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for order, colour in ORDERS.items():
        at = [2 ** (n + 1) - 2 for n in counts[order]]
        found = list(counts[order].values())
        axes.plot(at, [statistics.median(f) for f in found], ".-", color=colour, label=order)
        axes.fill_between(
            at,
            [min(f) for f in found],
            [max(f) for f in found],
            color=colour,
            alpha=0.2,
            linewidth=0,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("transitions in the replay")
    axes.set_ylabel("updates until solved (median; band: all seeds)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def write_page(counts: Counts, a: argparse.Namespace) -> None:
    a.page.parent.mkdir(parents=True, exist_ok=True)
    picture = f"{a.page.stem}.svg" if importlib.util.find_spec("matplotlib") else None
    if picture:
        plot(counts, a.page.with_name(picture))
    else:
        print(
            "note: no picture without matplotlib: .venv/bin/python -m pip install -e '.[plot]'",
            file=sys.stderr,
        )
    a.page.write_text(page(counts, a, picture), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--largest",
        type=int,
        default=16,
        metavar="N",
        help="states of the largest problem (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--alpha", type=float, default=0.6)
    parser.add_argument("--epsilon", type=float, default=1e-6)
    parser.add_argument("--most", type=int, default=100_000_000, help="updates; more are an error")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="and a picture beside it")
    a = parser.parse_args()
    if a.largest < 2 or a.seeds < 1:
        parser.error(f"expected at least 2 states and 1 seed, got {a.largest} and {a.seeds}")
    start, counts = time.perf_counter(), Counts((order, {}) for order in ORDERS)
    for n in range(2, a.largest + 1):
        for order in ORDERS:
            found = [
                updates(order, n, seed, alpha=a.alpha, epsilon=a.epsilon, most=a.most)
                for seed in range(a.seeds)
            ]
            counts[order][n] = found
        medians = ", ".join(
            f"{order} {statistics.median(counts[order][n]):,.0f}" for order in ORDERS
        )
        print(
            f"n = {n}: {medians} ({time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True
        )
        if a.page:
            write_page(counts, a)  # anew after each
    print(
        json.dumps(
            {"benchmark": "cliffwalk", "alpha": a.alpha, "epsilon": a.epsilon, "updates": counts}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
