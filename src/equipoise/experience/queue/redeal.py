"""A run's queues dealt again: the run goes on with another number of learners than it was saved
with.

Blocks that were complete and not sampled are kept if the law of the queue allows: a block may be
learned from at the version that it was written for, or before, never later. The other blocks are
dropped, and count as dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.tokens import FREE, FULL
from equipoise.types import Array, Tree


def dealt_anew(
    states: Sequence[Tree], old: Plan, new: Plan, learners: int
) -> tuple[list[Tree], int]:
    """The states of ``learners`` queues from the states of the former learners -> them, and the
    blocks that were dropped.

    ``old``, ``new``: the plan of each queue before and from now on.
    """
    sampled = sum(int(state["sampled"][0]) for state in states)
    if new.ordered:  # all learners go on with the same version
        version = min(int(state["next"][0]) for state in states) // old.per_batch
        begins = [version * new.per_batch] * learners
    else:
        begins = [
            sampled // learners + (learner < sampled % learners) for learner in range(learners)
        ]
    dropped, queues, issued = 0, list[Tree](), _unwritten(states, old)
    for learner, begin in enumerate(begins):
        sequences = np.arange(begin, begin + new.blocks)
        word, blocks, taken = sequences * 4 + FREE, dict[str, Tree](), 0
        for deadline, block, prompts in _complete(states, old, learner, learners):
            late = new.ordered and (begin + taken) // new.per_batch > deadline
            if late or taken == new.blocks:
                dropped += 1
                issued.append(prompts)
                continue
            word[taken] += FULL - FREE
            blocks[str((begin + taken) % new.blocks)] = block
            taken += 1
        ready = sequences[:taken] if not new.ordered else sequences[:0]
        queues.append(
            {
                "word": _placed(word, begin),
                "sampled": np.array([begin]),
                "dropped": np.zeros(1, np.int64),
                "restarted": np.zeros(new.actors, np.int64),
                "next": np.array([begin if new.ordered else 0]),
                "ready": ready,
                "blocks": blocks,
            }
        )
    lost = (
        sum(int(state["dropped"][0] + state["restarted"].sum()) for state in states)
        + sampled
        - sum(begins)
    )
    queues[0]["dropped"][0] = lost + dropped
    if new.issues:
        _issue_again(queues, issued, new)
    return queues, dropped


def _unwritten(states: Sequence[Tree], old: Plan) -> list[Array]:
    """The prompts that were issued for blocks that nobody has written, in the order of blocks."""
    if not old.issues:
        return []
    found = [
        (int(word) // 4, learner, state["issued"][place])
        for learner, state in enumerate(states)
        for place, word in enumerate(state["word"])
        if word % 4 == FREE and state["issued"][place].any()
    ]
    found.sort(key=lambda one: one[:2])
    return [prompts for _, _, prompts in found]


def _issue_again(queues: Sequence[Tree], issued: Sequence[Array], new: Plan) -> None:
    """Issue prompts of blocks that are unwritten or dropped for the blocks that are free now."""
    for queue in queues:
        queue["issued"] = np.zeros((new.blocks, new.issues), np.int64)
    free = [
        (int(word) // 4, learner, place)
        for learner, queue in enumerate(queues)
        for place, word in enumerate(queue["word"])
        if word % 4 == FREE
    ]
    for (_, learner, place), prompts in zip(sorted(free), issued, strict=False):
        queues[learner]["issued"][place] = prompts


def _complete(
    states: Sequence[Tree], old: Plan, learner: int, learners: int
) -> list[tuple[int, Tree, Array]]:
    """The blocks that were complete and not sampled and are this learner's now, in order, each with
    the last version for it and the prompts that were issued for it.
    """
    found, none = [], np.zeros((old.blocks, 0), np.int64)
    for before, state in enumerate(states):
        turns = {int(sequence): turn for turn, sequence in enumerate(state["ready"])}
        for place, block in state["blocks"].items():
            sequence = int(state["word"][int(place)]) // 4
            deadline = sequence // old.per_batch
            number = int(_stream(block)) // old.span
            if number % learners == learner:
                order = deadline if old.ordered else turns[sequence], sequence, before
                found.append((order, block, state.get("issued", none)[int(place)]))
    found.sort(key=lambda one: one[0])
    return [(order[0], block, prompts) for order, block, prompts in found]


def _stream(block: Tree) -> Array:
    """The number of a block's first stream."""
    one = next(iter(block.values()))
    return one["context"]["stream"][0]


def _placed(word: Array, begin: int) -> Array:
    """Words by sequence, from ``begin`` on, as words by place."""
    return np.roll(word, begin % len(word))
