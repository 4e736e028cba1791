"""A task as tokens: its prompts, with the tokenizer and the facts of a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.feedback.database import FILE
from equipoise.language import adapters, architectures, models, stores, tasks
from equipoise.language.scoring.functions import functions
from equipoise.language.text_task import TextTask
from equipoise.language.tokenizers import CONFIG, TOKENIZER, CharTokenizer, HubTokenizer, check_fits
from equipoise.nets.decoder import DecoderConfig
from equipoise.nets.hub_decoder import HubConfig
from equipoise.seeds import derive_seed
from equipoise.types import Example, Task, TaskSource, TextSpec, Tokenizer

KEPT = "tokenizer"  # the directory in a run's, with the files of its tokenizer
COMPLETION = 256  # tokens, if no setting gives the number
TURNS = 8  # of a conversation, if neither a setting nor the task gives the number


@dataclass(frozen=True, slots=True)
class Given:
    """Completions of a prompt that are learned from, one for each sample of its group."""

    tokens: Sequence[Sequence[int]]  # the end included
    value: Sequence[float]  # see ``algorithms/_pairs.py``


@dataclass(frozen=True, slots=True)
class Prompts:
    """Examples as tokens."""

    examples: Sequence[Example]
    tokens: Sequence[Sequence[int]]
    given: Sequence[Given] = ()  # of each, if completions are learned from
    # of each, the tokens that its samples begin with, if the history is rendered: what the chat
    # template writes before a turn and takes away later
    begun: Sequence[Sequence[int]] = ()

    def __len__(self) -> int:
        return len(self.examples)

    def token(self, number: int) -> Sequence[int]:
        return self.tokens[number]


@dataclass(frozen=True, slots=True)
class Voice:
    """A trained model's facts and tokenizer, enough to ask or export it."""

    tokenizer: Tokenizer
    spec: TextSpec
    config: DecoderConfig | HubConfig


def voice(spec: TextSpec, directory: Path) -> Voice:
    """The model of a run: its ``spec``, and the tokenizer in its ``directory``."""
    tokenizer: Tokenizer = (
        CharTokenizer(spec.alphabet) if spec.alphabet else HubTokenizer(directory / KEPT)
    )
    return Voice(tokenizer, spec, architectures.config_of(spec.model))


@dataclass(frozen=True, slots=True)
class Text:
    """A task with a model's tokenizer."""

    task: Task
    tokenizer: Tokenizer
    spec: TextSpec
    config: DecoderConfig | HubConfig
    train: Prompts
    held_out: Prompts

    def order(self, seed: int) -> Order:
        return Order(len(self.train), seed)


class Order:
    """The prompt of each group of a run: all of them in a new order, again and again.

    The second number, of groups dropped in that place, gives another order.
    """

    def __init__(self, prompts: int, seed: int) -> None:
        self._prompts, self._seed = prompts, seed
        self._shuffled = lru_cache(8)(self._shuffle)

    def _shuffle(self, turn: int, refills: int) -> NDArray[np.int64]:
        name = f"prompts {turn}" + (f", refill {refills}" if refills else "")
        return np.random.default_rng(derive_seed(self._seed, name)).permutation(self._prompts)

    def __call__(self, group: int, refills: int) -> int:
        turn, place = divmod(group, self._prompts)
        return int(self._shuffled(turn, refills)[place])

    def span(self, first: int, count: int, series: int) -> NDArray[np.int64]:
        """The prompts [count] of the groups from ``first`` on, dropped groups: ``series``."""
        turn, begin = divmod(first, self._prompts)
        found, size = list[NDArray[np.int64]](), 0
        while size < count:
            part = self._shuffled(turn, series)[begin : begin + count - size]
            found.append(part)
            turn, begin, size = turn + 1, 0, size + len(part)
        return np.concatenate(found)


def read(source: TaskSource, seed: int) -> Text:
    """Read a task and the facts about its model; ValueError if they do not go together.

    The result is kept until its file changes.
    """
    return _read(source, seed, changed(source))


def again(source: TaskSource, seed: int, trained: Voice) -> Text:
    """Read a task again for a trained model, whose tokenizer and facts are the run's own.

    The model that the run began with may be gone, and the task's rows may be others.
    """
    task = _task(source, seed)
    turns, parts = _talk(source, task)
    spec = replace(trained.spec, turns=turns, parts=parts)
    most = room(trained.config, spec.completion)
    given = tasks.arguments(source.chat_template_kwargs, "chat_template_kwargs")
    train, held_out = (
        fitting(some, trained.tokenizer, most, given, [], parts=parts)
        for some in (task.train, task.held_out)
    )
    return Text(task, trained.tokenizer, spec, trained.config, train, held_out)


def changed(source: TaskSource) -> int:
    """The time of the last change of a task's files."""
    files = [Path(source.task), *(Path(one.partition("=")[2].strip()) for one in source.arguments)]
    if stores.is_store(source.task):
        files += [Path(source.task) / FILE, Path(source.task) / f"{FILE}-wal"]
    return max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)


@lru_cache(4)
def _read(source: TaskSource, seed: int, _changed: int) -> Text:
    task = _task(source, seed)
    model, tokenizer = model_of(source, task)
    completion = source.completion_tokens or task.completion or COMPLETION
    turns, parts = _talk(source, task)
    most, notes = (
        min(source.prompt_tokens, room(model.config, completion)),
        [*task.notes, *model.notes],
    )
    given = tasks.arguments(source.chat_template_kwargs, "chat_template_kwargs")
    train, held_out = (
        fitting(some, tokenizer, most, given, notes, parts=parts)
        for some in (task.train, task.held_out)
    )
    if not len(train):
        raise ValueError(
            f"source.task={source.task}: expected prompts of at most {most} tokens, got none among "
            f"{len(task.train)}; "
            "source.prompt_tokens, or a shorter --max-completion-length, leaves more room, up to "
            "the model's "
            f"{model.config.max_position_embeddings} positions"
        )
    if task.partner and not parts:
        first = train.examples[0]
        tokenizer.check_appends(first.prompt, {**given, **first.template})
    tail = max(map(len, (*train.begun, *held_out.begun)), default=0)
    if tail >= completion:
        raise ValueError(
            f"source.completion_tokens: must be more than {tail}, the tokens with which the chat "
            f"template begins a turn and which count for a sample (source.history=render), got "
            f"{completion}"
        )
    longest = max(len(one) for one in (*train.tokens, *held_out.tokens))
    spec = TextSpec(
        model=asdict(model.config),
        weights=str(model.directory or ""),
        lora=adapters.settings_of(source),
        adapter=source.adapter,
        eos=tuple(tokenizer.eos),
        prompt=longest,
        completion=completion,
        turns=turns,
        parts=parts,
        batch_invariant=source.batch_invariant,
        notes=tuple(notes),
        prompts=len(train),
        full=full_reward(source, task),
        sha256=_digest(train, held_out, task.partner),
        alphabet=tokenizer.alphabet if isinstance(tokenizer, CharTokenizer) else "",
        chat=not any(isinstance(one.prompt, str) for one in train.examples),
    )
    return Text(task, tokenizer, spec, model.config, train, held_out)


def _task(source: TaskSource, seed: int) -> TextTask:
    return tasks.make(
        source.task,
        seed=seed,
        arguments=tasks.arguments(source.arguments),
        deadline_s=source.step_deadline_s,
    )


def _talk(source: TaskSource, task: Task) -> tuple[int, bool]:
    """The most turns of a conversation, 0 without a partner, and whether samples have parts."""
    if not task.partner:
        return 0, False
    return source.turns or task.turns or TURNS, source.history == "render"


def model_of(source: TaskSource, task: Task) -> tuple[models.Model, Tokenizer]:
    """The model that a source names, and the tokenizer of its directory or of the task."""
    if task.tokenizer is None and models.is_shape(source.model):
        raise ValueError(
            f"--model {source.model}: expected a model with a tokenizer and a chat template, since "
            f"prompts of {source.task} "
            "are messages, got a shape to begin at random; name a directory or a hub id of a chat "
            "model"
        )
    model = models.find(source.model, None if task.tokenizer is None else task.tokenizer.size)
    tokenizer = task.tokenizer
    if model.directory is not None:
        has = any((model.directory / name).exists() for name in (TOKENIZER, CONFIG))
        tokenizer = HubTokenizer(model.directory) if has else None
    if tokenizer is None:
        raise ValueError(f"source.model: expected one with a tokenizer, got {source.model}")
    check_fits(tokenizer, model.config.vocab_size, f"source.model={source.model}")
    return model, tokenizer


def full_reward(source: TaskSource, task: Task) -> float:
    """The reward of a sample that passes: the rewards' positive weights, and 1 from a partner."""
    named = source.reward or task.reward
    weights = [one.weight for one in functions(named, source.reward_weights)] if named else []
    return sum(one for one in weights if one > 0) + bool(task.partner) or 1.0


def _digest(train: Prompts, held_out: Prompts, partner: str) -> str:
    """The hash of prompts, as tokens and in their order, of their rewards' arguments, and of a
    partner's name.
    """
    said: list[object] = [partner] if partner else []
    for one in (train, held_out):
        for tokens, example in zip(one.tokens, one.examples, strict=True):
            said.append([tokens, example.completion, dict(example.columns)])
            if example.turns:
                said.append([*example.turns])
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def fitting(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    room: int,
    template: Mapping[str, object],
    notes: list[str],
    *,
    parts: bool = False,
) -> Prompts:
    """The prompts that fit; how many do not, and the first of these, is added to ``notes``.

    ``parts``: the history is rendered, so that only what a chat template keeps is the prompt.
    """
    kept, long = list[tuple[Example, Sequence[int]]](), list[str]()
    cuts = list[int]()
    for number, one in enumerate(examples):
        where = one.at or f"prompt {number + 1}"
        try:
            tokens = tokenizer.prompt(one.prompt, {**template, **one.template})
            cut = tokenizer.kept(one.prompt, {**template, **one.template}) if parts else 0
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        if not tokens:
            raise ValueError(
                f"{where}: prompt: expected a text of at least one token, got "
                f"{one.prompt!r:.80}, which has no token"
            )
        if len(tokens) <= room:
            kept.append((one, tokens))
            cuts.append(cut or len(tokens))
        else:
            long.append(f"{where} of {len(tokens):,} tokens")
    if long:
        notes.append(
            f"warning: {len(long):,} of {len(examples):,} prompts have more than {room:,} tokens "
            "and are left out, the first "
            f"{long[0]} (source.prompt_tokens, or a shorter --max-completion-length, leaves more "
            "room)"
        )
    examples = [one for one, _ in kept]
    pairs = list(zip(kept, cuts, strict=True))
    prompts = [tokens[:cut] for (_, tokens), cut in pairs]
    return Prompts(
        examples, prompts, begun=[tokens[cut:] for (_, tokens), cut in pairs] if parts else ()
    )


def room(config: DecoderConfig | HubConfig, completion: int) -> int:
    """Tokens that a prompt may have next to a completion of ``completion`` tokens."""
    return config.max_position_embeddings - completion
