"""A trained model that writes: ``generate`` has it answer prompts, ``export_model`` saves it as
other libraries load it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.algorithms._pairs import columns
from equipoise.api.playing import weights_of
from equipoise.api.reward_of_run import FOLDER, of_run
from equipoise.files import local_path, new_folder, parse_json
from equipoise.hints import shortened
from equipoise.language import adapters, files, messages, models, reward_models, tasks
from equipoise.language.task_files import plain, whole
from equipoise.nets import lora
from equipoise.nets.hub_decoder import HubDecoder
from equipoise.nets.scored import Scores
from equipoise.plans.roles import network
from equipoise.record import checkpoint, playable
from equipoise.record.directory import RunDirectory
from equipoise.record.mirror import local
from equipoise.record.report import step_of
from equipoise.registry.reward_models import DIGITS
from equipoise.sources.preferences import Preferences, scored
from equipoise.sources.prompts import Voice, voice
from equipoise.sources.prompts import room as room_for
from equipoise.sources.source import source_of
from equipoise.sources.text import texts_of
from equipoise.types import Program, Prompt, RunSpec, Stop, learning

__all__ = ["Answer", "export_model", "generate", "score"]


JSON = re.compile(r"""\s*(\[\s*\{|\{\s*"(role|messages)")""")  # what JSON of messages begins with
TOGETHER = 256  # completions that are written side by side, where there are as many


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A completion of a prompt."""

    prompt: Prompt  # as it was given
    text: str
    logp: float  # of the whole completion
    tokens: int
    ended: bool  # did the model say the end, or did the limit cut it?
    chat: bool = False  # is the prompt messages, and not a text that goes on?


_BASE: ContextVar[str] = ContextVar("base", default="")


@contextmanager
def base_at(folder: str) -> Iterator[None]:
    """Within it, a run with adapters is opened with its model in ``folder``; "": where it was."""
    before = _BASE.set(folder)
    try:
        yield
    finally:
        _BASE.reset(before)


def given_base() -> str:
    """Return the folder of ``base_at``, or ""."""
    return _BASE.get()


def writer(
    directory: str | os.PathLike[str],
    *,
    best: bool = False,
    trust: Sequence[str] = (),
    source: Path | None = None,
    base: str | os.PathLike[str] = "",
) -> tuple[Program, Voice, Any]:
    """The program of a run on text, its tokenizer with the facts, and its network with the weights
    that ``load`` would take, or those of the checkpoint ``source``.

    Only the run's own files are read: its prompts, its reward and the model that it began with may
    be gone. A run with adapters needs that model, in its folder or in ``base``.
    """
    with local(directory) as here:
        return _writer(here, best, trust, source, os.fspath(base) or given_base())


def _writer(
    directory: str | os.PathLike[str],
    best: bool,
    trust: Sequence[str],
    source: Path | None,
    base: str,
) -> tuple[Program, Voice, Any]:
    kinds = ("algorithm", "torso")
    program = RunDirectory.open(directory, trusted=trust, only=kinds).program
    if not source_of(program).writes:
        raise ValueError(
            f"{directory}: expected a run on text (equipoise train sort --algorithm grpo), got one "
            f"of {program.name}"
        )
    name, *_ = learning(program)
    source = source or weights_of(directory, best=best)
    file = source / checkpoint.SPEC
    spec = playable.text_spec(
        parse_json(checkpoint.read(source, checkpoint.SPEC), file), name, str(file)
    )
    if spec.lora:  # adapters alone are in the run, so the model that it began with is opened
        if not base:  # the user names another folder, and a file this one
            program = RunDirectory.open(directory, trusted=trust, only=(*kinds, "model")).program
        spec = replace(spec, weights=_base(directory, texts_of(program).settings.model, base))
    elif base:
        raise ValueError(f"--base: must be left out without adapters, got {base!r}")
    net = network(program, RunSpec(env=spec, policies={name: spec}), name)
    playable.fill({name: net}, checkpoint.load(source)[0], str(source))
    return program, voice(spec, RunDirectory.found(directory).path), net


def _base(directory: str | os.PathLike[str], model: str, base: str) -> str:
    """Return the folder of the model that a run's adapters belong to, ``base`` if that is given;
    "" for a shape.
    """
    if base:
        if not (place := Path(base).expanduser().absolute()).is_dir():
            raise ValueError(f"--base: must be the folder of a model, got {base!r}")
        return str(place)
    if models.is_shape(model):
        return ""
    try:
        return str(models.find(model).directory or "")
    except ValueError as error:
        raise ValueError(
            f"{os.fspath(directory)}: must have the model of its adapters at {model}, got none "
            f"({shortened(str(error))}); name its folder with --base DIR"
        ) from error


def _asked(prompt: Prompt, number: int, chat: bool) -> Prompt:
    """The model's prompt: a model of chats gets a user's message, or the JSON of all messages."""
    at = f"prompt {number + 1}" if number else "prompt"
    if not isinstance(prompt, str):
        return messages.read_prompt(plain(prompt, at), at)
    whole(prompt, at)
    if not chat:
        return prompt
    if JSON.match(prompt):
        said = plain(parse_json(prompt.encode(), at), at)
        said = said.get("messages", [said]) if isinstance(said, Mapping) else said
        return messages.read_prompt(said, at)
    return messages.read_prompt([{"role": "user", "content": prompt}], at)


def generate(
    directory: str | os.PathLike[str],
    prompts: Sequence[Prompt],
    *,
    samples: int = 1,
    greedy: bool = False,
    seed: int = 0,
    limit: int | None = None,
    best: bool = False,
    trust: Sequence[str] = (),
) -> list[Answer]:
    """Complete prompts with the trained model of a run on text.

    Args:
        directory: A run, one of its checkpoints, or a URL.
        prompts: Texts, or messages ``{"role", "content"}``. To a model that was trained on
            messages, a text is the message of a user, and JSON of messages is read as such.
        samples: Completions of each prompt.
        greedy: Take the likeliest tokens, and do not draw them.
        seed: Seed of the tokens that are drawn.
        limit: At most this many tokens of a completion (default: as in training).
        best: Take the weights of the best evaluation.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        An answer for each sample of each prompt, in order: ``answer.text``.

    Raises:
        ValueError: The run is not on text, or the model has no tokens or no room for a prompt.

    Example:
        >>> [answer] = eq.generate(text.directory, ["sort: 3 1 2 >"])  # doctest: +SKIP
        >>> answer.text  # doctest: +SKIP
        '1 2 3'
    """
    if samples < 1:
        raise ValueError(f"samples: expected at least 1, got {samples}")
    if isinstance(prompts, str):
        raise ValueError("prompts: expected a list of prompts, got one text; put it into a list")
    program, text, net = writer(directory, best=best, trust=trust)
    policy, *_ = learning(program).values()
    if isinstance(net, Scores):
        raise ValueError(
            f"{directory}: must be a run whose model writes, got a reward model; eq.score scores "
            "completions with it"
        )
    program = replace(program, schedule=replace(program.schedule, seed=seed))
    asked = [_asked(one, number, text.spec.chat) for number, one in enumerate(prompts)]
    source = texts_of(program)
    template = tasks.arguments(source.settings.chat_template_kwargs, "chat_template_kwargs")
    tokens = [text.tokenizer.prompt(one, template) for one in asked]
    most = text.spec.completion if limit is None else limit
    room = room_for(text.config, most)
    if room < 1:
        most_of_all = text.config.max_position_embeddings - 1
        raise ValueError(
            f"limit: expected at most {most_of_all:,} tokens, the model's context without a "
            f"prompt, got {most:,}"
        )
    for prompt, one in zip(prompts, tokens, strict=True):
        if not 0 < len(one) <= room:
            raise ValueError(
                f"prompt {shortened(repr(prompt))}: expected 1 to {room:,} tokens, beside {most:,} "
                f"of a completion, got {len(one):,}"
            )
    rows = max(samples, min(samples * len(prompts), TOGETHER))
    engine = source.engine(
        text, policy.algorithm, net, greedy=greedy, rows=rows, length=max(map(len, tokens)) + most
    )
    for group, one in enumerate(tokens):
        engine.submit(group, one, samples, limit=most)
    found: dict[tuple[int, int], Answer] = {}
    while engine.live or engine.waiting:
        for done in engine.step():
            found[done.group, done.index] = Answer(
                prompt=prompts[done.group],
                text=text.tokenizer.decode(done.token.tolist()),
                logp=float(done.logp.sum()),
                tokens=len(done.token),
                ended=done.stop in (Stop.EOS, Stop.TEXT),
                chat=not isinstance(asked[done.group], str),
            )
    return [found[key] for key in sorted(found)]


def export_model(
    directory: str | os.PathLike[str],
    to: Path,
    *,
    best: bool = False,
    adapter: bool = False,
    trust: Sequence[str] = (),
    base: str | os.PathLike[str] = "",
) -> Path:
    """Write ``config.json`` and ``model.safetensors`` for ``transformers`` into a new folder; a
    reward model with its calibration on held-out pairs, whose file is read again.

    A run with adapters gives the model with the adapters in its weights. ``adapter`` gives the
    adapters alone, as peft loads them.
    """
    program, text, net = writer(directory, best=best, trust=trust, base=base)
    if adapter:
        if isinstance(net, Scores):
            raise ValueError(
                f"{directory}: must be a run whose model writes to give adapters alone, got a "
                "reward model, whose head learns whole; leave out --only"
            )
        folder = os.fspath(base) or given_base()
        named = str(Path(folder).expanduser().absolute()) if folder else ""
        adapters.write(to, net, named or texts_of(program).settings.model)
        text.tokenizer.save(to)
        return to
    net = lora.merged(net)
    if isinstance(net, Scores):
        whole = RunDirectory.open(directory, trusted=trust).program
        reward_models.write(
            to,
            net,
            text.tokenizer,
            calibration(whole, net),
            template=Preferences(program).settings.chat_template_kwargs,
            weights=checkpoint.identity(source := weights_of(directory, best=best)),
            lineage={
                "run": RunDirectory.found(directory).path.absolute().name,
                "step": step_of(checkpoint.read_meta(source)),
            },
        )
        return to
    if isinstance(net, HubDecoder):
        net.write(to)
    else:
        params = {name: x for name, x in net.named_parameters() if not name.startswith("critic.")}
        files.write(to, net.config, params, eos=text.spec.eos, special=text.tokenizer.special)
    text.tokenizer.save(to)
    return to


def calibration(program: Program, net: Scores) -> reward_models.Calibration:
    """The calibration of a reward model on the held-out pairs of its run."""
    source = Preferences(program)
    algorithm, prompts = source.algorithm, source.text().held_out
    scores, labels = list[Tensor](), list[float]()
    for begin in range(0, len(prompts), TOGETHER):
        numbers = range(begin, min(begin + TOGETHER, len(prompts)))
        scores.append(scored(algorithm, net, prompts, numbers))
        labels += [prompts.given[number].value[0] for number in numbers]
    if not scores:
        return reward_models.Calibration()
    return reward_models.calibrate(*columns(torch.cat(scores)), torch.tensor(labels))


def reward_model(directory: str | os.PathLike[str], *, trust: Sequence[str] = ()) -> Path:
    """The folder of a reward model: ``directory`` itself, or the one in a run of its newest
    weights, which is written if it is not there.
    """
    here = local_path(directory).expanduser()
    if (here / reward_models.FILE).is_file():
        return here
    run = RunDirectory.found(here)
    source = run.run["program"].get("source") if isinstance(run.run["program"], Mapping) else None
    if not (isinstance(source, Mapping) and "task" in source):
        return of_run(run.path)
    place = run.path / FOLDER / checkpoint.identity(weights_of(here))[:DIGITS]
    if (place / reward_models.FILE).is_file():
        return place
    _, _, net = writer(here, trust=trust)
    if not isinstance(net, Scores):
        raise ValueError(f"{directory}: must be a run of reward_model, got one whose model writes")
    with new_folder(place, present=reward_models.FILE) as aside:
        export_model(here, aside, trust=trust)
    return place


def score(
    directory: str | os.PathLike[str],
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    *,
    raw: bool = False,
    trust: Sequence[str] = (),
) -> list[float]:
    """Score completions with a reward model.

    Args:
        directory: A run of ``reward_model``, or its export.
        prompts: Texts, or messages ``{"role", "content"}``.
        completions: The completion of each prompt.
        raw: Do not centre and scale the scores by the held-out pairs.
        trust: Modules, and paths of files, that a run from elsewhere may import or open.

    Returns:
        The score of each completion; higher is better.

    Raises:
        ValueError: There is no reward model, or a text does not fit into it.

    Example:
        >>> eq.score("runs/NAME", ["2 + 2 ="], ["4"])  # doctest: +SKIP
        [1.3]
    """
    if isinstance(prompts, str) or isinstance(completions, str):
        raise ValueError("prompts and completions: must be lists of equal length, got one text")
    several: tuple[object, object] = (prompts, completions)  # of a caller, whatever the types are
    if odd := [type(one).__name__ for one in several if not isinstance(one, Sequence)]:
        raise ValueError(f"prompts and completions: must be lists, got {odd[0]}")
    for number, text in enumerate(completions, 1):
        given: object = text
        if not isinstance(given, str):
            raise ValueError(f"completion {number}: must be a text, got {type(given).__name__}")
    if len(prompts) != len(completions):
        raise ValueError(
            f"completions: must be one for each of {len(prompts)} prompts, got {len(completions)}"
        )
    model = reward_models.RewardModel.read(reward_model(directory, trust=trust))
    texts = [
        model.tokens(_given(prompt, number), whole(text, f"completion {number + 1}"))
        for number, (prompt, text) in enumerate(zip(prompts, completions, strict=True))
    ]
    found = model.raw(texts)
    numbers: list[float] = found.tolist()
    return numbers if raw else model.scaled(found)


def _given(prompt: Prompt, number: int) -> Prompt:
    at = f"prompt {number + 1}"
    return messages.read_prompt(plain(prompt, at), at)
