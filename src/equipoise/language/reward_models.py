"""Reward models as folders: a decoder with a score, its tokenizer, and its calibration.

A folder holds ``config.json`` and ``model.safetensors`` (a ``ForSequenceClassification`` for
transformers), the files of the tokenizer, and ``reward_model.json``. The score of a completion is
(raw - center) / scale; the probability that one completion of a prompt is preferred to another is
sigmoid((raw - raw of the other) / temperature).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise import schema
from equipoise.files import json_bytes, read_json, write_atomic
from equipoise.language import architectures, files, tasks
from equipoise.language.tokenizers import CharTokenizer, HubTokenizer, fingerprint, with_end
from equipoise.nets.hub_decoder import HubDecoder
from equipoise.nets.packing import in_parts, packed_texts
from equipoise.nets.scored import Scores
from equipoise.nets.threads import one_thread
from equipoise.registry.artifacts import MANIFEST, REWARD, write_manifest
from equipoise.registry.reward_models import place
from equipoise.types.packed import Prompt, Tokenizer

FILE = REWARD
FORMAT = 1
BINS = 10  # of the calibration error, over chances from 0.5 to 1
TOGETHER = 8_192  # tokens of a forward pass
CUT = -3.0  # score of a cut or empty completion: three deviations below the mean
HOTTEST = 1e3  # the limits of a temperature: its inverse and itself
_POSITIVE = schema.Number(1e-12, 1e12)
SCHEMA: schema.Schema = {
    "format": schema.Number(FORMAT, FORMAT, whole=True),
    "alphabet": schema.Text(),
    "template": schema.Items(schema.Text(), 1_000),
    "weights": schema.Text(),
    "calibration": {
        "center": schema.Number(-1e12, 1e12),
        "scale": _POSITIVE,
        "temperature": _POSITIVE,
        "accuracy": schema.Number(0, 1),
        "pairs": schema.count(),
        "ece?": schema.Number(0, 1),
    },
    "lineage?": schema.Each(schema.Anything()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Numbers of a reward model on pairs that it has not learned from."""

    center: float = 0.0  # the mean of the raw scores
    scale: float = 1.0  # their deviation
    temperature: float = 1.0  # of the probability that one is preferred
    accuracy: float = 0.5  # the share of pairs in the right order; a tie counts half
    pairs: int = 0
    ece: float = 0.0  # expected calibration error of the pairs, of ``BINS`` bins


@torch.no_grad()
def calibrate(chosen: Tensor, rejected: Tensor, label: Tensor) -> Calibration:
    """The calibration from raw scores [P] and the labels [P] that the chosen one is better.

    The temperature maximises the likelihood of the labels (Guo et al. 2017, arXiv:1706.04599), and
    is found by bisection, since the slope in 1 / temperature only rises.
    """
    gap, label = (chosen - rejected).double(), label.double()
    both = torch.cat([chosen, rejected]).double()
    low, high = 1.0 / HOTTEST, HOTTEST
    for _ in range(60):
        middle = (low * high) ** 0.5
        slope = ((torch.sigmoid(middle * gap) - label) * gap).sum()
        low, high = (middle, high) if slope < 0 else (low, middle)
    temperature = 1.0 / (low * high) ** 0.5
    right = 0.5 + 0.5 * gap.sign() * (label - 0.5).sign()
    deviation = float(both.std()) if len(both) > 1 else 0.0
    return Calibration(
        center=float(both.mean()),
        scale=deviation if deviation > 1e-6 else 1.0,
        temperature=temperature,
        accuracy=float(right.mean()),
        pairs=len(gap),
        ece=_error(torch.sigmoid(gap / temperature), label),
    )


def _error(chance: Tensor, label: Tensor) -> float:
    """The expected calibration error of chances [P]; each pair is taken from its likelier side."""
    sure, got = torch.maximum(chance, 1 - chance), torch.where(chance > 0.5, label, 1 - label)
    bins = ((sure - 0.5) * 2 * BINS).long().clamp(max=BINS - 1)
    gap = torch.zeros(BINS, dtype=sure.dtype).index_add_(0, bins, sure - got)
    return float(gap.abs().sum() / len(sure))


class RewardModel:
    """A reward model that scores completions, and a reward function of tasks."""

    def __init__(
        self,
        net: Scores,
        tokenizer: Tokenizer,
        calibration: Calibration,
        template: Mapping[str, object],
    ) -> None:
        """``template``: arguments of the chat template."""
        self.net, self.tokenizer, self.calibration = net, tokenizer, calibration
        self._template = template

    @classmethod
    def read(cls, directory: Path) -> RewardModel:
        """The model in a folder; ValueError if there is none, or a file is damaged."""
        said, tokenizer = facts(directory), tokenizer_of(directory)
        config = architectures.read_config(directory)
        net = architectures.build_scored(asdict(config), str(directory))
        template = tasks.arguments(said["template"], "chat_template_kwargs")
        return cls(net, tokenizer, Calibration(**said["calibration"]), template)

    def raw(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Tensor:
        """The raw scores [M] of prompts and completions as tokens, the ends included.

        ValueError for a sample of more tokens than the model has positions.
        """
        most = self.net.config.max_position_embeddings
        sizes = [len(prompt) + len(completion) for prompt, completion in texts]
        for number, size in enumerate(sizes):
            if size > most:
                raise ValueError(
                    f"completion {number + 1}: must have at most {most:,} tokens with its prompt, "
                    f"got {size:,}"
                )
        found = torch.zeros(len(texts))
        order = sorted(range(len(texts)), key=lambda n: -sizes[n])
        with torch.no_grad(), one_thread():
            for part in in_parts(order, [sizes[n] for n in order], TOGETHER):
                # completions of one prompt share it
                same = dict[tuple[int, ...], list[int]]()
                for n in part:
                    same.setdefault(tuple(texts[n][0]), []).append(n)
                data = packed_texts([(p, [texts[n][1] for n in each]) for p, each in same.items()])
                found[[n for each in same.values() for n in each]] = self.net.scores(data)
        return found

    def tokens(self, prompt: Prompt, completion: str) -> tuple[list[int], list[int]]:
        """The tokens of a prompt, and of its completion with the end."""
        asked = self.tokenizer.prompt(prompt, self._template)
        return asked, with_end(self.tokenizer, self.tokenizer.encode(completion))

    def scaled(self, raw: Tensor) -> list[float]:
        found: list[float] = ((raw - self.calibration.center) / self.calibration.scale).tolist()
        return found

    def __call__(
        self,
        prompts: Sequence[Prompt],
        completion_ids: Sequence[Sequence[int]],
        ended: Sequence[bool],
    ) -> list[float]:
        """Return the scores of samples, whose tokens are taken as they were drawn. A sample that a
        limit cut, or that has an end alone, gets ``CUT``: no pair has such a completion.
        """
        ends = [with_end(self.tokenizer, one) for one in completion_ids]
        asked = [self.tokenizer.prompt(one, self._template) for one in prompts]
        scores = self.scaled(self.raw(list(zip(asked, ends, strict=True))))
        whole = [end and len(one) > 1 for one, end in zip(ends, ended, strict=True)]
        return [score if one else CUT for score, one in zip(scores, whole, strict=True)]


def write(
    directory: Path,
    net: Scores,
    tokenizer: Tokenizer,
    calibration: Calibration,
    *,
    template: Sequence[str] = (),
    weights: str = "",
    lineage: Mapping[str, object] | None = None,
) -> None:
    """Write a reward model's folder. ``template``: KEY=VALUE arguments of the chat template;
    ``weights``: the identity of the weights, for a later look; ``lineage``: its origin.
    """
    if isinstance(net, HubDecoder):
        net.write(directory)
    else:
        files.write(
            directory,
            net.config,
            dict(net.named_parameters()),
            eos=tokenizer.eos,
            special=tokenizer.special,
            scored=True,
        )
    tokenizer.save(directory)
    alphabet = tokenizer.alphabet if isinstance(tokenizer, CharTokenizer) else ""
    said = {"format": FORMAT, "alphabet": alphabet, "template": list(template), "weights": weights}
    about = said | {"calibration": asdict(calibration), "lineage": dict(lineage or {})}
    write_atomic(directory / FILE, json_bytes(about))
    (directory / MANIFEST).unlink(missing_ok=True)
    write_manifest(directory)


def facts(directory: Path) -> dict[str, Any]:
    """``reward_model.json`` of a folder; ValueError if there is none of a model of text."""
    file = directory / FILE
    if not file.is_file():
        raise ValueError(
            f"{directory}: must be the folder of a reward model, with {FILE}, got one without; "
            "'equipoise export RUN DIR' of a run of reward_model writes it"
        )
    said = read_json(file)
    if isinstance(said, Mapping) and "observation" in said:
        raise ValueError(
            f"{directory}: must be a reward model of text, got one of clips of an env; try it as "
            "the reward of a run on that env"
        )
    return schema.check(said, SCHEMA, str(file))  # type: ignore[no-any-return]


def tokenizer_of(directory: Path) -> Tokenizer:
    alphabet = str(facts(directory)["alphabet"])
    return CharTokenizer(alphabet) if alphabet else HubTokenizer(directory)


def check(name: str, tokenizer: Tokenizer, longest: int) -> None:
    """ValueError unless the reward model of ``run:DIR`` has this tokenizer, and positions for
    ``longest`` tokens.
    """
    directory = place(name)
    if fingerprint(tokenizer_of(directory)) != fingerprint(tokenizer):
        raise ValueError(
            f"reward {name!r}: must be a reward model with the tokenizer of the model that learns, "
            "got one with another; train it from the same model"
        )
    if longest > (most := architectures.read_config(directory).max_position_embeddings):
        raise ValueError(
            f"reward {name!r}: must have positions for {longest:,} tokens of prompt and "
            f"completion, got {most:,}; --max-completion-length {most // 2} is shorter"
        )
