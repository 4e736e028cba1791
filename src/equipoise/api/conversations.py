"""Conversations of a trained model with the partner of its run: ``converse``."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from equipoise.actors.engine.engine import Engine, Sampled
from equipoise.actors.examiner import WAIT_S
from equipoise.actors.generator import Grader
from equipoise.api.options import check_flags
from equipoise.api.writing import TOGETHER, writer
from equipoise.language.turns.steps import PartnersFailed
from equipoise.nets.scored import Scores
from equipoise.programs.settings import at_least
from equipoise.record.directory import RunDirectory
from equipoise.record.mirror import local
from equipoise.seeds import derive_seed
from equipoise.sources import prompts
from equipoise.sources.text import texts_of
from equipoise.types import PROXY, Prompt, Stop, learning

__all__ = ["Conversation", "converse"]

MOST = 10_000  # conversations of a call
Terms = Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation of a model with a partner."""

    prompt: Prompt  # what the partner began with
    # the turns of the model ("assistant") and the answers, each with "role" and "content"
    messages: Sequence[Mapping[str, object]]
    reward: float | None  # the weighted sum that is learned from; None: the conversation failed
    rewards: Terms = field(default_factory=dict)  # of the partner and each function, unweighted
    turns: int = 0  # of the model
    tokens: int = 0  # that the model drew
    ended: bool = True  # did the partner end it, or did a limit cut it?
    failure: str = ""  # why it has no reward


def converse(
    directory: str | os.PathLike[str],
    conversations: int = 1,
    *,
    samples: int = 1,
    greedy: bool = False,
    seed: int = 0,
    limit: int | None = None,
    best: bool = False,
    trust: Sequence[str] = (),
) -> list[Conversation]:
    """Play conversations of a trained model with the partner of its run.

    Args:
        directory: A run, one of its checkpoints, or a URL.
        conversations: How many rows of the task are played: held-out rows if there are any. If
            there are not as many rows, they are played again.
        samples: Conversations of each row.
        greedy: Take the likeliest tokens, and do not draw them.
        seed: Seed of the choice of rows and of the tokens that are drawn.
        limit: At most this many tokens of a conversation (default: as in training).
        best: Take the weights of the best evaluation.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        A conversation for each sample of each row, in order: ``conversation.messages``. One whose
        partner failed has no reward, and its ``failure``.

    Raises:
        ValueError: The run has no partner, its module is missing, or the partner fails each time.

    Example:
        >>> [said] = eq.converse("runs/guess")  # doctest: +SKIP
        >>> said.reward, said.messages[0]["content"]  # doctest: +SKIP
        (1.0, 'd')
    """
    check_flags(greedy=greedy, best=best)
    count = at_least(conversations, "conversations")
    each, start = at_least(samples, "samples"), at_least(seed, "seed", 0)
    most = None if limit is None else at_least(limit, "limit")
    if count * each > MOST:
        raise ValueError(
            f"conversations: must be at most {MOST:,} with all samples, got {count * each:,}"
        )
    with local(directory) as here:
        # the task, its partner and the rewards are imported, so all names must be vouched for
        RunDirectory.open(here, trusted=trust)
        program, voice, net = writer(here, best=best, trust=trust)
    source = texts_of(program)
    if isinstance(net, Scores) or source.settings.task.startswith(PROXY):
        raise ValueError(_without(directory, program.name))
    text = prompts.again(source.settings, program.schedule.seed, voice)
    if not text.task.partner:
        raise ValueError(_without(directory, program.name))
    rows = text.held_out if len(text.held_out) else text.train
    if not len(rows):
        raise ValueError(f"{directory}: must have a row that the model has room for, got none")
    # numbers of its own for each seed, and not those of the training
    source = texts_of(replace(program, schedule=replace(program.schedule, seed=start)))
    order = np.random.default_rng(derive_seed(start, "conversations")).permutation(len(rows))
    numbers = [int(order[i % len(rows)]) for i in range(count)]
    policy, *_ = learning(program).values()
    most = text.spec.completion if most is None else most
    longest = max(map(len, rows.tokens))
    if (free := prompts.room(text.config, longest)) < most:
        raise ValueError(
            f"limit: must be at most {free:,} tokens, the model's context beside the longest "
            f"prompt, got {most:,}"
        )
    engine, grader = source.graded_engine(
        source.engine(
            text,
            policy.algorithm,
            net,
            greedy=greedy,
            rows=min(max(each, count * each), max(each, TOGETHER)),
            length=longest + most,
        ),
        text,
        rows,
        row=lambda group: numbers[group],
    )
    try:
        for group, number in enumerate(numbers):
            engine.submit(group, rows.token(number), each, limit=most)
        return _played(engine, grader, rows, numbers, each)
    except PartnersFailed as error:
        raise ValueError(f"{directory}: {error}") from error
    finally:
        grader.close()


def _without(directory: str | os.PathLike[str], name: str) -> str:
    return (
        f"{directory}: must be a run whose task has a partner (equipoise train guess --algorithm "
        f"grpo), got one of {name}, which has none; --prompt asks its model"
    )


def _played(
    engine: Engine,
    grader: Grader,
    rows: prompts.Prompts,
    numbers: Sequence[int],
    each: int,
) -> list[Conversation]:
    """Draw all conversations to their end, and have them graded."""
    drawn: dict[int, list[Sampled]] = {group: [] for group in range(len(numbers))}
    found: dict[int, list[Conversation]] = {}
    while len(found) < len(numbers):
        graded = grader.poll()
        terms = grader.terms()
        for group, rewards in graded.items():
            prompt = rows.examples[numbers[group]].prompt
            found[group] = [
                _told(prompt, one, rewards, terms.get(group, {})) for one in drawn.pop(group)
            ]
        samples = engine.step() if engine.live or engine.waiting else []
        for sample in samples:
            several = drawn[sample.group]
            several.append(sample)
            if len(several) == each:
                several.sort(key=lambda one: one.index)
                grader.submit(sample.group, numbers[sample.group], several)
        if not (graded or samples or engine.waiting) and engine.live == engine.away:
            select.select(grader.fds(), [], [], WAIT_S)
    return [one for group in range(len(numbers)) for one in found[group]]


def _told(
    prompt: Prompt,
    sample: Sampled,
    rewards: Sequence[float | None] | str,
    terms: Mapping[str, Sequence[float | None]],
) -> Conversation:
    """A finished sample as a conversation, with its part of the group's rewards."""
    conversation = sample.conversation
    if conversation is None:
        raise TypeError("engine: must draw conversations, got a sample of one turn")
    lost = rewards if isinstance(rewards, str) else ""
    return Conversation(
        prompt=prompt,
        messages=conversation.messages,
        reward=None if isinstance(rewards, str) else rewards[sample.index],
        rewards={name: values[sample.index] for name, values in terms.items()},
        turns=conversation.turns,
        tokens=sample.drawn,
        ended=sample.stop != Stop.LENGTH,
        failure=conversation.failure or lost,
    )
