"""What a run on text works with, made of its Program: prompts as tokens, an engine, and a judge of what it writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import phases
from equipoise.actors.engine.engine import Sampled
from equipoise.actors.engine.reciter import Reciter
from equipoise.actors.engine.torch_engine import TorchEngine
from equipoise.language import models, tasks
from equipoise.language.scoring.functions import Samples, check_columns, functions, load, spoken
from equipoise.language.scoring.pool import ProcessScorer
from equipoise.language.scoring.scorer import HereScorer, Scorer
from equipoise.language.tokenizers import CONFIG, TOKENIZER, CharTokenizer, HubTokenizer, check_fits
from equipoise.nets.decoder import DecoderConfig
from equipoise.seeds import derive_seed
from equipoise.types import Example, Learns, Program, RunSpec, Stop, Task, TaskSource, TextSpec, Tokenizer, learning
from equipoise.types.packed import begun

KEPT = "tokenizer"  # the directory in a run's, with the files of its tokenizer
COMPLETION = 256  # tokens, where nobody says how many


@dataclass(frozen=True, slots=True)
class Prompts:
    """Examples as tokens."""

    examples: Sequence[Example]
    tokens: Sequence[Sequence[int]]

    def __len__(self) -> int:
        return len(self.examples)

    def token(self, number: int) -> Sequence[int]:
        return self.tokens[number]


@dataclass(frozen=True, slots=True)
class Voice:
    """The facts and the tokenizer of a trained model, from a run's own files: enough to ask it or to export it."""

    tokenizer: Tokenizer
    spec: TextSpec
    config: DecoderConfig


def keep(program: Program, directory: Path) -> None:
    """Write the tokenizer of a run on text into its directory: ``voice`` reads it there when the model has moved."""
    if not isinstance(program.source, TaskSource) or (place := directory / KEPT).is_dir():
        return
    if not (text := read(program.source, program.schedule.seed)).spec.alphabet:
        place.mkdir()
        text.tokenizer.save(place)


def voice(spec: TextSpec, directory: Path) -> Voice:
    """The model of a run by the run's own files: its ``spec``, and the tokenizer in its ``directory``."""
    tokenizer: Tokenizer = CharTokenizer(spec.alphabet) if spec.alphabet else HubTokenizer(directory / KEPT)
    return Voice(tokenizer, spec, DecoderConfig(**spec.model))


@dataclass(frozen=True, slots=True)
class Text:
    """A task beside a model's tokenizer."""

    task: Task
    tokenizer: Tokenizer
    spec: TextSpec
    config: DecoderConfig
    train: Prompts
    held_out: Prompts

    def order(self, seed: int) -> Callable[[int, int], int]:
        """The prompt of each group of a run: all of them in a new order, again and again.

        The second number says how many groups were dropped in that one's place: there the orders are others.
        """

        @lru_cache(8)
        def shuffled(turn: int, refills: int) -> Any:
            name = f"prompts {turn}" + (f", refill {refills}" if refills else "")
            return np.random.default_rng(derive_seed(seed, name)).permutation(len(self.train))

        return lambda group, refills: int(shuffled(group // len(self.train), refills)[group % len(self.train)])


def read(source: TaskSource, seed: int) -> Text:
    """Read a task and the facts about its model; ValueError where they do not go together.

    What was read is kept, unless its file has changed since.
    """
    files = [Path(source.task), *(Path(one.partition("=")[2].strip()) for one in source.arguments)]
    return _read(source, seed, max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0))


@lru_cache(4)
def _read(source: TaskSource, seed: int, _changed: int) -> Text:
    task = tasks.make(source.task, seed=seed, arguments=tasks.arguments(source.arguments))
    if task.tokenizer is None and models.is_shape(source.model):
        raise ValueError(
            f"--model {source.model}: expected a model with a tokenizer and a chat template, since prompts of {source.task} "
            "are messages, got a shape to begin at random; name a directory or a hub id of a chat model"
        )
    model, tokenizer = models.find(source.model, None if task.tokenizer is None else task.tokenizer.size), task.tokenizer
    if model.directory is not None:
        has = any((model.directory / name).exists() for name in (TOKENIZER, CONFIG))
        tokenizer = HubTokenizer(model.directory) if has else None
    if tokenizer is None:
        raise ValueError(f"source.model: expected one with a tokenizer, got {source.model}")
    check_fits(tokenizer, model.config.vocab_size, f"source.model={source.model}")
    completion = source.completion_tokens or task.completion or COMPLETION
    most, notes = min(source.prompt_tokens, room(model.config, completion)), list(getattr(task, "notes", ()))
    given = tasks.arguments(source.chat_template_kwargs, "chat_template_kwargs")
    train, held_out = (_tokens(some, tokenizer, most, given, notes) for some in (task.train, task.held_out))
    if not len(train):
        raise ValueError(
            f"source.task={source.task}: expected prompts of at most {most} tokens, got none among {len(task.train)}; "
            f"source.prompt_tokens, or a shorter --max-completion-length, leaves more room, up to the model's "
            f"{model.config.max_position_embeddings} positions"
        )
    longest = max(len(one) for one in (*train.tokens, *held_out.tokens))
    spec = TextSpec(
        model=asdict(model.config), weights=str(model.directory or ""), eos=tuple(tokenizer.eos), prompt=longest,
        completion=completion, notes=tuple(notes), sha256=_digest(train, held_out),
        alphabet=getattr(tokenizer, "alphabet", ""), chat=not any(isinstance(one.prompt, str) for one in train.examples),
    )  # fmt: skip
    return Text(task, tokenizer, spec, model.config, train, held_out)


def spec_of(program: Program) -> RunSpec:
    """Read the task of a program."""
    phases.say(f"reading the task {program.name}")
    source: Any = program.source
    text = read(source, program.schedule.seed)
    reads = all(policy.algorithm.reads_rewards for policy in learning(program).values())
    named = source.reward or text.task.reward
    if not named and (reads or program.evaluation.episodes):
        less = "" if reads else ", or --evaluate-episodes 0"
        raise ValueError(f"reward: expected module:function[,...]{less}, since {source.task} has none of its own, got none")
    for one in functions(named, source.reward_weights) if named and (reads or program.evaluation.episodes) else ():
        check_columns(one.name, load(one.name), text.train.examples[0].columns)  # refused before there is a directory
    if not reads:
        reciter(program, text)  # also refused before
    return RunSpec(env=text.spec, policies=dict.fromkeys(program.policies, text.spec))


def unjudged(program: Program) -> bool:
    """Would evaluations of this program have no reward, which its algorithm does not need? (Its task is read for that.)"""
    source = program.source
    if not isinstance(source, TaskSource) or source.reward or not program.evaluation.episodes:
        return False
    if any(policy.algorithm.reads_rewards for policy in learning(program).values()):
        return False
    asked = program.evaluation.every is not None or program.evaluation.stop_at is not None
    return not asked and not read(source, program.schedule.seed).task.reward


def _digest(*prompts: Prompts) -> str:
    """The hash of prompts, as tokens and in their order, and of what their rewards are told."""
    said = []
    for one in prompts:
        for tokens, example in zip(one.tokens, one.examples, strict=True):
            said.append([tokens, example.completion, dict(example.columns)])
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def _tokens(
    examples: Sequence[Example], tokenizer: Tokenizer, room: int, template: Mapping[str, Any], notes: list[str]
) -> Prompts:
    """The prompts that fit; how many do not, and the first of these, is added to ``notes``."""
    kept, long = list[tuple[Example, Sequence[int]]](), list[str]()
    for number, one in enumerate(examples):
        where = one.at or f"prompt {number + 1}"
        try:
            tokens = tokenizer.prompt(one.prompt, {**template, **one.template})
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        if not tokens:
            raise ValueError(f"{where}: prompt: expected a text of at least one token, got {one.prompt!r:.80}, which has none")
        if len(tokens) <= room:
            kept.append((one, tokens))
        else:
            long.append(f"{where} of {len(tokens):,} tokens")
    if long:
        notes.append(
            f"warning: {len(long):,} of {len(examples):,} prompts have more than {room:,} tokens and are left out, the first "
            f"{long[0]} (source.prompt_tokens, or a shorter --max-completion-length, leaves more room)"
        )
    return Prompts([one for one, _ in kept], [tokens for _, tokens in kept])


def room(config: DecoderConfig, completion: int) -> int:
    """Tokens that a prompt may have beside a completion of so many."""
    return config.max_position_embeddings - completion


def at_once(program: Program) -> int:
    """The most samples that a generator writes side by side: ``source.samples_at_once``, or as many as can be open."""
    source, place, lag = program.source, program.placement, program.placement.max_lag
    assert isinstance(source, TaskSource)
    batch = max(policy.batch for policy in learning(program).values())
    most = source.samples_at_once if lag is None else min(source.samples_at_once, (lag + 1) * batch)
    return max(most, place.group_envs)


def engine(
    program: Program, text: Text | Voice, algorithm: Learns, net: Any, *, greedy: bool = False, rows: int = 0, length: int = 0,
    device: str = "cpu",
) -> TorchEngine:  # fmt: skip
    """An engine for a policy's network, which is the engine's from now on.

    ``rows``: samples at once, and ``length`` of a prompt with its completion, at most; 0 for those of the run.
    """
    source: Any = program.source
    return TorchEngine(
        net.to(device), rows=rows or at_once(program),
        length=length or text.spec.prompt + text.spec.completion, eos=text.spec.eos,
        seed=derive_seed(program.schedule.seed, "tokens"), temperature=getattr(algorithm, "temperature", 1.0), greedy=greedy,
        on_update=source.on_update, stop=source.stop, decode=text.tokenizer.decode,
    )  # fmt: skip


def reciter(program: Program, text: Text) -> Reciter:
    """An engine that gives the task's own completions; ValueError where a prompt has none, or one that is too long."""
    end, found = text.spec.eos[0], list[list[int]]()
    for number, example in enumerate(text.train.examples):
        where = f"source.task={text.task.name}, prompt {number}"
        if not example.completion:
            raise ValueError(f"{where}: expected a completion to imitate (a column of that name), got none")
        found.append([*text.tokenizer.encode(example.completion), end])
        if len(found[-1]) > text.spec.completion:
            raise ValueError(
                f"{where}: expected a completion of at most {text.spec.completion} tokens, the end included, got "
                f"{len(found[-1])}; --max-completion-length {len(found[-1])} has room for it"
            )
    order = text.order(program.schedule.seed)
    return Reciter(lambda group: found[order(group, 0)])


class Unjudged:
    """The judge of imitated samples, which have no rewards."""

    def __init__(self) -> None:
        self._groups: dict[int, list[float | None]] = {}

    def submit(self, group: int, number: int, samples: Sequence[Sampled]) -> None:
        self._groups[group] = [None] * len(samples)

    def poll(self) -> Mapping[int, Sequence[float | None] | str]:
        groups, self._groups = self._groups, {}
        return groups

    def fds(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None: ...


class Judge:
    """Judges samples as texts, by the functions that a run names, else by the task's own."""

    def __init__(self, scorer: Scorer, prompts: Prompts, tokenizer: Tokenizer) -> None:
        self._scorer, self._prompts, self._tokenizer = scorer, prompts, tokenizer

    def submit(self, group: int, number: int, samples: Sequence[Sampled]) -> None:
        example, count = self._prompts.examples[number], len(samples)
        tokens = [one.token.tolist() for one in samples]
        self._scorer.submit(
            group,
            Samples(
                prompts=[begun(example.prompt)[0]] * count,
                completions=[spoken(example.prompt, self._tokenizer.decode(one)) for one in tokens],
                completion_ids=tokens, ended=[one.stop in (Stop.EOS, Stop.TEXT) for one in samples],
                columns={name: [value] * count for name, value in example.columns.items()},
            ),
        )  # fmt: skip

    def poll(self) -> Mapping[int, Sequence[float | None] | str]:
        return {one.key: one.error if one.reward is None else one.reward for one in self._scorer.poll()}

    def fds(self) -> tuple[int, ...]:
        return self._scorer.fds()

    def close(self) -> None:
        self._scorer.close()


def full(program: Program) -> float:
    """The reward of an answer that nothing is wrong with: 1 of each function, by its weight."""
    source: Any = program.source
    return sum(source.reward_weights) if source.reward_weights else float(source.reward.count(",") + 1)


def judge(program: Program, text: Text, prompts: Prompts, capsules: str | None) -> Judge:
    source: Any = program.source
    if not (names := source.reward or text.task.reward):
        raise ValueError(
            f"reward: expected a run with a reward, or a task that has one, got none; {program.name} has none of its own"
        )
    named = functions(names, source.reward_weights)
    where = None if capsules is None else Path(capsules)
    if text.task.quick and not source.reward:
        return Judge(HereScorer(named, capsules=where), prompts, text.tokenizer)
    return Judge(ProcessScorer(named, deadline_s=source.reward_deadline_s, capsules=where), prompts, text.tokenizer)
