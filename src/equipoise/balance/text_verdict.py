"""The bottleneck of a run on text, and a table of its sentences.

``verdict.py`` finds the bottleneck by which side waits. A run on text also has the reason why
generators wait, and the number of samples that they are drawing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.balance.shares import Shares, add
from equipoise.balance.verdict import WAIT, Cause, Verdict

FULL = 0.8  # a memory of keys and values with this load, in the mean, holds samples back
MOST = 0.9  # of the samples that a generator could draw at once: with more, memory holds none back
TAIL = 0.4  # a generator that draws a smaller share of the samples that it could has a long tail
# causes of verdict.py that a run on text keeps
KEPT = (
    "All-reduce-bound",
    "CPU-bound",
    "Offline",
    "One thread",
    "Starting",
    "Straggler",
    "Too early to say",
)
# by cause: the evidence, and what to do
SENTENCES: Mapping[Cause, tuple[str, str]] = {
    "Generation-bound": (
        "the learner waits {waits} of the time for samples, while the generators draw",
        "use more generators (--actors), a faster device or shorter completions",
    ),
    "Long tail": (
        "a generator draws {live} samples at once, of {room} that it could: the others have "
        "ended, and the learner waits {waits} of the time for the longest",
        "raise --max-lag above {lag}, so that later samples are drawn meanwhile, or lower "
        "--max-completion-length",
    ),
    "KV memory": (
        "a generator draws {live} samples at once, of {room} that it could, since their keys and "
        "values fill {load} of its memory; a sample was given back {back} times in the mean",
        "raise source.kv_tokens, or lower --max-completion-length",
    ),
    "Reward-bound": (
        "the generators wait {grading} of the time for rewards, and the learner waits "
        "{waits} for them",
        "make the reward functions faster, or raise --max-lag above {lag}, so that samples are "
        "drawn meanwhile",
    ),
    "Learning-bound": (
        "the generators wait {held} of the time for the learner",
        "use fewer generators, more learner threads or a faster device",
    ),
    "Publish-bound": (
        "{publishing} of the learner's time goes into publishing weights, and {fetching} "
        "of the generators' into taking them",
        "use source.weights=bf16 or a larger policy.publish_every",
    ),
    "Lent": (
        "{lent} of the learners' devices generate, and the learner waits {waits} of the time",
        "",
    ),
}


# the same for learners that generate themselves, of which none waits for another
TOGETHER: Mapping[Cause, tuple[str, str]] = {
    "Generation-bound": (
        "the learner draws samples {drawing} of the time, and learns {learning}",
        "shorten completions, or use --placement auto to measure whether generators of their own "
        "are faster",
    ),
    "Long tail": (
        "the learner draws {live} samples at once, of {room} that it could: the others have ended",
        "use --placement apart with --max-lag 1, so that later samples are drawn meanwhile, or "
        "lower --max-completion-length",
    ),
    "KV memory": SENTENCES["KV memory"],
    "Reward-bound": (
        "the learner waits {waits} of the time for rewards",
        "make the reward functions faster, or use --placement apart with --max-lag 1",
    ),
    "Learning-bound": (
        "the learner learns {learning} of the time, and draws samples {drawing}",
        "use more learner threads, a faster device, or --placement apart with --max-lag 1, so that "
        "samples are drawn meanwhile",
    ),
    "Publish-bound": (
        "{publishing} of the learner's time goes into publishing weights, and {fetching} into "
        "taking them",
        "use a larger batch",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRun:
    """Facts about a run on text that a verdict needs besides the workers' shares."""

    group: int  # samples of a prompt
    length: float | None = None  # mean tokens of the last samples; None: no sample has ended
    room: int  # samples that a generator may draw at once
    max_lag: int | None = 0
    lent: int = 0  # devices of the learners that generate
    together: bool = False  # the learners generate, and then learn
    kv_load: float | None = None  # mean load of the memory of keys and values; None: no bound
    given_back: float = 0.0  # mean number of times that a sample was given back


def text_verdict(
    found: Verdict, balance: Mapping[str, Shares], run: TextRun, *, advice: str | None = None
) -> Verdict:
    """Return the verdict on a run on text; ``found``: that of ``verdict.py``.

    ``advice``: the suggestion of ``remedies.py``, for causes that more or fewer generators help.
    """
    if run.together:
        return _together(found, balance, run)
    if found.cause in KEPT:
        return found
    generators = add(one for one in balance.values() if one.side == "sampling")
    learners = add(one for one in balance.values() if one.side == "learning")
    waits, held = learners.share("starved"), generators.share("blocked")
    grading, live = generators.share("starved"), live_samples(balance, run)
    publishing, fetching = learners.part("publish"), generators.part("fetch")
    cause = found.cause
    if max(publishing, fetching) >= WAIT:
        cause = "Publish-bound"
    elif run.lent and waits < WAIT <= learners.part("decode"):
        cause = "Lent"
    elif waits < WAIT:
        cause = "Learning-bound" if held >= WAIT else "Lent" if run.lent else cause
    elif grading >= max(WAIT, held):
        cause = "Reward-bound"
    elif _memory_holds(live, run):
        cause = "KV memory"
    elif live is not None and live < TAIL * run.room:
        cause = "Long tail"
    elif held < WAIT:
        cause = "Generation-bound"
    if cause not in SENTENCES:
        return found
    evidence, usual = SENTENCES[cause]
    if advice is not None and cause in ("Generation-bound", "Learning-bound"):
        usual = advice
    shares = {
        "waits": waits,
        "held": held,
        "grading": grading,
        "publishing": publishing,
        "fetching": fetching,
    }
    numbers = {name: f"{share * 100:.0f} %" for name, share in shares.items()} | {
        "live": "" if live is None else f"{live:.1f}",
        "room": str(run.room),
        "lag": str(run.max_lag),
        "lent": str(run.lent),
    }
    numbers |= _of_memory(run)
    if run.max_lag is None:  # the lag has no bound to raise
        usual = usual.replace("raise --max-lag above {lag}", "use smaller batches")
    return Verdict(cause, evidence.format_map(numbers), usual.format_map(numbers))


def _together(found: Verdict, balance: Mapping[str, Shares], run: TextRun) -> Verdict:
    """Return the verdict on learners that generate."""
    sides = [one for one in balance.values() if one.side == "learning"]
    learners = add(sides)
    if not learners.worked or not all(one.begun for one in sides):
        return found
    if (preempted := learners.share("preempted")) >= WAIT:
        return Verdict(
            "CPU-bound",
            f"the learners wait {preempted * 100:.0f} % of the time for a core",
            "add cores, or stop the other processes that use them",
        )
    waits, publishing = learners.share("starved"), learners.part("publish")
    fetching, live = learners.part("fetch"), live_samples(balance, run)
    drawing = learners.part("decode") + learners.part("write") + learners.part("score")
    learning = max(learners.share("worked") - drawing - publishing - fetching, 0.0)
    cause: Cause = "Generation-bound" if drawing >= learning else "Learning-bound"
    if max(publishing, fetching) >= WAIT:
        cause = "Publish-bound"
    elif waits >= WAIT:
        cause = "Reward-bound"
    elif cause == "Generation-bound" and _memory_holds(live, run):
        cause = "KV memory"
    elif cause == "Generation-bound" and live is not None and live < TAIL * run.room:
        cause = "Long tail"
    evidence, advice = TOGETHER[cause]
    shares = {
        "drawing": drawing,
        "learning": learning,
        "waits": waits,
        "publishing": publishing,
        "fetching": fetching,
    }
    numbers = {name: f"{share * 100:.0f} %" for name, share in shares.items()}
    numbers |= {"live": "" if live is None else f"{live:.1f}", "room": str(run.room)}
    numbers |= _of_memory(run)
    return Verdict(cause, evidence.format_map(numbers), advice.format_map(numbers))


def _memory_holds(live: float | None, run: TextRun) -> bool:
    """Does the memory of keys and values keep samples from being drawn?"""
    full = run.kv_load is not None and run.kv_load >= FULL
    return full and live is not None and live < MOST * run.room


def _of_memory(run: TextRun) -> dict[str, str]:
    """The numbers of a memory of keys and values, for the sentences."""
    return {"load": f"{(run.kv_load or 0) * 100:.0f} %", "back": f"{run.given_back:.2f}"}


def live_samples(balance: Mapping[str, Shares], run: TextRun) -> float | None:
    """Return the mean number of samples that a generator draws in a step, its tokens over its
    steps; None if it is not known yet.
    """
    side = "learning" if run.together else "sampling"
    generators = add(one for one in balance.values() if one.side == side)
    steps = generators.counts.get("decode", 0.0)
    if not steps or not generators.done or run.length is None:
        return None
    return generators.done * run.group * run.length / steps
