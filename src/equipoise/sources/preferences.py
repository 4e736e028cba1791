"""Preferences in a file: completions that are given, in pairs, so that generators only recite."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from equipoise import phases
from equipoise.actors.engine.engine import Sampled
from equipoise.actors.engine.reciter import Recited, Reciter
from equipoise.actors.examiner import spread
from equipoise.algorithms._pairs import PairLearns, columns, right
from equipoise.algorithms.reward_model import RewardModel
from equipoise.envs.failures.capsule import Failures
from equipoise.experience.recorded.dataset import Dataset
from equipoise.language import adapters, preferences, stores, task_files, tasks
from equipoise.language.text_task import TextTask
from equipoise.language.tokenizers import CharTokenizer, with_end
from equipoise.nets.decoder import Decoder
from equipoise.seeds import derive_seed
from equipoise.sources.graders import Ungraded
from equipoise.sources.prompts import Given, Prompts, Text, changed, fitting, model_of
from equipoise.sources.references import Logp, References, packed_of, references
from equipoise.sources.text import Texts, Writer
from equipoise.types import Example, Program, RunSpec, TaskSource, TextSpec, Tokenizer, learning

PAIRS_A_TICK = 32  # of an evaluation


class Preferences(Texts):
    """Pairs of completions, or completions with labels, from the rows of a file."""

    def text(self) -> Text:
        return read(self.settings, self.program.schedule.seed, unpaired=self.algorithm.unpaired)

    @property
    def algorithm(self) -> PairLearns:
        (policy, *_) = learning(self.program).values()
        if not isinstance(policy.algorithm, PairLearns):
            raise TypeError(f"algorithm: must be one of pairs, got {type(policy.algorithm)}")
        return policy.algorithm

    def problems(self) -> list[str]:
        problems, source = super().problems(), self.settings
        if source.reward:
            name = type(self.algorithm).__name__
            problems.append(
                f"source.reward: must be empty with {name}, which learns from pairs, got "
                f"{source.reward!r}"
            )
        return problems

    def evaluable(self) -> tuple[Program, list[str]]:
        return self.program, []

    def spec(self, dataset: Dataset | None) -> RunSpec:
        phases.say(f"reading the pairs of {self.program.name}")
        text = self.text()
        self.references(text)  # before there is a run, in one process
        return RunSpec(env=text.spec, policies=dict.fromkeys(self.program.policies, text.spec))

    def references(self, text: Text) -> References | None:
        return references(self.program, text) if self.algorithm.reads_reference else None

    def reciter(self, text: Text) -> Reciter:
        """An engine of the file's completions, with the reference's log-probabilities."""
        found = self.references(text)
        recited = [
            [
                Recited(
                    np.asarray(token, np.int64),
                    np.zeros(len(token), np.float32)
                    if found is None
                    else found.train[number][index],
                )
                for index, token in enumerate(given.tokens)
            ]
            for number, given in enumerate(text.train.given)
        ]
        order = text.order(self.program.schedule.seed)
        return Reciter(lambda group, index: recited[order(group, 0)][index])

    def ungraded(self, text: Text) -> Labels:
        return Labels(text.train)

    def exam(
        self,
        policies: Mapping[str, Writer],
        *,
        episodes: int,
        version: int = 0,
        again: bool = False,
        failures: Failures | None = None,
    ) -> PairExam:
        """Held-out pairs: the return of a pair is 1 if the chosen one scores higher, else 0."""
        text = self.text()
        (name, *_), found = learning(self.program), self.references(text)
        prompts = text.held_out if len(text.held_out) else text.train
        asked = len(prompts) if again else episodes
        numbers = spread(asked, len(prompts)).tolist()
        logp = None
        if found is not None:
            logp = found.held_out if len(text.held_out) else found.train
        return PairExam(self.algorithm, name, policies[name].net, prompts, numbers, logp)

    @property
    def scores(self) -> bool:
        return isinstance(self.algorithm, RewardModel)

    def play_command(self) -> str:
        return "evaluate {}"

    def least_entropy(self, spec: TextSpec) -> float | None:
        return None


class Labels(Ungraded):
    """Gives each recited sample the number that its file has for it."""

    def __init__(self, prompts: Prompts) -> None:
        super().__init__()
        self._prompts = prompts

    def submit(self, group: int, number: int, samples: Sequence[Sampled]) -> None:
        self._groups[group] = list(self._prompts.given[number].value)


class PairExam:
    """An evaluation: the pairs that a policy orders as the file has them."""

    def __init__(
        self,
        algorithm: PairLearns,
        policy: str,
        net: Decoder,
        prompts: Prompts,
        numbers: Sequence[int],
        logp: Sequence[Sequence[Logp]] | None,
    ) -> None:
        """``logp``: of the reference, by prompt and sample; None: the algorithm reads none."""
        self._algorithm, self._policy, self._net = algorithm, policy, net
        self._prompts, self._numbers, self._logp = prompts, list(numbers), logp
        self._right, self._gaps = list[float](), list[float]()

    @property
    def returns(self) -> dict[str, list[float]]:
        return {self._policy: self._right}

    @property
    def info(self) -> dict[str, float | None]:
        """rewards/margins: the mean of how much higher the chosen completions score."""
        return {"rewards/margins": float(np.mean(self._gaps)) if self._gaps else None}

    @property
    def done(self) -> bool:
        return len(self._right) == len(self._numbers)

    @property
    def progress(self) -> tuple[int, int, int]:
        return len(self._right), len(self._numbers), len(self._right)

    def tick(self) -> None:
        begin = len(self._right)
        numbers = self._numbers[begin : begin + PAIRS_A_TICK]
        if not numbers:
            return
        score = scored(self._algorithm, self._net, self._prompts, numbers, self._logp)
        first, second = columns(score)
        label = torch.tensor([self._prompts.given[n].value[0] for n in numbers])
        gap = first if self._algorithm.unpaired else first - second
        self._right += right(gap, label).tolist()
        self._gaps += gap.tolist()

    def close(self) -> None: ...


@torch.no_grad()
def scored(
    algorithm: PairLearns,
    net: Decoder,
    prompts: Prompts,
    numbers: Sequence[int],
    logp: Sequence[Sequence[Logp]] | None = None,
) -> torch.Tensor:
    """The score [2 * numbers] of each completion of these prompts, on the CPU."""
    data = packed_of(prompts, numbers)
    if logp is not None:
        flat = data.logp.clone()
        flat[data.chosen] = torch.from_numpy(
            np.concatenate([np.concatenate(logp[n]) for n in numbers])
        )
        data = replace(data, logp=flat)
    return algorithm.score(net, data).float().cpu()


# ------------------------------------------------------------------------------------ from the file


def read(source: TaskSource, seed: int, *, unpaired: bool) -> Text:
    """Read the pairs of a file as tokens of a model; ValueError if they do not go together.

    A completion ends with the tokenizer's end, once. Rows that do not fit are left out whole, and
    counted in the notes. The result is kept until the file changes.
    """
    return _read(source, seed, unpaired, changed(source))


@dataclass(frozen=True, slots=True)
class _Limits:
    """The most tokens: of a prompt, of a completion (0: no limit), and of both."""

    prompt: int
    completion: int
    positions: int

    def holds(self, prompt: int, completion: int) -> bool:
        return (
            completion <= (self.completion or completion) and prompt + completion <= self.positions
        )


@lru_cache(4)
def _read(source: TaskSource, seed: int, unpaired: bool, _changed: int) -> Text:
    of_rows = source.task.endswith(task_files.SUFFIXES) or stores.is_store(source.task)
    if not of_rows and (":" not in source.task or source.task.startswith(tasks.REASONING)):
        raise ValueError(
            "source.task: must be a file of pairs (FILE.jsonl or FILE.parquet), a store of "
            "preferences (its folder), or a "
            f"module:callable that returns rows of pairs, got {source.task!r}"
        )
    arguments = tasks.arguments(source.arguments)
    task = tasks.make(source.task, seed=seed, arguments=arguments, rows=preferences.examples)
    if unpaired:
        task = replace(
            task,
            train=preferences.unpaired(task.train),
            held_out=preferences.unpaired(task.held_out),
        )
    elif "label" in task.train[0].columns:
        raise ValueError(
            f"source.task={source.task}: must have rows of pairs, got rows with labels, which "
            "--algorithm dpo --set algorithm.loss_type=kto learns from"
        )
    elif all(one.columns["tie"] for one in task.train):
        raise ValueError(
            f"source.task={source.task}: must have pairs of which one completion is better, got "
            f"{len(task.train):,} ties to learn from; add other pairs"
        )
    model, tokenizer = model_of(source, task)
    limits = _Limits(
        source.prompt_tokens, source.completion_tokens, model.config.max_position_embeddings
    )
    notes = [*task.notes, *model.notes]
    template = tasks.arguments(source.chat_template_kwargs, "chat_template_kwargs")
    parts = [
        _given(task, some, tokenizer, limits, template, notes)
        for some in (task.train, task.held_out)
    ]
    if not len(parts[0]):
        raise ValueError(
            f"source.task={source.task}: must have rows that fit into the model's "
            f"{limits.positions:,} positions, got none among {len(task.train):,}; a model with "
            "more positions, or a larger --max-completion-length, has room"
        )
    train, held_out = parts
    if unpaired:
        mixed = derive_seed(seed, "mismatched")
        train = _mismatched(train, limits, mixed, learned=True)
        held_out = _mismatched(held_out, limits, mixed, learned=False)
    both = [*zip(train.tokens, train.given), *zip(held_out.tokens, held_out.given)]
    spec = TextSpec(
        model=asdict(model.config),
        weights=str(model.directory or ""),
        lora=adapters.settings_of(source),
        adapter=source.adapter,
        eos=tuple(tokenizer.eos),
        prompt=max(len(prompt) for prompt, _ in both),
        completion=max(len(one) for _, given in both for one in given.tokens),
        notes=tuple(notes),
        sha256=_digest(train, held_out),
        alphabet=tokenizer.alphabet if isinstance(tokenizer, CharTokenizer) else "",
        chat=not any(isinstance(one.prompt, str) for one in task.train),
    )
    return Text(task, tokenizer, spec, model.config, train, held_out)


def _given(
    task: TextTask,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    limits: _Limits,
    template: Mapping[str, object],
    notes: list[str],
) -> Prompts:
    """The rows that fit, as tokens; how many do not, and the first of these, is added to
    ``notes``.
    """
    asked = fitting(examples, tokenizer, limits.prompt, template, notes)
    kept, long = list[tuple[Example, Sequence[int], Given]](), list[str]()
    for example, prompt in zip(asked.examples, asked.tokens, strict=True):
        columns = example.columns
        texts = [example.completion, *([str(columns["rejected"])] if "rejected" in columns else [])]
        try:
            tokens = [with_end(tokenizer, tokenizer.encode(one)) for one in texts]
        except ValueError as error:
            raise ValueError(f"{example.at}: {error}") from error
        if tokens[0] == tokens[-1] and len(tokens) > 1:
            raise ValueError(
                f"{example.at}: must be two different completions, got two with the same tokens; "
                "leave the row out"
            )
        if any(len(one) < 2 for one in tokens):
            raise ValueError(f"{example.at}: must have completions of a token, got one without")
        if all(limits.holds(len(prompt), len(one)) for one in tokens):
            kept.append((example, prompt, Given(tokens, _values(columns))))
        else:
            long.append(f"{example.at} of {max(map(len, tokens)):,} tokens")
    if long:
        notes.append(
            f"warning: {len(long):,} of {len(examples):,} rows of {task.name} have a completion "
            f"that is too long, and are left out, the first {long[0]}, the end included; "
            "--max-completion-length, or a model with more positions, has room for them"
        )
    return Prompts([one for one, _, _ in kept], [p for _, p, _ in kept], [g for _, _, g in kept])


def _values(columns: Mapping[str, object]) -> list[float]:
    """The numbers of a group's samples (``algorithms/_pairs.py``)."""
    if "label" in columns:
        return [float(bool(columns["label"])), 0.0]
    margin, share = columns["margin"], columns["share"]
    assert isinstance(margin, float)
    assert isinstance(share, float)
    return [share, margin]


def _mismatched(part: Prompts, limits: _Limits, seed: int, *, learned: bool) -> Prompts:
    """The rows with, as a second sample, the completion of a row with another prompt."""
    order = np.random.default_rng(seed).permutation(len(part)).tolist()
    given = list(part.given)
    for place, number in enumerate(order):
        prompt = part.tokens[number]
        others = (order[(place + step) % len(order)] for step in range(1, len(order)))
        fits = (
            part.given[one].tokens[0]
            for one in others
            if part.tokens[one] != prompt
            and limits.holds(len(prompt), len(part.given[one].tokens[0]))
        )
        # a completion of its own where there is no other: nothing reads that of a held-out row
        if (found := next(fits, None if learned else given[number].tokens[0])) is None:
            raise ValueError(
                f"{part.examples[number].at}: must have rows with other prompts beside it, whose "
                "completions fit, got none; add rows"
            )
        given[number] = Given([*given[number].tokens, found], given[number].value)
    return replace(part, given=given)


def _digest(*parts: Prompts) -> str:
    """The hash of the tokens and numbers of all rows, in their order."""
    said = [
        [list(tokens), [list(one) for one in given.tokens], list(given.value)]
        for part in parts
        for tokens, given in zip(part.tokens, part.given, strict=True)
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
