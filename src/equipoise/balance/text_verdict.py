"""The cause that holds a run on text back, in the words of text: one table of sentences.

``verdict.py`` judges by which side waits. A run on text knows more: why generators wait, and how
many of their samples are still being drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.balance.shares import Shares, add
from equipoise.balance.verdict import WAIT, Cause, Verdict

# a generator draws fewer than this share of the samples that it could: most of them have ended
TAIL = 0.4
# causes that are the same for text, or say more than the table
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
        "the learner waits {waits} of the time for samples, and the generators draw all the while",
        "use more generators (--actors), a faster device or shorter completions",
    ),
    "Long tail": (
        "a generator draws {live} samples at once, of {room} that it could: the others have "
        "ended, and the learner waits {waits} of the time for the longest",
        "raise --max-lag above {lag}, so that later samples are drawn meanwhile, or lower "
        "--max-completion-length",
    ),
    "Reward-bound": (
        "the generators wait {judging} of the time for rewards, and the learner waits "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What a verdict has to know of a run on text besides the workers' shares."""

    group: int  # samples of a prompt
    length: float | None = None  # tokens of the last samples, mean; None: none has ended
    room: int  # samples that a generator may draw at once
    max_lag: int | None = 0
    lent: int = 0  # devices of the learners that generate


def text_verdict(
    found: Verdict, balance: Mapping[str, Shares], writing: Writing, *, advice: str | None = None
) -> Verdict:
    """Return the verdict on a run on text; ``found``: the verdict by which side waits.

    ``advice``: the model's (``remedies.py``), for causes that more or fewer generators help.
    """
    if found.cause in KEPT:
        return found
    generators = add(one for one in balance.values() if one.side == "sampling")
    learners = add(one for one in balance.values() if one.side == "learning")
    waits, held = learners.share("starved"), generators.share("blocked")
    judging, live = generators.share("starved"), at_once(balance, writing)
    publishing, fetching = learners.part("publish"), generators.part("fetch")
    cause = found.cause
    if max(publishing, fetching) >= WAIT:
        cause = "Publish-bound"
    elif waits < WAIT:
        cause = "Learning-bound" if held >= WAIT else "Lent" if writing.lent else cause
    elif judging >= max(WAIT, held):
        cause = "Reward-bound"
    elif live is not None and live < TAIL * writing.room:
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
        "judging": judging,
        "publishing": publishing,
        "fetching": fetching,
    }
    numbers = {name: f"{share * 100:.0f} %" for name, share in shares.items()} | {
        "live": "" if live is None else f"{live:.1f}",
        "room": str(writing.room),
        "lag": str(writing.max_lag),
        "lent": str(writing.lent),
    }
    if writing.max_lag is None:  # a lag cannot be raised that has no bound
        usual = usual.replace("raise --max-lag above {lag}", "use smaller batches")
    return Verdict(cause, evidence.format_map(numbers), usual.format_map(numbers))


def at_once(balance: Mapping[str, Shares], writing: Writing) -> float | None:
    """Return the samples that a generator draws at once, the mean over its steps: its tokens over
    its steps; None if that is not known yet.
    """
    generators = add(one for one in balance.values() if one.side == "sampling")
    steps = generators.counts.get("decode", 0.0)
    if not steps or not generators.done or writing.length is None:
        return None
    return generators.done * writing.group * writing.length / steps
