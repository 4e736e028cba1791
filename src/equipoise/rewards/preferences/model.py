"""The reward model: an ensemble of networks on rows of observation and action."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from equipoise import tree
from equipoise.facts import Help, PositiveInt, Range
from equipoise.nets.cnn import SMALLEST, first_conv, planes, to_planes
from equipoise.nets.torso import encode, encoded_size, scale_of
from equipoise.nets.twin import TwinMLP
from equipoise.rewards.preferences.segments import Segments
from equipoise.types import Tree

ROWS = 1024  # rows of one pass without gradients, so that its activations stay in the cache
CHANNELS = 16  # of a convolution of a member
CONVS, SMALL_CONVS = ((8, 4), (4, 2), (3, 1)), ((3, 2), (3, 1))  # kernel and stride
COMPONENTS = 64  # principal components of a picture, at most
LEAST = 1e-5  # variance of a component, as a share of the largest one
SMALL = 0.1  # factor of the first outputs, so that sums over a segment begin as open questions


Pictures = Annotated[
    Literal["cnn", "components"],
    Help(
        "Network for pictures",
        "`components`: hidden layers on the first 64 principal components of the labelled "
        "pictures, which need fewer answers where few objects move.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardNets:
    """Settings of the networks, and of how an answer depends on their rewards."""

    members: Annotated[PositiveInt, Help("Networks of the ensemble")] = 3
    hidden: Annotated[tuple[PositiveInt, ...], Help("Hidden layers of a network")] = (64, 64)
    pictures: Pictures = "cnn"
    activation: Annotated[str, Help("Activation of hidden layers")] = "silu"
    output: Annotated[
        Literal["linear", "tanh"], Help("Bound of a reward", "`tanh` bounds it, before scaling.")
    ] = "linear"
    reduce: Annotated[
        Literal["sum", "mean"],
        Help("How rewards of a segment become its return", "The same for segments of one length."),
    ] = "sum"
    noise: Annotated[float, Range(0, 0.9), Help("Share of answers expected to be random")] = (
        0.1  # Christiano et al. 2017, section 2.2.3
    )


class RewardModel(nn.Module):
    """Rewards of rows, and the chance that a segment is preferred to another.

    The members differ by their first weights and by the answers that they learn from (``fit``). All
    members are computed together. ``rewards`` is centred and scaled: over the rows of the labelled
    segments it has mean 0 and deviation 1. ``returns`` is not: differences of it
    are logits.
    """

    def __init__(
        self,
        observation: spaces.Space[object],
        action: spaces.Space[object],
        settings: RewardNets | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings = settings or RewardNets()
        self.observation, self.action = observation, action
        self.image = picture(observation) and settings.pictures == "cnn"
        wide = 0 if self.image else encoded_size(observation)
        components: Tensor | None = None  # [pixels, numbers] of a picture
        if picture(observation) and not self.image:
            components = nn.Buffer(torch.zeros(wide, min(COMPONENTS, wide)))
            wide = components.shape[1]
        self.components = components
        size = encoded_size(action) + wide
        members = settings.members
        self.net: ImageNets | TwinMLP = (
            ImageNets(observation, size, settings)
            if self.image
            else TwinMLP(size, settings.hidden, settings.activation, 1, members=members)
        )
        head = self.net.head if isinstance(self.net, ImageNets) else self.net
        with torch.no_grad():
            head.weights[-1].mul_(SMALL)
        self.seen_mean, self.seen_std = nn.Buffer(torch.zeros(size)), nn.Buffer(torch.ones(size))
        self.centre, self.spread = nn.Buffer(torch.zeros(members)), nn.Buffer(torch.ones(members))
        self.temperature = nn.Buffer(torch.ones(()))

    def columns(self, obs: Tree, action: Tree) -> Tensor:
        """Return the numbers of rows [N, F]: an encoded vector and the encoded action."""
        columns = encode(self.action, action)
        if self.image:
            return columns
        encoded = encode(self.observation, obs)
        if self.components is not None:
            encoded = encoded @ self.components
        return torch.cat([encoded, columns], -1)

    def forward(self, obs: Tree, action: Tree) -> Tensor:
        """Return each member's reward of rows [N, ...], neither centred nor scaled: [M, N]."""
        x = (self.columns(obs, action) - self.seen_mean) / self.seen_std
        y: Tensor = (self.net(obs, x) if self.image else self.net(x)).squeeze(-1)
        return torch.tanh(y) if self.settings.output == "tanh" else y

    def returns(self, segments: Segments) -> Tensor:
        """Return each member's return of segments, [M, S]; padding counts for nothing."""
        mask = segments.mask
        # most segments have one length, and indexing copies
        at = mask.flatten() if not bool(mask.all()) else slice(None)
        obs, action = (
            tree.map(lambda x: x.flatten(0, 1)[at], one) for one in (segments.obs, segments.action)
        )
        found: Tensor = self(obs, action)
        rewards = found.new_zeros(len(found), mask.numel())
        rewards[:, at] = found
        total: Tensor = rewards.view(len(found), *mask.shape).sum(-1)
        return total if self.settings.reduce == "sum" else total / mask.sum(-1).clamp(min=1)

    @torch.no_grad()
    def all_returns(self, segments: Segments) -> Tensor:
        """Return ``returns`` of many segments, [M, S], a part at a time."""
        step = max(1, ROWS // segments.mask.shape[1])
        parts = [
            self.returns(segments.take(slice(i, i + step))) for i in range(0, len(segments), step)
        ]
        return torch.cat(parts, -1) if parts else torch.zeros(self.settings.members, 0)

    @torch.no_grad()
    def rewards(self, obs: Tree, action: Tree) -> tuple[Tensor, Tensor]:
        """Return the ensemble's mean and deviation of the rewards of rows [..., *space]: [...]
        each.
        """
        shape = action_shape(self.action, action)
        obs, action = (
            tree.map(lambda x: x.flatten(0, len(shape) - 1) if shape else x[None], one)
            for one in (obs, action)
        )
        found = (self.all_rewards(obs, action) - self.centre[:, None]) / self.spread[:, None]
        mean = found.mean(0)
        deviation = (found - mean).square().mean(0).sqrt()
        return mean.view(shape), deviation.view(shape)

    @torch.no_grad()
    def all_rewards(self, obs: Tree, action: Tree) -> Tensor:
        """Return ``forward`` of many rows, [M, N], a part at a time."""
        count = math.prod(action_shape(self.action, action))
        parts = [
            self(tree.index(obs, slice(i, i + ROWS)), tree.index(action, slice(i, i + ROWS)))
            for i in range(0, count, ROWS)
        ]
        return torch.cat(parts, -1) if parts else self.centre.new_zeros(len(self.centre), 0)

    def chance(self, logit: Tensor) -> Tensor:
        """Return the calibrated chance that the left segment is preferred, of differences of
        returns of any shape: of members, or of their mean.
        """
        noise = self.settings.noise
        return (1 - noise) * torch.sigmoid(logit / self.temperature) + noise / 2

    @torch.no_grad()
    def see(self, obs: Tree, action: Tree) -> None:
        """Set the scale of the inputs, and the components of pictures, by rows [N, ...]."""
        count = math.prod(action_shape(self.action, action))
        if self.components is not None:
            some = torch.linspace(0, count - 1, min(count, ROWS)).long()
            self.components.copy_(principal_components(encode(self.observation, obs[some])))
        columns = torch.cat(
            [
                self.columns(
                    tree.index(obs, slice(i, i + ROWS)), tree.index(action, slice(i, i + ROWS))
                )
                for i in range(0, count, ROWS)
            ]
        )
        self.seen_mean.copy_(columns.mean(0))
        std = columns.std(0, correction=0)
        self.seen_std.copy_(torch.where(std > 1e-6, std, 1.0))

    @torch.no_grad()
    def standardise(self, rewards: Tensor) -> None:
        """Set centre and scale, so that the mean of the members' rewards [M, N] has mean 0 and
        deviation 1.

        Each member is scaled by itself first, so that no member outweighs the others.
        """
        self.centre.copy_(rewards.mean(1))
        spread = rewards.std(1, correction=0).clamp(min=1e-6)
        joint = ((rewards - self.centre[:, None]) / spread[:, None]).mean(0).std(correction=0)
        self.spread.copy_(spread * joint.clamp(min=1e-6))


def principal_components(x: Tensor) -> Tensor:
    """Return the directions [F, min(64, F)] of the largest variance of rows [N, F].

    A direction of nearly no variance is 0.
    """
    x = x - x.mean(0)
    # from the products of rows, since rows are fewer than pixels; on the CPU for the same bits
    variance, vectors = torch.linalg.eigh((x @ x.T).cpu().double())
    count = min(COMPONENTS, *x.shape)
    variance, vectors = variance[-count:].flip(0), vectors[:, -count:].flip(1)
    kept = variance > LEAST * variance[0]
    scale = torch.where(kept, variance, 1.0).rsqrt() * kept
    found = x.new_zeros(x.shape[1], min(COMPONENTS, x.shape[1]))
    found[:, :count] = x.T @ (vectors * scale).to(x)
    return found


def action_shape(space: spaces.Space[object], action: Tree) -> tuple[int, ...]:
    """Return the shape [...] of a batch of actions."""
    inner = tree.branches(space)
    while inner:
        key = next(iter(inner))
        space, action = inner[key], action[key]
        inner = tree.branches(space)
    assert space.shape is not None
    shape: tuple[int, ...] = tuple(action.shape)
    return shape[: len(shape) - len(space.shape)]


def picture(space: spaces.Space[object]) -> bool:
    """Return whether a space is an image: bytes with sides of at least 4."""
    if not isinstance(space, spaces.Box) or not 2 <= len(space.shape) <= 4:
        return False
    return space.dtype == "uint8" and min(planes(space.shape)[1:]) >= 4


class ImageNets(nn.Module):
    """CNNs of one shape on images [N, *space] and numbers [N, size]: rewards [members, N, 1].

    Convolutions of 16 channels and hidden layers after them, as in Christiano et al. 2017 (appendix
    A.2): 8x8/4, 4x4/2 and 3x3/1, or 3x3/2 and 3x3/1 for a side below 36. A layer computes all
    members, by groups of channels.
    """

    def __init__(self, space: spaces.Space[object], size: int, settings: RewardNets) -> None:
        super().__init__()
        assert space.shape is not None
        self.members, self.scale = settings.members, scale_of(space)
        channels, *sides = planes(space.shape)
        small = min(sides) < SMALLEST
        convs = []
        for n, (kernel, stride) in enumerate(SMALL_CONVS if small else CONVS):
            wide = self.members * CHANNELS
            layer = nn.Conv2d(
                wide if n else channels,
                wide,
                kernel,
                stride,
                padding=int(small),
                groups=self.members if n else 1,
            )
            for weight in layer.weight.chunk(self.members):
                nn.init.orthogonal_(weight.data, math.sqrt(2))
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            convs.append(layer)
            sides = [(side + 2 * small - kernel) // stride + 1 for side in sides]
        self.convs = nn.ModuleList(convs)
        self.head = TwinMLP(
            CHANNELS * math.prod(sides) + size,
            settings.hidden,
            settings.activation,
            1,
            members=self.members,
        )

    def forward(self, images: Tensor, x: Tensor) -> Tensor:
        y = to_planes(images)
        for n, layer in enumerate(self.convs):
            y = F.relu(first_conv(layer, y, self.scale) if n == 0 else layer(y))  # type: ignore[arg-type]
        y = y.reshape(len(y), self.members, -1).transpose(0, 1)
        return self.head(torch.cat([y, x.expand(self.members, *x.shape)], -1))  # type: ignore[no-any-return]
