"""Torsos for images, and the choice of a torso.

A torso is a module that maps rows of observations (a tensor [N, ...], or a dict of those) to
features [N, ``size_out``]. To use your own, write a class that is made from the observation space
and name it: ``torso="module:Class"``.

A torso for images has a module for each image of an observation, made by an entry of ``IMAGES``
from the image's shape and the scale of its integers, that maps images [N, *shape] to [N,
``size_out``].
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from equipoise import tree
from equipoise.facts import KEPT, Help
from equipoise.hints import hint, raised
from equipoise.nets.cnn import SMALLEST, Nature, ResNet, planes
from equipoise.nets.patches import CrossAttention, ViT
from equipoise.nets.spatial import SpatialTransformer
from equipoise.nets.torso import MLP, encode, encoded_size, ordered, scale_of
from equipoise.nets.vae import Encoder
from equipoise.types import Tree

IMAGES: dict[str, Callable[..., object]] = {
    "auto": Nature,
    "nature": Nature,
    "resnet": ResNet,
    "stn": SpatialTransformer,
    "vit": ViT,
    "vit-small": partial(ViT, patch=16, width=384, layers=12, heads=6),
    "cross": CrossAttention,
    "vae": Encoder,
}
KINDS = ("auto", "mlp", *list(IMAGES)[1:])
Torso = Annotated[
    str,
    Help(
        "Torso (feature extractor), or module:Class of your own",
        f"Built in: {', '.join(KINDS)}.",
    ),
    KEPT,
]


class Vision(nn.Module):
    """A module for each image of an observation; other parts are encoded. Keys are sorted."""

    def __init__(
        self,
        observation: spaces.Space[object],
        is_image: Callable[[spaces.Space[object]], bool],
        cnn: Callable[..., Any],
    ) -> None:
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
        return (
            features[0] if len(features) == 1 else torch.cat([one.float() for one in features], -1)
        )


class Latent(nn.Module):
    """Hidden layers over the latents of images, next to the other parts."""

    def __init__(self, vision: Vision, hidden: Sequence[int], activation: str) -> None:
        super().__init__()
        self.vision, self.layers = vision, MLP(vision.size_out, hidden, activation)
        self.size_out = self.layers.size_out

    def forward(self, obs: Tree) -> Tensor:
        return self.layers(self.vision(obs).float())  # type: ignore[no-any-return]

    def encoders(self) -> dict[tuple[str, ...], Any]:
        """By the keys that lead to the image of each."""
        images = [path for path, _, image in self.vision.parts if image]
        return dict(zip(images, self.vision.cnns, strict=True))


def encoders(net: nn.Module) -> dict[str, Encoder]:
    """The encoders of a network by the paths of their images within an observation; {} if it has no
    encoder.

    ValueError if several of its parts have their own: a row would be kept once for each.
    """
    found: list[Any] = [
        module for module in net.modules() if isinstance(getattr(module, "torso", None), Latent)
    ]
    if not found:
        return {}
    if len(found) > 1:
        kind = type(net).__name__
        raise ValueError(
            "algorithm.torso: expected a network with one torso for vae, such as DQN's or R2D2's, "
            f"got {kind} with {len(found)}"
        )
    (one,) = found
    keys = getattr(one, "seen", ())
    return {tree.path_of(*keys, *path): encoder for path, encoder in one.torso.encoders().items()}


def leaves(
    space: spaces.Space[object], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], spaces.Space[object]]]:
    """(keys, space) of every part that has no parts itself, in the order of ``encode``."""
    if (inner := tree.branches(space)) is None:
        yield path, space
        return
    for key in ordered(space, inner):
        yield from leaves(inner[key], (*path, key))


def is_screen(space: spaces.Space[object]) -> bool:
    """Is the space surely an image: bytes of rank 3 or 4, sides enough for the Nature CNN?"""
    bytes_ = (
        isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (3, 4)
    )
    return bytes_ and min(planes(space.shape)[1:]) >= SMALLEST  # type: ignore[arg-type]


def could_be_image(space: spaces.Space[object]) -> bool:
    """May a CNN take the space as an image: a Box of rank 3 or 4, or bytes of rank 2?"""
    if not isinstance(space, spaces.Box):
        return False
    return len(space.shape) in (3, 4) or (len(space.shape) == 2 and space.dtype == np.uint8)


def torso(
    kind: str, observation: spaces.Space[object], *, hidden: Sequence[int], activation: str
) -> Any:
    """The torso for an observation space: an ``MLP`` over encoded rows, or a module that takes the
    observations themselves.

    ``auto``: ``nature`` if ``is_screen`` holds for a part, else an MLP. ``hidden`` and
    ``activation`` are the MLP's. ValueError describes a wrong ``kind``, or an observation that does
    not fit it.
    """
    if ":" in kind:
        return custom(kind, observation)
    if kind not in KINDS:
        known = f"known are {', '.join(KINDS)} and 'module:Class' for one of your own"
        raise ValueError(f"torso {kind!r} is unknown; {known}{hint(kind, KINDS)}")
    is_image = is_screen if kind == "auto" else could_be_image
    if kind == "mlp" or (
        not (found := any(is_image(space) for _, space in leaves(observation))) and kind == "auto"
    ):
        return MLP(encoded_size(observation), hidden, activation)
    if not found:
        raise ValueError(
            f"torso {kind!r}: expected an image among the observations, got {observation}"
        )
    vision = Vision(observation, is_image, IMAGES[kind])
    return Latent(vision, hidden, activation) if kind == "vae" else vision


def custom(name: str, observation: spaces.Space[object]) -> object:
    """``module:Class`` called with the observation space."""
    module, _, attribute = name.partition(":")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"torso {name!r}: expected an importable module, got {error}") from error
    except Exception as error:  # the module of a user may raise anything
        raise ValueError(
            f"torso {name!r}: expected a module that can be imported, got {raised(error)}"
        ) from error
    if (found := getattr(imported, attribute, None)) is None:
        known = [
            key
            for key, value in vars(imported).items()
            if inspect.isclass(value) and issubclass(value, nn.Module)
        ]
        raise ValueError(f"torso {name!r}: {module} has no {attribute!r}{hint(attribute, known)}")
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise ValueError(f"torso {name!r}: expected a torch.nn.Module class, got {found!r}")
    signature = inspect.signature(found)
    try:
        signature.bind(observation)
    except TypeError as error:
        raise ValueError(
            f"torso {name!r}: expected {attribute}(observation_space), got {attribute}{signature}: "
            f"{error}"
        ) from error
    made = found(observation)
    if not isinstance(size := getattr(made, "size_out", None), int):
        raise ValueError(
            f"torso {name!r}: expected an integer size_out, the width of what it returns, got "
            f"{size!r}"
        )
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
    ):  # random numbers drawn here must not change the weights that follow
        try:
            got = made(zeros(observation, 2))
        except Exception as error:
            raise ValueError(
                f"torso {name!r}: must take two rows of {observation}, got "
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(got, Tensor) or got.shape != (2, size):
        what = f"{list(got.shape)}" if isinstance(got, Tensor) else f"{type(got).__name__}"
        raise ValueError(
            f"torso {name!r}: expected [N, size_out] = {[2, size]} of two rows of observations, "
            f"got {what}"
        )
    return made


def zeros(space: spaces.Space[object], rows: int) -> Tree:
    """Observations as a torso gets them, float64 as float32."""
    if (inner := tree.branches(space)) is not None:
        return {key: zeros(one, rows) for key, one in inner.items()}
    dtype = np.dtype(np.float32) if space.dtype == np.float64 else space.dtype
    return torch.from_numpy(np.zeros((rows, *(space.shape or ())), dtype))
