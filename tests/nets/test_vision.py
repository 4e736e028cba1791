"""Torsos for images: layouts, scale, precision, and which torso is taken."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from equipoise import tree
from equipoise.nets import MLP, ActorCritic, CoreOptions
from equipoise.nets.cnn import Nature, ResNet, planes, to_planes
from equipoise.nets.heads import HeadOptions
from equipoise.nets.spatial import SpatialTransformer
from equipoise.nets.vision import KINDS, Vision
from equipoise.nets.vision import torso as make_torso
from equipoise.types import EnvSpec

SMALL_ONES = [kind for kind in KINDS if kind not in ("auto", "mlp", "vit-small")]
STACK = spaces.Box(0, 255, (4, 84, 84), np.uint8)
SMALL = spaces.Box(0, 255, (7, 7, 3), np.uint8)
MIXED = spaces.Dict(
    {
        "speed": spaces.Box(-1, 1, (2,)),
        "eyes": spaces.Dict({"left": STACK, "side": spaces.Discrete(3)}),
        "back": STACK,
    }
)


def images(space, count=5, seed=0):
    return torch.as_tensor(
        np.random.default_rng(seed).integers(0, 256, (count, *space.shape)).astype(space.dtype)
    )


def made(kind, space=STACK):
    torch.manual_seed(1)
    return make_torso(kind, space, hidden=(8,), activation="tanh")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 3), (3, 84, 84)),
        ((7, 7, 3), (3, 7, 7)),
        ((7, 7, 21), (21, 7, 7)),
        ((9, 4, 4), (9, 4, 4)),
        ((5, 9, 5), (5, 9, 5)),
        ((40, 50), (1, 40, 50)),
        ((4, 84, 96, 3), (12, 84, 96)),
    ],
)
def test_layout(shape, expected):
    assert planes(shape) == expected
    x = torch.arange(2 * np.prod(shape)).reshape(2, *shape)
    y = to_planes(x)
    assert y.shape == (2, *expected)
    if len(shape) == 4:
        assert torch.equal(y[1, 3 * 2 + 1], x[1, 2, :, :, 1])  # stack 2, colour 1
    elif len(shape) == 3 and expected[0] == shape[-1] and shape[0] == expected[1]:
        assert torch.equal(y[1, 2], x[1, :, :, 2])
    else:
        assert torch.equal(y.flatten(), x.flatten())


def test_what_is_no_image_is_refused():
    with pytest.raises(ValueError, match=r"expected an image .* got shape \(3,\)"):
        planes((3,))
    with pytest.raises(ValueError, match="needs sides of 36 and more, got 7x7; take resnet or mlp"):
        made("nature", SMALL)
    with pytest.raises(
        ValueError, match="'resnet': expected an image among the observations, got Box"
    ):
        made("resnet", spaces.Box(-1, 1, (3,)))
    with pytest.raises(
        ValueError, match="'natural' is unknown; known are auto, mlp, nature, .* and 'module:Class'"
    ):
        made("natural")


def plain_nature(net):
    a, b, c = net.layers
    relu = nn.ReLU()
    return nn.Sequential(a, relu, b, relu, c, relu), net.out


@pytest.mark.parametrize("shape", [(4, 84, 84), (36, 50, 3), (2, 48, 40, 3)])
def test_nature_is_the_papers_and_bytes_are_a_255th(shape):
    """Values and gradients equal those of the plain layers on x / 255, in the order rows, columns,
    channels.
    """
    torch.manual_seed(0)
    net = Nature(shape)
    x = images(spaces.Box(0, 255, shape, np.uint8))
    convs, out = plain_nature(net)
    want = torch.relu(out(convs(to_planes(x.float() / 255)).permute(0, 2, 3, 1).flatten(1)))
    got = net(x)
    assert got.shape == (5, 512) == (5, net.size_out) and got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
    weight = torch.randn_like(got)
    grads = [torch.autograd.grad((y * weight).sum(), list(net.parameters())) for y in (got, want)]
    torch.testing.assert_close(grads[0], grads[1], atol=1e-3, rtol=1e-3)
    # floats are taken as they are
    torch.testing.assert_close(net(x.float() / 255), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(4, 84, 84), (7, 7, 3), (3, 10, 21), (9, 8)])
def test_resnet(shape):
    torch.manual_seed(0)
    net = ResNet(shape)
    x = images(spaces.Box(0, 255, shape, np.uint8))
    got = net(x)
    assert got.shape == (5, 256) and net.size_out == 256
    # What is rounded off goes by the largest sums, which are around 30.
    torch.testing.assert_close(
        net(x.float() / 255), got, atol=4e-6 * float(got.detach().abs().max()), rtol=0.0
    )
    got.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())
    assert len(net.convs) == 3 and sum(isinstance(m, nn.Conv2d) for m in net.modules()) == 15


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", SMALL_ONES)
def test_both_layouts_give_the_same(kind):
    x = images(STACK)
    first, last = made(kind), made(kind, spaces.Box(0, 255, (84, 84, 4), np.uint8))
    torch.testing.assert_close(
        first(x), last(x.permute(0, 2, 3, 1).contiguous()), atol=1e-5, rtol=1e-4
    )


def test_layers_are_orthogonal():
    for net in (Nature((4, 84, 84)), ResNet((4, 84, 84))):
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                flat = module.weight.detach().flatten(1)
                gram = flat @ flat.t() if len(flat) <= flat.shape[1] else flat.t() @ flat
                torch.testing.assert_close(gram, 2 * torch.eye(len(gram)), atol=1e-4, rtol=1e-4)
                assert not module.bias.any()


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (STACK, Nature),
        (spaces.Box(0, 255, (36, 36, 3), np.uint8), Nature),
        (spaces.Box(0, 255, (35, 36, 3), np.uint8), None),
        (SMALL, None),
        (spaces.Box(0, 1, (84, 84, 3), np.float32), None),
        (spaces.Box(0, 255, (84, 84), np.uint8), None),
        (spaces.Box(-1, 1, (3,)), None),
        (MIXED, Nature),
    ],
)
def test_auto(space, kind):
    torso = made("auto", space)
    assert isinstance(torso, MLP) if kind is None else isinstance(torso.cnns[0], kind)
    assert isinstance(made("mlp", SMALL), MLP)


def test_mixed_observations():
    """Each image has a CNN of its own, the rest comes as it is encoded, in sorted key order."""
    net = made("nature", MIXED)
    assert isinstance(net, Vision) and net.size_out == 512 + 512 + 3 + 2 and len(net.cnns) == 2
    back, left = images(STACK), images(STACK, seed=1)
    speed = torch.randn(5, 2)
    obs = {
        "back": back,
        "eyes": {"left": left, "side": torch.tensor([0, 1, 2, 0, 1])},
        "speed": speed,
    }
    got = net(obs)
    torch.testing.assert_close(got[:, :512], net.cnns[0](back))
    torch.testing.assert_close(got[:, 512:1024], net.cnns[1](left))
    assert got[:, 1024:1027].argmax(1).tolist() == [0, 1, 2, 0, 1]
    assert torch.equal(got[:, 1027:], speed)


def test_an_image_in_a_tuple_is_one():
    net = made("auto", spaces.Tuple([STACK, spaces.Discrete(3)]))
    assert isinstance(net, Vision) and net.size_out == 512 + 3
    got = net({"0": images(STACK), "1": torch.tensor([0, 1, 2, 0, 1])})
    assert got[:, 512:].argmax(1).tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("kind", ["stn", "vit", "cross"])
@pytest.mark.parametrize("shape", [(96, 96, 3), (3, 10, 21)])
def test_bytes_are_a_255th_for_attention_as_well(kind, shape):
    """Sides that no patch divides are padded; every parameter has a gradient once the spatial
    transformer has moved.
    """
    net = made(kind, space := spaces.Box(0, 255, shape, np.uint8))
    x = images(space)
    got = net(x)
    assert got.shape == (5, 256) == (5, net.size_out)
    torch.testing.assert_close(net(x.float() / 255), got, atol=1e-4, rtol=1e-4)
    if kind == "stn":
        nn.init.normal_(net.cnns[0].affine.weight, std=0.01)
    net(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_a_patch_is_moved_and_seen_as_such():
    """Places matter: the same patches in another order are other features."""
    for kind in ("vit", "cross"):
        net = made(kind, space := spaces.Box(0, 255, (48, 48, 3), np.uint8))
        x = images(space, 1)
        with torch.no_grad():
            net.cnns[0].patches.place.mul_(50)
            assert (net(x) - net(torch.roll(x, 8, 1))).abs().max() > 1e-3


def test_a_spatial_transformer_begins_as_its_resnet_and_can_shift():
    torch.manual_seed(0)
    net, shape = SpatialTransformer((3, 40, 40)), (2, 3, 40, 40)
    x = torch.rand(shape)
    torch.testing.assert_close(net(x), net.resnet(x), atol=1e-4, rtol=1e-4)
    net.affine.bias.data[2] = 2 * 4 / 40  # four pixels to the right
    moved = torch.zeros(shape)
    moved[..., :-4] = x[..., 4:]
    torch.testing.assert_close(net(x), net.resnet(moved), atol=1e-3, rtol=1e-3)


@pytest.mark.thorough
def test_vit_small_is_the_published_one():
    count = sum(
        p.numel()
        for p in made("vit-small", spaces.Box(0, 255, (224, 224, 3), np.uint8)).parameters()
    )
    head = 384 * 256 + 256
    # timm's vit_small_patch16_224 without its classifier; a place for the token
    assert abs(count - head - 21_665_664) < 1_000


def test_one_hot_bytes_are_ones():
    """They count as the space says, not as 255ths."""
    space = spaces.Box(0, 1, (7, 7, 21), np.uint8)
    floats = spaces.Box(0, 1, (7, 7, 21), np.float32)
    bits = torch.randint(0, 2, (5, 7, 7, 21), dtype=torch.uint8)
    assert torch.equal(made("resnet", space)(bits), made("resnet", floats)(bits.float()))


def network(observation=STACK, action=None, seed=5, core="none", **kwargs):
    torch.manual_seed(seed)
    return ActorCritic(
        EnvSpec(observation=observation, action=action or spaces.Discrete(6)),
        core=CoreOptions(kind=core, size=6),
        **kwargs,
    )


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("kind", SMALL_ONES)
def test_step_and_unroll_agree(kind, core):
    net = network(MIXED, torso=kind, core=core, head=HeadOptions(gain=1.0))
    assert net.value_torso is None
    stack = images(STACK, 6).view(3, 2, 4, 84, 84)
    obs = {
        "back": stack,
        "eyes": {"left": stack.flip(0), "side": torch.ones(3, 2, dtype=torch.int64)},
        "speed": torch.randn(3, 2, 2),
    }
    first = torch.tensor([[False, False], [True, False], [False, False]])
    state = tree.map(torch.randn_like, net.initial_state(2))
    (policy, value), end = net.unroll(obs, first, state)
    for t in range(3):
        alone, _ = net.policy(tree.index(obs, t), first[t], state)
        (step, step_value), state = net.step(tree.index(obs, t), first[t], state)
        torch.testing.assert_close(step.log_probs, policy.log_probs[:, t], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(step_value, value[t], atol=1e-4, rtol=1e-4)
        assert torch.equal(alone.log_probs, step.log_probs)
    torch.testing.assert_close(state, end, atol=1e-4, rtol=1e-4)
    (policy.entropy().sum() + value.square().sum()).backward()
    assert all(
        p.grad is not None and p.grad.isfinite().all() for p in net.parameters() if p.requires_grad
    )


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize(
    ("space", "kind"), [*((STACK, kind) for kind in SMALL_ONES), (spaces.Box(-1, 1, (3,)), "mlp")]
)
def test_bf16_is_close_and_stays_in_the_torso(space, kind, core):
    # of the ViT seed 5 makes values near 0, of which a share says nothing
    seed = 6 if kind == "vit" else 5
    net = network(space, torso=kind, core=core, head=HeadOptions(gain=1.0), seed=seed)
    space.seed(0)
    obs = np.stack([space.sample() for _ in range(8)]) if space is not STACK else None
    x = torch.as_tensor(obs) if obs is not None else images(STACK, 8)
    first, state = torch.zeros(8, dtype=torch.bool), net.initial_state(8)
    (want, value), _ = net.step(x, first, state)
    seen = []
    net.torso.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        (got, low), end = net.step(x, first, state)
    assert seen == [torch.bfloat16]
    for tensor in (got.logits, low, *tree.leaves(end)):
        assert tensor.dtype == torch.float32
    for a, b in ((got.logits, want.logits), (low, value)):
        assert (a - b).norm() < 0.04 * b.norm()
    assert not torch.equal(low, value)
    assert not torch.equal(low, low.bfloat16().float())  # the head's product is exact
    low.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in net.parameters() if p.grad is not None)


class Custom(nn.Module):
    """What the documentation shows: a torso of one's own."""

    def __init__(self, observation):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.size_out = 8 * 5 * 5

    def forward(self, obs):
        x = obs.permute(0, 3, 1, 2).float() / 10
        return self.conv(x).relu().flatten(1)


def test_the_documented_torso_works(tmp_path, monkeypatch):
    """The code of docs/guides/networks.md, on MiniGrid's observations."""
    text = (Path(__file__).parents[2] / "docs/guides/networks.md").read_text()
    code = text.split("```python")[1].split("```")[0]
    assert len(code.splitlines()) < 30
    (tmp_path / "documented_nets.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    space = spaces.Dict({"direction": spaces.Discrete(4), "image": SMALL})
    net = network(space, torso="documented_nets:Small")
    obs = {"direction": torch.zeros(2, dtype=torch.int64), "image": images(SMALL, 2)}
    (_, value), _ = net.step(obs, torch.zeros(2, dtype=torch.bool), {})
    assert value.shape == (2,) and net.torso.size_out == 32 * 5 * 5


class Sizeless(nn.Module):
    def __init__(self, observation):
        super().__init__()


class Bare(nn.Module):
    def __init__(self):
        super().__init__()


class Boastful(Custom):
    def __init__(self, observation):
        super().__init__(observation)
        self.size_out = 300


class Narrow(Custom):
    def forward(self, obs):
        return super().forward(obs[..., :2])


class Talkative(Custom):
    def forward(self, obs):
        return super().forward(obs), None


def test_a_torso_of_ones_own():
    net = network(SMALL, torso=f"{__name__}:Custom")
    assert net.policy_head.in_features == 200 and net.value_torso is None
    (policy, value), _ = net.unroll(
        images(SMALL, 6).view(3, 2, 7, 7, 3),
        torch.zeros(3, 2, dtype=torch.bool),
        net.initial_state(2),
    )
    assert value.shape == (3, 2) and policy.log_probs.shape == (6, 3, 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:Net", "expected an importable module"),
        (f"{__name__}:Custon", r"has no 'Custon'; did you mean 'Custom'\?"),
        (f"{__name__}:images", "expected a torch.nn.Module class, got <function"),
        (f"{__name__}:Sizeless", "expected an integer size_out"),
        (
            f"{__name__}:Bare",
            r"expected Bare\(observation_space\), got Bare\(\): too many positional arguments",
        ),
        (
            f"{__name__}:Boastful",
            r"expected \[N, size_out\] = \[2, 300\] of two rows of observations, got \[2, 200\]",
        ),
        (
            f"{__name__}:Narrow",
            r"must take two rows of Box.*, got RuntimeError: .*channels",
        ),
        (f"{__name__}:Talkative", r"\[2, 200\] of two rows of observations, got tuple"),
    ],
)
def test_a_wrong_torso_is_named(name, said):
    with pytest.raises(ValueError, match=said) as error:
        network(SMALL, torso=name)
    assert name in str(error.value)


def test_a_torso_whose_module_does_not_parse_is_told_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "unparsed_nets.py").write_text("\nclass Net(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match=r"torso 'unparsed_nets:Net'.*SyntaxError: .*unparsed_nets.py, line 2\)"
    ):
        network(SMALL, torso="unparsed_nets:Net")
