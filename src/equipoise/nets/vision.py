"""Torsos for images, and the choice of a torso.

A torso is a module that maps rows of observations (a tensor [N, ...], or a dict of those) to features [N, ``size_out``]. To
use your own, write a class that is made from the observation space and name it: ``torso="module:Class"``.

Which axis holds the channels is decided by the shape alone (``planes``): two sides of one length are height and width, else the
shorter of the first and the last axis holds them, of two that are equal the first. So a stack [4, 84, 84] is four channels, and
an image [7, 7, 3] three. [H, W] is one channel, and [S, H, W, C] a stack of S images with their channels last: S * C channels.

Bytes stay bytes until the first convolution: their scale, one over the highest of their space (255 of a screen, 1 of one-hots),
is folded into its weights each time they are used, and they become floats (bf16 under autocast, which holds 0 to 255 exactly)
in the layout that it wants, channels last.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from equipoise import tree
from equipoise.hints import hint, raised
from equipoise.nets.torso import MLP, encode, encoded_size, linear, ordered
from equipoise.types import Tree

SMALLEST = 36  # sides: below it the Nature CNN's strides leave nothing
KINDS = ("auto", "mlp", "nature", "resnet")


def planes(shape: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width) of an image of this shape; ValueError where it is none."""
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if len(shape) == 3:
        return (shape[2], shape[0], shape[1]) if channels_last(shape) else (shape[0], shape[1], shape[2])
    if len(shape) == 4:
        return shape[0] * shape[3], shape[1], shape[2]
    raise ValueError(f"expected an image [H, W], [C, H, W], [H, W, C] or [S, H, W, C], got shape {tuple(shape)}")


def channels_last(shape: Sequence[int]) -> bool:
    """Does the last axis of an image of rank 3 hold the channels? Equal sides tell, else the shorter of both end axes."""
    if shape[0] == shape[1] or shape[1] == shape[2]:
        return shape[0] == shape[1] != shape[2]
    return shape[2] < shape[0]


def to_planes(x: Tensor) -> Tensor:
    """Rows of images [N, ...], in any of these layouts, as [N, C, H, W]: a view but for [N, S, H, W, C]."""
    if x.ndim == 3:
        return x.unsqueeze(1)
    if x.ndim == 4:
        return x.permute(0, 3, 1, 2) if channels_last(x.shape[1:]) else x
    return x.permute(0, 2, 3, 1, 4).flatten(3).permute(0, 3, 1, 2)


def conv(channels_in: int, channels: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """Orthogonal weight with gain sqrt(2), bias 0 (CleanRL; Huang et al. 2022, "The 37 implementation details of PPO", 2)."""
    layer = nn.Conv2d(channels_in, channels, kernel, stride, padding)
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def first_conv(layer: nn.Conv2d, x: Tensor, scale: float) -> Tensor:
    """Apply ``layer`` to images [N, C, H, W]; integers are multiplied by ``scale``."""
    weight = layer.weight if x.is_floating_point() else layer.weight * scale
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    x = x.to(dtype, memory_format=torch.channels_last)
    return F.conv2d(x, weight, layer.bias, layer.stride, layer.padding)


def flat(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H * W * C]: no copy where the channels are last in memory."""
    return x.permute(0, 2, 3, 1).flatten(1)


class Nature(nn.Module):
    """Mnih et al. 2015 (doi:10.1038/nature14236): convolutions 32 8x8/4, 64 4x4/2, 64 3x3/1 and 512 units, all ReLU."""

    def __init__(self, shape: Sequence[int], *, scale: float = 1 / 255) -> None:
        super().__init__()
        self.scale = scale
        channels, height, width = planes(shape)
        if min(height, width) < SMALLEST:
            raise ValueError(f"torso 'nature' needs sides of {SMALLEST} and more, got {height}x{width}; take resnet or mlp")
        self.layers = nn.ModuleList([conv(channels, 32, 8, 4), conv(32, 64, 4, 2), conv(64, 64, 3)])
        sides = [((side - 8) // 4 + 1 - 4) // 2 + 1 - 2 for side in (height, width)]
        self.size_out = 512
        self.out = linear(64 * math.prod(sides), self.size_out, math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.layers
        x = torch.relu_(first_conv(first, to_planes(x), self.scale))  # type: ignore[arg-type]
        for layer in rest:
            x = torch.relu_(layer(x))
        return torch.relu_(self.out(flat(x)))


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = conv(channels, channels, 3, padding=1), conv(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(torch.relu_(self.one(torch.relu(x))))
        return x + y


class ResNet(nn.Module):
    """Espeholt et al. 2018 (arXiv:1802.01561), figure 3 right: sections of 16, 32, 32 channels, each a 3x3 convolution, a
    3x3/2 maximum and two residual blocks; then ReLU and 256 units with ReLU."""

    def __init__(self, shape: Sequence[int], sections: Sequence[int] = (16, 32, 32), *, scale: float = 1 / 255) -> None:
        super().__init__()
        self.scale = scale
        channels, height, width = planes(shape)
        self.convs, self.blocks = nn.ModuleList(), nn.ModuleList()
        for size in sections:
            self.convs.append(conv(channels, size, 3, padding=1))
            self.blocks.append(nn.Sequential(Residual(size), Residual(size)))
            channels, height, width = size, (height + 1) // 2, (width + 1) // 2
        self.size_out = 256
        self.out = linear(channels * height * width, self.size_out, math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        x = to_planes(x)
        for n, (layer, blocks) in enumerate(zip(self.convs, self.blocks, strict=True)):
            x = first_conv(layer, x, self.scale) if n == 0 else layer(x)  # type: ignore[arg-type]
            x = blocks(F.max_pool2d(x, 3, 2, 1))
        return torch.relu_(self.out(flat(torch.relu(x))))


def scale_of(space: Any) -> float:
    """The factor that scales an image's integers to 0 .. 1."""
    return 1.0 / max(float(space.high.max()), 1.0)


class Vision(nn.Module):
    """A CNN for each image of an observation (a Dict's in sorted key order), beside the other parts, encoded."""

    def __init__(self, observation: spaces.Space[Any], is_image: Callable[[Any], bool], cnn: Callable[..., Any]) -> None:
        super().__init__()
        self.parts = [(path, space, is_image(space)) for path, space in leaves(observation)]
        cnns = [cnn(space.shape, scale=scale_of(space)) for _, space, image in self.parts if image]
        self.cnns = nn.ModuleList(cnns)
        self.size_out: int = sum(one.size_out for one in cnns)
        self.size_out += sum(encoded_size(space) for _, space, image in self.parts if not image)

    def forward(self, obs: Tree) -> Tensor:
        cnns = iter(self.cnns)
        features = []
        for path, space, image in self.parts:
            x = obs
            for key in path:
                x = x[key]
            features.append(next(cnns)(x) if image else encode(space, x))
        return features[0] if len(features) == 1 else torch.cat([one.float() for one in features], -1)


def leaves(space: spaces.Space[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], spaces.Space[Any]]]:
    """(keys, space) of every part that has no parts itself, in the order of ``encode``."""
    if (inner := tree.branches(space)) is None:
        yield path, space
        return
    for key in ordered(space, inner):
        yield from leaves(inner[key], (*path, key))


def is_screen(space: spaces.Space[Any]) -> bool:
    """Is it certainly an image: bytes of rank 3 or 4 whose sides are long enough for the Nature CNN?"""
    bytes_ = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (3, 4)
    return bytes_ and min(planes(space.shape)[1:]) >= SMALLEST  # type: ignore[arg-type]


def could_be_image(space: spaces.Space[Any]) -> bool:
    """Can a CNN that the user asked for take it as an image: any Box of rank 3 or 4, and bytes of rank 2?"""
    if not isinstance(space, spaces.Box):
        return False
    return len(space.shape) in (3, 4) or (len(space.shape) == 2 and space.dtype == np.uint8)


def torso(kind: str, observation: spaces.Space[Any], *, hidden: Sequence[int], activation: str) -> Any:
    """The torso for an observation space: an ``MLP`` over encoded rows, or a module that takes the observations themselves.

    ``auto``: ``nature`` where ``is_screen`` holds for a part, else an MLP. ``hidden`` and ``activation`` are the MLP's.
    ValueError says what is wrong with a ``kind`` or with an observation that does not fit it.
    """
    if ":" in kind:
        return custom(kind, observation)
    if kind not in KINDS:
        raise ValueError(f"torso {kind!r} is unknown; known are {', '.join(KINDS)} and 'module:Class' for one of your own")
    is_image = is_screen if kind == "auto" else could_be_image
    if kind == "mlp" or (not (found := any(is_image(space) for _, space in leaves(observation))) and kind == "auto"):
        return MLP(encoded_size(observation), hidden, activation)
    if not found:
        raise ValueError(f"torso {kind!r}: expected an image among the observations, got {observation}")
    return Vision(observation, is_image, ResNet if kind == "resnet" else Nature)


def custom(name: str, observation: spaces.Space[Any]) -> Any:
    """``module:Class`` called with the observation space."""
    module, _, attribute = name.partition(":")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"torso {name!r}: expected an importable module, got {error}") from error
    except Exception as error:  # the module of a user may raise anything
        raise ValueError(f"torso {name!r}: expected a module that can be imported, got {raised(error)}") from error
    if (found := getattr(imported, attribute, None)) is None:
        known = [key for key, value in vars(imported).items() if inspect.isclass(value) and issubclass(value, nn.Module)]
        raise ValueError(f"torso {name!r}: {module} has no {attribute!r}{hint(attribute, known)}")
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise ValueError(f"torso {name!r}: expected a torch.nn.Module class, got {found!r}")
    signature = inspect.signature(found)
    try:
        signature.bind(observation)
    except TypeError as error:
        raise ValueError(
            f"torso {name!r}: expected {attribute}(observation_space), got {attribute}{signature}: {error}"
        ) from error
    made = found(observation)
    if not isinstance(size := getattr(made, "size_out", None), int):
        raise ValueError(f"torso {name!r}: expected an integer size_out, the width of what it returns, got {size!r}")
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
    ):  # random numbers drawn here must not change the weights that follow
        try:
            got = made(zeros(observation, 2))
        except Exception as error:
            raise ValueError(
                f"torso {name!r}: expected what takes two rows of {observation}, got {type(error).__name__}: {error}"
            ) from error
    if not isinstance(got, Tensor) or got.shape != (2, size):
        what = f"{list(got.shape)}" if isinstance(got, Tensor) else f"{type(got).__name__}"
        raise ValueError(f"torso {name!r}: expected [N, size_out] = {[2, size]} of two rows of observations, got {what}")
    return made


def zeros(space: spaces.Space[Any], rows: int) -> Tree:
    """Observations as a torso gets them, float64 as float32."""
    if (inner := tree.branches(space)) is not None:
        return {key: zeros(one, rows) for key, one in inner.items()}
    dtype = np.dtype(np.float32) if space.dtype == np.float64 else space.dtype
    return torch.from_numpy(np.zeros((rows, *(space.shape or ())), dtype))
