"""Packed text at random, cut and put into other orders, and a network that is a table: what the
tests of text learn from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.algorithms.token_ppo import TokenPPO
from equipoise.learners.pool import ALONE
from equipoise.types import PACKED_TOKENS, Batch, LossOutput, Packed, Stop

VOCABULARY = 5


class Table(nn.Module):
    """Logits by the token that was seen last, in float64; ``hidden`` is its unit vector."""

    batch_invariant = False

    def __init__(self, vocabulary: int = VOCABULARY, *, seed: int | None = None) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed or 0)
        logits = torch.zeros(vocabulary, vocabulary, dtype=torch.float64)
        self.head = nn.Parameter(logits if seed is None else logits.normal_(generator=rng))

    def hidden(self, data: Packed, layout: Any = None) -> Tensor:
        return nn.functional.one_hot(data.token, len(self.head)).double()


def for_(algorithm: Any, net: Table, seed: int = 5) -> Table:
    """The table as this algorithm's network: with a critic, at random, where it has one."""
    if isinstance(algorithm, TokenPPO):
        algorithm.with_critic(net, len(net.head)).double()
        rng = torch.Generator().manual_seed(seed)
        torch.nn.init.normal_(net.critic.head.weight, generator=rng)  # type: ignore[union-attr, arg-type]
    return net


def packed(
    groups: Sequence[int],
    *,
    seed: int,
    tools: bool = False,
    longest: int = 6,
    version: int = 3,
    reward: float = 1.0,
) -> Packed:
    """Groups of so many samples, at random; ``tools``: some tokens in a sample, its last ones too,
    were written by a tool.
    """
    rng = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    samples: list[tuple[int, ...]] = []
    for group, size in enumerate(groups):
        prompt = int(rng.integers(1, 4))
        rows += [(int(rng.integers(VOCABULARY)), n, -1, False, 0.0, -1, 0.0) for n in range(prompt)]
        for _ in range(size):
            length = int(rng.integers(1, longest + 1))
            chosen = (rng.random(length) < 0.6) if tools else np.ones(length, bool)
            chosen[0] |= not chosen.any()
            for n in range(length):
                logp, version_of = (
                    (-3 * float(rng.random()) - 0.05, version) if chosen[n] else (0.0, -1)
                )
                paid = float(np.round(rng.random() * 4)) * reward if n == length - 1 else 0.0
                rows.append(
                    (
                        int(rng.integers(VOCABULARY)),
                        prompt + n,
                        len(samples),
                        bool(chosen[n]),
                        logp,
                        version_of,
                        paid,
                    )
                )
            samples.append(
                (prompt, group, int(Stop.LENGTH if length == longest else Stop.EOS), group, 0)
            )
    token, position, sample, chosen_, logp_, version_, reward_ = zip(*rows, strict=True)
    return Packed(
        token=torch.tensor(token),
        position=torch.tensor(position),
        sample=torch.tensor(sample),
        chosen=torch.tensor(chosen_),
        logp=torch.tensor(logp_, dtype=torch.float64),
        version=torch.tensor(version_),
        reward=torch.tensor(reward_, dtype=torch.float64),
        **cast(
            "Any",
            dict(
                zip(
                    ("prompt", "group", "stop", "task", "refills"),
                    torch.tensor(samples).unbind(1),
                    strict=True,
                )
            ),
        ),
    )


def prompts(data: Packed) -> Iterator[tuple[int, list[int]]]:
    """Each group and the places of its prompt's tokens."""
    at, of = 0, data.group.tolist()
    for group in sorted(set(of)):
        size = int(data.prompt[of.index(group)])
        yield group, list(range(at, at + size))
        at += size + sum(int((data.sample == m).sum()) for m in range(len(of)) if of[m] == group)


def part(
    data: Packed, targets: dict[str, Tensor], samples: Sequence[int]
) -> tuple[Packed, dict[str, Tensor]]:
    """These samples, in this order but for their groups, which stay together; numbers begin at 0
    again.
    """
    places, lead = list[int](), dict(prompts(data))
    groups = list(dict.fromkeys(int(data.group[m]) for m in samples))
    order = [m for group in groups for m in samples if int(data.group[m]) == group]
    new = list[int]()
    for group in groups:
        places += lead[group]
        new += [-1] * len(lead[group])
        for m in order:
            if int(data.group[m]) == group:
                found = (data.sample == m).nonzero().squeeze(1).tolist()
                places += found
                new += [order.index(m)] * len(found)
    index, rows = torch.tensor(places), torch.tensor(order)
    cut = {name: getattr(data, name)[index] for name in PACKED_TOKENS} | {
        "sample": torch.tensor(new)
    }
    more = {name: getattr(data, name)[rows] for name in ("prompt", "stop", "task", "refills")}
    numbers = torch.tensor([groups.index(int(data.group[m])) for m in order])
    return Packed(**cut, **more, group=numbers), {name: x[index] for name, x in targets.items()}


def batch(data: Packed, targets: Any, version: int = 3) -> Batch:
    items = len(data.prompt)
    return Batch(
        data=data,
        keys=np.zeros((items, 2), np.int64),
        weight=torch.ones(items),
        targets=targets,
        version=version,
    )


def targets(
    algorithm: Any, net: Any, reference: Any, data: Packed, pool: Any = ALONE
) -> dict[str, Tensor]:
    with torch.no_grad():
        return algorithm.targets(net, reference, data, rng=torch.Generator(), pool=pool)


def loss(
    algorithm: Any,
    net: Any,
    data: Packed,
    targets: Any,
    *,
    reference: Any = None,
    group: str = "all",
    version: int = 3,
) -> LossOutput:
    out: LossOutput = algorithm.loss(
        net, reference, batch(data, targets, version), group=group, step=0.0, rng=torch.Generator()
    )
    return out


def stepped(
    algorithm: Any,
    net: nn.Module,
    reference: Any,
    data: Packed,
    cuts: Sequence[Sequence[int]],
    group: str = "all",
) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of a step that is cut into these samples, divided once."""
    made = targets(algorithm, net, reference, data)
    outs = [
        loss(algorithm, net, *part(data, made, samples), reference=reference, group=group)
        for samples in cuts
    ]
    count = torch.stack([out.count for out in outs]).sum().clamp(min=1)
    params = algorithm.groups(net)[group]
    sums = [torch.autograd.grad(out.loss, params, allow_unused=True) for out in outs]
    flat = [sum(x.flatten() for x in parts if x is not None) for parts in zip(*sums, strict=True)]
    return sum(out.loss.detach() for out in outs) / count, torch.cat(
        [x for x in flat if isinstance(x, Tensor)]
    ) / count


def means(outs: Sequence[LossOutput]) -> dict[str, float]:
    """Metrics of a step that was cut, each sum divided by its count."""
    names = {name: [out.metrics[name] for out in outs] for name in outs[0].metrics}
    return {
        name: float(sum(a for a, _ in pairs)) / max(float(sum(b for _, b in pairs)), 1e-30)
        for name, pairs in names.items()
    }
