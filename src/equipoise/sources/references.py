"""Log-probabilities of given completions under the model that a run begins with: computed once, and
kept next to the file of the task.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from equipoise import phases
from equipoise.algorithms._pairs import PairLearns
from equipoise.files import files_sha256, write_atomic
from equipoise.language import adapters, files
from equipoise.nets.decoder import Decoder
from equipoise.nets.packing import in_parts, packed_texts
from equipoise.nets.threads import one_thread
from equipoise.nets.token_logp import token_logp
from equipoise.seeds import policy_seed
from equipoise.sources.prompts import Prompts, Text
from equipoise.types import Packed, Program, learning

FORMAT = 1
TOGETHER = 8_192  # tokens of a forward pass
Logp = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class References:
    """Log-probabilities of the tokens of each prompt's completions: [prompt][sample] -> [L]."""

    train: Sequence[Sequence[Logp]]
    held_out: Sequence[Sequence[Logp]]


def references(program: Program, text: Text) -> References:
    """Read the log-probabilities of a run's completions, or compute and keep them.

    The file's name has the hash of the model, the tokens and the temperature. A task without a
    file has nothing kept. ValueError if the file is of another size, or cannot be written.
    """
    place = where(program, text)
    if place is not None and place.is_file():
        return _read(place, text)
    found = _computed(program, text)
    if place is not None:
        parts = {name: torch.cat(some) for name, some in found.items()}
        try:
            write_atomic(place, save(parts))
        except OSError as error:
            raise ValueError(
                f"{place}: must be a place that can be written, since the reference's "
                f"log-probabilities are kept next to the file, got {error}; copy the file into a "
                "folder of yours"
            ) from error
    return References(*(_parted(found[name], prompts) for name, prompts in _named(text)))


def where(program: Program, text: Text) -> Path | None:
    """The file of the log-probabilities, which may not be there yet; None: nothing is kept."""
    task, temperature = Path(text.task.name), _algorithm(program).temperature
    if not task.is_file():
        return None
    facts = [FORMAT, text.spec.sha256, _model_sha256(program, text), temperature]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return task.with_name(f"{task.stem}.reference-{name}.safetensors")


def _algorithm(program: Program) -> PairLearns:
    (policy, *_) = learning(program).values()
    assert isinstance(policy.algorithm, PairLearns)
    return policy.algorithm


def _model_sha256(program: Program, text: Text) -> str:
    """The hash of the weights that a run begins with, without holding them in memory."""
    if text.spec.adapter:
        file = Path(text.spec.adapter).expanduser() / adapters.WEIGHTS
        adapter = [dict(text.spec.lora), _files_sha256((file,), _changed(file))]
    else:  # fresh adapters change nothing
        adapter = []
    if not text.spec.weights:
        said = [dict(text.spec.model), *adapter, program.schedule.seed, torch.__version__]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    weights = tuple(files.weight_files(Path(text.spec.weights)))
    said = [
        dict(text.spec.model),
        *adapter,
        _files_sha256(weights, *(_changed(one) for one in weights)),
    ]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _changed(file: Path) -> int:
    return file.stat().st_mtime_ns


@lru_cache(4)
def _files_sha256(weights: Sequence[Path], *_changed: int) -> str:
    return files_sha256(weights)


def _named(text: Text) -> tuple[tuple[str, Prompts], ...]:
    return ("train", text.train), ("held_out", text.held_out)


def _sizes(prompts: Prompts) -> list[int]:
    return [len(one) for given in prompts.given for one in given.tokens]


def _read(place: Path, text: Text) -> References:
    wanted = {name: sum(_sizes(prompts)) for name, prompts in _named(text)}
    again = "delete it, and it is computed again"
    if (size := place.stat().st_size) > 4 * sum(wanted.values()) + 4_096:
        raise ValueError(
            f"{place}: must be a file of {wanted} numbers, got {size:,} bytes; {again}"
        )
    try:
        tensors = load(place.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{place}: must be whole safetensors, got {error}; {again}") from None
    got = {name: x.numel() for name, x in tensors.items()}
    if got != wanted or any(x.dtype != torch.float32 for x in tensors.values()):
        raise ValueError(f"{place}: must have {wanted} float32 numbers, got {got}; {again}")
    return References(*(_parted([tensors[name]], prompts) for name, prompts in _named(text)))


def _parted(numbers: Sequence[torch.Tensor], prompts: Prompts) -> list[list[Logp]]:
    ends = np.cumsum(_sizes(prompts))[:-1]
    parts = iter(np.split(torch.cat([*numbers]).numpy(), ends))
    return [[next(parts) for _ in given.tokens] for given in prompts.given]


@torch.no_grad()
def _computed(program: Program, text: Text) -> dict[str, list[torch.Tensor]]:
    """By part the log-probabilities of all its completions, one behind the other."""
    (name, policy), *_ = learning(program).items()
    temperature = _algorithm(program).temperature
    count = len(text.train) + len(text.held_out)
    phases.say(f"computing the reference's log-probabilities of {count:,} rows")
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(policy_seed(program.schedule.seed, "network", name))
        net = policy.algorithm.network(text.spec).to(program.placement.device)
    assert isinstance(net, Decoder)
    found = dict[str, list[torch.Tensor]]()
    for part, prompts in _named(text):
        order = sorted(range(len(prompts)), key=lambda n: -_tokens(prompts, n))
        logps: dict[int, torch.Tensor] = {}
        for numbers in in_parts(order, [_tokens(prompts, n) for n in order], TOGETHER):
            data = packed_of(prompts, numbers)
            logp, _ = token_logp(net, data, temperature=temperature, entropy=False)
            sizes = [sum(map(len, prompts.given[n].tokens)) for n in numbers]
            logps |= zip(numbers, torch.split(logp[data.chosen].cpu(), sizes), strict=True)
        found[part] = [logps[n] for n in range(len(prompts))] or [torch.zeros(0)]
    return found


def _tokens(prompts: Prompts, number: int) -> int:
    return len(prompts.tokens[number]) + sum(map(len, prompts.given[number].tokens))


def packed_of(prompts: Prompts, numbers: Sequence[int]) -> Packed:
    """The completions of these prompts, without labels and log-probabilities."""
    return packed_texts([(prompts.tokens[n], prompts.given[n].tokens) for n in numbers])
