"""Graders of samples: by reward functions, by the partners of conversations, or by nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equipoise.actors import generator
from equipoise.actors.engine.conversing import Conversing
from equipoise.actors.engine.engine import Sampled
from equipoise.language.scoring.functions import Samples, spoken
from equipoise.language.scoring.scorer import Scorer
from equipoise.sources.prompts import Prompts
from equipoise.types import Prompt, Stop, Tokenizer
from equipoise.types.packed import begun

PARTNER = "partner"  # the name of a partner's reward, next to those of reward functions


class Ungraded:
    """A grader without rewards: for imitated samples, and for partners whose rewards are all."""

    def __init__(self) -> None:
        self._groups: dict[int, list[float | None]] = {}

    def submit(self, group: int, number: int, samples: Sequence[Sampled]) -> None:
        self._groups[group] = [None] * len(samples)

    def poll(self) -> Mapping[int, Sequence[float | None] | str]:
        groups, self._groups = self._groups, {}
        return groups

    def terms(self) -> Mapping[int, Mapping[str, Sequence[float | None]]]:
        return {}

    def fds(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None: ...


class ConversationGrader:
    """The grader of conversations: it adds their partners' rewards to those of another grader. A
    conversation whose partner failed has no reward.
    """

    def __init__(self, engine: Conversing, grader: generator.Grader) -> None:
        self._engine, self._grader = engine, grader
        self._own: dict[int, list[float | None]] = {}
        self._graded: dict[int, list[float | None]] = {}  # by the partner, of the last ``poll``

    def submit(self, group: int, number: int, samples: Sequence[Sampled]) -> None:
        self._own[group] = [
            None if one.conversation is None else one.conversation.reward for one in samples
        ]
        self._grader.submit(group, number, samples)

    def poll(self) -> Mapping[int, Sequence[float | None] | str]:
        found: dict[int, Sequence[float | None] | str] = {}
        self._graded = {}
        for group, rewards in self._grader.poll().items():
            own = self._graded[group] = self._own.pop(group)
            if isinstance(rewards, str):
                found[group] = rewards
            else:
                found[group] = [
                    None if mine is None else mine + (other or 0.0)
                    for mine, other in zip(own, rewards, strict=True)
                ]
        return found

    def terms(self) -> Mapping[int, Mapping[str, Sequence[float | None]]]:
        others = self._grader.terms()
        return {
            group: {PARTNER: own} | dict(others.get(group, {}))
            for group, own in self._graded.items()
        }

    def fds(self) -> tuple[int, ...]:
        return (*self._engine.fds(), *self._grader.fds())

    def close(self) -> None:
        self._engine.close()
        self._grader.close()


class Grader:
    """Grades samples as texts, by the functions that a run names, else by the task's own."""

    def __init__(self, scorer: Scorer, prompts: Prompts, tokenizer: Tokenizer) -> None:
        self._scorer, self._prompts, self._tokenizer = scorer, prompts, tokenizer
        self._terms: dict[int, Mapping[str, Sequence[float | None]]] = {}

    def submit(self, group: int, number: int, samples: Sequence[Sampled]) -> None:
        example, count = self._prompts.examples[number], len(samples)
        tokens = [one.token.tolist() for one in samples]
        self._scorer.submit(
            group,
            Samples(
                prompts=[begun(example.prompt)[0]] * count,
                completions=[_completion(example.prompt, one, self._tokenizer) for one in samples],
                completion_ids=tokens,
                ended=[one.stop in (Stop.EOS, Stop.TEXT) for one in samples],
                columns={name: [value] * count for name, value in example.columns.items()},
            ),
        )

    def poll(self) -> Mapping[int, Sequence[float | None] | str]:
        scored = self._scorer.poll()
        self._terms = {one.key: one.parts for one in scored}
        return {one.key: one.error if one.reward is None else one.reward for one in scored}

    def terms(self) -> Mapping[int, Mapping[str, Sequence[float | None]]]:
        return self._terms

    def fds(self) -> tuple[int, ...]:
        return self._scorer.fds()

    def close(self) -> None:
        self._scorer.close()


def _completion(prompt: Prompt, sample: Sampled, tokenizer: Tokenizer) -> Prompt:
    """Return a sample as reward functions get it: a text, or the messages after the prompt."""
    if sample.conversation is None:
        return spoken(prompt, tokenizer.decode(sample.token.tolist()))
    messages = sample.conversation.messages
    return "".join(str(one["content"]) for one in messages) if isinstance(prompt, str) else messages
