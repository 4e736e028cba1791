"""The cause that holds a run back, its evidence and what to do about it; and the sentence that is
made of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from equipoise.balance.shares import BEHIND, Shares, add

RESETS = 0.3  # resets that take so much of the actors' time are what holds the run back
# workers that wait for cores, and have less than this share of them, wait for other processes
OURS = 0.75
SEEN = 0.05  # of a side's time: the bottleneck of the model must be seen in at least this share
WAIT = 0.15  # a side that waits for less of its time than this is as good as busy

Cause = Literal[
    "All-reduce-bound",
    "Balanced",
    "CPU-bound",
    "Generation-bound",
    "Inference-bound",
    "KV memory",
    "Learning-bound",
    "Lent",
    "Limiter-bound",
    "Lockstep",
    "Long tail",
    "Offline",
    "One thread",
    "Publish-bound",
    "Replay-bound",
    "Resetting",
    "Reward-bound",
    "Sampling-bound",
    "Starting",
    "Straggler",
    "Too early to say",
    "Uneven",
    "Waiting for calls",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The bottleneck of a run."""

    cause: Cause
    evidence: str = ""  # with numbers of the run
    advice: str = ""  # empty if nothing is to be done

    @property
    def sentence(self) -> str:
        return (
            self.cause
            + (f": {self.evidence}" if self.evidence else "")
            + (f"; {self.advice}" if self.advice else "")
            + "."
        )


EARLY = Verdict("Too early to say")
STARTING = Verdict("Starting", "the workers are built, and the envs are reset for the first time")
WAITING = Verdict("Waiting for calls", "no conversation of an agent has its reward yet")
NOTHING_YET = Verdict("Too early to say", "no env was stepped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a run is set up, as far as the rules ask."""

    max_lag: int | None = 0  # None: no bound
    cores: int | None = None  # that the workers may use; None: not known
    # workers take turns (the serial runtime): no worker waits, and the verdict names the work that
    # takes the time
    one_thread: bool = False
    offline: bool = False  # there are no actors
    threads: int | None = None  # of the learner; None: not known
    paid: int | None = None  # updates that a round of a replay's rows pays for; None: no replay
    envs: int | None = None  # of an actor; None: not known


def verdict(
    balance: Mapping[str, Shares],
    setup: Setup,
    *,
    advice: str | None = None,
    cause: str | None = None,
) -> Verdict:
    """The bottleneck that follows from the workers' shares, by their sides of the ring; workers
    outside it are not judged.

    Under central inference the inference workers show whether the actors wait for the learner.

    ``cause`` and ``advice``: the model's findings (``remedies.py``), instead of the rules. If other
    processes use the cores the rules' advice stays: the model does not see those.
    """
    found, cores = _finding(balance, setup, cause), setup.cores
    of_others = found.cause == "CPU-bound" and cores is not None and _used(balance) < OURS * cores
    return (
        found if advice is None or of_others or not found.advice else replace(found, advice=advice)
    )


def _used(balance: Mapping[str, Shares]) -> float:
    """The cores that the workers have had; of a learner with several threads one is counted."""
    return sum(
        one.share("worked") - one.share("asleep")
        for one in balance.values()
        if one.side != "beside"
    )


def _finding(balance: Mapping[str, Shares], setup: Setup, cause: str | None) -> Verdict:
    max_lag, cores, paid = setup.max_lag, setup.cores, setup.paid
    workers = list(balance.values())
    actors = [one for one in workers if one.side == "sampling" and not one.serves]
    servers = [one for one in workers if one.serves]
    learners = [one for one in workers if one.side == "learning"]
    shards = [one for one in workers if one.side == "keeping"]
    sampling, learning = add(servers or actors), add(learners)
    if setup.offline and learning.total > 0:
        advice = "more learner threads or a faster device are what it could use"
        return Verdict("Offline", "the learner alone is at work", advice)
    if sampling.total <= 0 or learning.total <= 0:
        return EARLY
    if setup.one_thread:
        return _one_thread(add([*actors, *servers]), add([*learners, *shards]))
    waits, held = learning.share("starved"), sampling.share("blocked")
    # Waiting for a core comes first: a preempted worker makes others starve or block, and more
    # actors or more lag would make it worse. Two exceptions: a learner that would hold the actors
    # up even with a core for each, and envs that wait longer for something outside than any worker
    # does for a core.
    preempted = max(one.share("preempted") for one in (sampling, learning, add(actors), *shards))
    outside = waits >= WAIT and add(actors).share("asleep") > preempted
    crowded, works = (
        preempted >= WAIT and not outside,
        learning.worked >= learning.preempted and waits < WAIT,
    )
    if crowded and not (works and _held_with_cores(held, learning.share("worked")) >= WAIT):
        return _cpu_bound(
            preempted,
            _used(balance),
            len(actors),
            len(learners) + len(shards) + len(servers),
            cores,
            setup.threads,
        )
    busy = max((one.share("worked") for one in (*shards, *servers)), default=0.0)
    behind = _behind(balance) if max_lag is not None and waits >= WAIT else None
    resets = add(actors)
    seen = {
        "learners": max(held, learning.part("all-reduce")),
        "actors": waits,
        "servers": waits,
        "shards": waits,
    }
    # the model's answer is some seconds old and no longer true
    if cause is None or seen.get(cause, 1.0) < SEEN:
        cause = _cause(
            waits,
            held,
            resets,
            busy=busy >= 1 - WAIT,
            keeps=bool(shards),
            serves=bool(servers),
            behind=behind,
        )
    if cause == "shards":
        evidence = f"a shard is at work {_percent(busy)} of the time and the learner waits"
        return Verdict("Replay-bound", evidence, "use more replay.shards")
    if cause == "servers":
        return Verdict(
            "Inference-bound",
            f"an inference worker is at work {_percent(busy)} of the time and the learner waits",
            "use more inference_workers, a faster device or --inference local",
        )
    if cause == "straggler" and behind is not None and max_lag is not None:
        return _straggling(behind, held, max_lag)
    if cause in ("actors", "resets") and resets.part("reset") >= RESETS:
        return _resetting(resets, len(actors), cores, setup.envs)
    if cause in ("lag", "straggler"):
        return _lockstep(waits, held, max_lag)
    if cause == "actors":
        env = sampling.share("starved") + (add(actors) if servers else sampling).share("asleep")
        return _sampling_bound(waits, env, len(actors), cores)
    if cause == "learners" and len(learners) > 1 and learning.part("all-reduce") >= WAIT:
        return _summing(balance)
    if cause == "learners":
        faster = ["a faster device"] if crowded else ["more learner threads", "a faster device"]
        return (
            _learning_bound(held, faster)
            if paid is None
            else _held_by_a_replay(held, learning, paid, faster)
        )
    return Verdict("Balanced", "the actors and the learner are both busy")


def _cause(
    waits: float,
    held: float,
    actors: Shares,
    *,
    busy: bool,
    keeps: bool,
    serves: bool,
    behind: tuple[str, float] | None,
) -> str:
    """The bottleneck implied by which workers wait: a name of ``remedies.cause``, "resets",
    or "".
    """
    if waits >= WAIT and busy and (keeps or serves):
        return "shards" if keeps else "servers"
    # actors that wait for each other's resets also wait for the learner: the larger share decides
    if waits >= WAIT and actors.part("reset") >= max(RESETS, held):
        return "resets"
    if waits >= WAIT and behind is not None:
        return "straggler"
    if waits >= WAIT:
        return "lag" if held >= WAIT else "actors"
    return "learners" if held >= WAIT else ""


def _sampling_bound(waits: float, env: float, actors: int, cores: int | None) -> Verdict:
    evidence, advice = (
        f"the learner waits {_percent(waits)} of the time for experience",
        "add actors or envs per actor",
    )
    if env >= WAIT:
        evidence += f", and the actors {_percent(env)} for their envs"
        advice = "use a faster env or more actors"
    elif cores is not None and actors >= cores:  # another actor would only share a core
        advice = (
            f"add envs per actor ({_count(actors, 'actor')} on {_count(cores, 'core')} already)"
        )
    return Verdict("Sampling-bound", evidence, advice)


def _behind(balance: Mapping[str, Shares]) -> tuple[str, float] | None:
    """The slowest actor, and how many times as long as the usual one it takes; None if no actor is
    slow.
    """
    actors = {
        name: one
        for name, one in balance.items()
        if one.side == "sampling" and not one.serves and one.done
    }
    took = {name: (one.total - one.blocked) / one.done for name, one in actors.items()}
    usual = statistics.median_low(took.values()) if len(took) > 1 else 0.0
    if not usual or max(took.values()) < BEHIND * usual:
        return None
    slow = max(took, key=lambda name: took[name])
    # an actor that waits for a core is no straggler
    return (slow, took[slow] / usual) if actors[slow].share("preempted") < WAIT else None


def _straggling(behind: tuple[str, float], held: float, max_lag: int) -> Verdict:
    name, times = behind
    return Verdict(
        "Straggler",
        f"{name} takes {times:.1f} times as long for its rows as the others, and they wait "
        f"{_percent(held)} of the time",
        f"see what slows {name}, or use --max-lag none" + (", or 1" if max_lag == 0 else ""),
    )


def _resetting(actors: Shares, count: int, cores: int | None, envs: int | None) -> Verdict:
    """Most of the actors' time goes into resets; several actors reset side by side."""
    resetting = actors.parts.get("reset", 0.0)
    each = resetting / max(actors.counts.get("reset", 0.0), 1.0)
    evidence = (
        f"{_percent(actors.part('reset'))} of the actors' time goes into resets of "
        f"{_seconds(each)} each"
    )
    fewer = (
        ""
        if envs == 1
        else " and half the --envs-per-actor"
        if envs is None
        else f" --envs-per-actor {-(-envs // 2)}"
    )
    more = f"use --actors {2 * count}{fewer}, since the resets of one actor follow each other"
    if actors.asleep >= resetting / 2:  # they wait for something outside, so a core is no limit
        return Verdict("Resetting", f"{evidence}, which wait for something", more)
    if cores is not None and count >= cores:
        return Verdict(
            "Resetting",
            f"{evidence}, on all {_count(cores, 'core')}",
            "make resets cheaper, or episodes longer",
        )
    return Verdict("Resetting", evidence, more)


def _summing(balance: Mapping[str, Shares]) -> Verdict:
    """The learners wait for each other: for a slow one, or for the sums themselves."""
    waits = {
        name: one.part("all-reduce") for name, one in balance.items() if one.side == "learning"
    }
    behind, most = min(waits, key=lambda name: waits[name]), max(waits.values())
    if waits[behind] < most / 2:
        return Verdict(
            "Learning-bound",
            f"{behind} is behind, the others wait up to {_percent(most)} of the time for it",
            "give it a core as fast as theirs, or use fewer learners",
        )
    mean = sum(waits.values()) / len(waits)
    return Verdict(
        "All-reduce-bound",
        f"the learners wait {_percent(mean)} of the time for sums over all of them",
        "use fewer learners, larger batches or fewer minibatches",
    )


def _seconds(x: float) -> str:
    return f"{x:.1f} s" if x >= 1.0 else f"{x * 1e3:.0f} ms"


def _held_with_cores(held: float, worked: float) -> float:
    """The actors' share of waiting, were a round as long as the learner's work in it."""
    return 1.0 - (1.0 - held) / worked if worked > 0 else 0.0


def _learning_bound(held: float, faster: Sequence[str]) -> Verdict:
    evidence = f"the actors wait {_percent(held)} of the time for the learner"
    return Verdict("Learning-bound", evidence, _use("fewer actors", *faster))


def _held_by_a_replay(held: float, learning: Shares, paid: int, faster: Sequence[str]) -> Verdict:
    """The learner is behind with the updates, so its limiter lets no more rows in."""
    waiting = f"the actors wait {_percent(held)} of the time for the learner"
    if learning.spent("insert") >= learning.worked / 2:
        return Verdict(
            "Learning-bound",
            f"{waiting}, and {_percent(learning.part('insert'))} of its time goes into writing "
            "their rows",
            "use longer unrolls, or more envs per actor in place of actors",
        )
    owed, fewer = ("update", ()) if paid == 1 else (f"{paid:,} updates", ("fewer replay.updates",))
    behind = f"which is behind with the {owed} that each round of rows pays for"
    return Verdict("Limiter-bound", f"{waiting}, {behind}", _use(*fewer, *faster))


def _lockstep(waits: float, held: float, max_lag: int | None) -> Verdict:
    evidence = (
        f"the learner waits {_percent(waits)} of the time and the actors {_percent(held)}, in turn"
    )
    if max_lag == 0:
        return Verdict("Lockstep", evidence, "raise --max-lag to overlap them")
    if max_lag is None:
        return Verdict(
            "Uneven", f"{evidence}, though the lag is free", "use smaller batches or unrolls"
        )
    return Verdict("Uneven", evidence, f"raise --max-lag above {max_lag} or use smaller batches")


def _cpu_bound(
    preempted: float, used: float, actors: int, others: int, cores: int | None, threads: int | None
) -> Verdict:
    workers = actors + others
    share = (
        f"{_count(workers, 'worker')} share {_count(cores, 'core')}"
        if cores
        else f"{workers} workers share too few cores"
    )
    fewer = " or ".join(["actors"] * (actors > 1) + ["threads"] * (threads != 1))
    # fewer workers would leave them even less
    if cores is not None and threads == 1 and used < OURS * cores:
        advice = (
            f"they get {used:.2f} of these, and other processes the rest: stop those, or add cores"
        )
    elif fewer:
        advice = f"use fewer {fewer}"
    elif cores is not None and cores >= workers:
        advice = (
            "a core for each would do, so something else keeps them busy: stop that, or add cores"
        )
    else:
        advice = "add cores, or let both take turns with --on serial"
    return Verdict(
        "CPU-bound", f"{share} and wait up to {_percent(preempted)} of the time for one", advice
    )


def _one_thread(sampling: Shares, learning: Shares) -> Verdict:
    busy = sampling.worked + learning.worked  # the rest is the others' turns
    if busy <= 0:
        return EARLY
    sample, learn = _percent(sampling.worked / busy), _percent(learning.worked / busy)
    return Verdict(
        "One thread",
        f"sampling takes {sample} of the time, learning {learn}",
        "--on process runs them side by side",
    )


def _use(*what: str) -> str:
    return "use " + " or ".join([", ".join(what[:-1]), what[-1]] if len(what) > 1 else what)


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")
