"""Encoding and the hidden layers."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise.nets import MLP, encode, encoded_size
from equipoise.nets.torso import columns, linear


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("lead", [(5,), (4, 5)])
def test_box_becomes_float32_rows_in_order(dtype, shape, lead):
    space = spaces.Box(0, 100, shape, dtype)
    array = np.random.default_rng(0).integers(0, 100, (*lead, *shape)).astype(dtype)
    x = encode(space, torch.as_tensor(array))
    assert x.dtype == torch.float32
    assert x.shape == (*lead, encoded_size(space))
    # a picture
    scale = 1 / space.high.max() if len(space.shape) > 1 and space.dtype == np.uint8 else 1
    np.testing.assert_allclose(
        x.numpy(), array.reshape(*lead, -1).astype(np.float32) * scale, rtol=1e-6
    )


@pytest.mark.parametrize("shape", [(3, 24, 24), (5, 5), (2, 7, 7, 3)])
def test_a_small_picture_is_scaled_beside_other_parts(shape):
    space = spaces.Dict(
        {"image": spaces.Box(0, 255, shape, np.uint8), "v": spaces.Box(-1, 1, (2,))}
    )
    obs = {"image": torch.full((3, *shape), 255, dtype=torch.uint8), "v": torch.zeros(3, 2)}
    assert encode(space, obs).max() == 1 == encode(space, obs)[:, :-2].min()
    marks = spaces.Box(0, 1, shape, np.uint8)
    assert encode(marks, torch.ones((3, *shape), dtype=torch.uint8)).min() == 1, (
        "what has 1 as its bound is no picture"
    )


@pytest.mark.parametrize("start", [0, 3, -2])
def test_discrete_is_one_hot_from_its_start(start):
    space = spaces.Discrete(4, start=start)
    obs = torch.tensor([[start, start + 3], [start + 1, start + 2]])
    expected = torch.eye(4)[torch.tensor([[0, 3], [1, 2]])]
    assert torch.equal(encode(space, obs), expected)


def test_dict_concatenates_in_sorted_key_order():
    space = spaces.Dict(
        {
            "b": spaces.Discrete(2),
            "a": spaces.Box(-1, 1, (2,)),
            "c": spaces.Dict({"x": spaces.Box(0, 1, (1,))}),
        }
    )
    obs = {
        "b": torch.tensor([1]),
        "c": {"x": torch.tensor([[7.0]])},
        "a": torch.tensor([[5.0, 6.0]]),
    }
    assert encode(space, obs).tolist() == [[5, 6, 0, 1, 7]]
    assert encoded_size(space) == 5


def test_multi_discrete_is_one_hot_part_by_part():
    space = spaces.MultiDiscrete([[2, 3], [1, 2]], start=[[0, -1], [5, 0]], dtype=np.int32)
    obs = torch.tensor([[[0, 1], [5, 0]], [[1, -1], [5, 1]]], dtype=torch.int32)
    assert encode(space, obs).tolist() == [[1, 0, 0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 0, 1, 0, 1]]
    assert encode(space, obs[None]).shape == (1, 2, encoded_size(space)) == (1, 2, 8)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint8, np.int8])
def test_unsigned_values_are_compared_as_numbers(dtype):
    one, many = spaces.Discrete(3, dtype=dtype), spaces.MultiDiscrete([3, 2], dtype=dtype)
    assert encode(one, torch.from_numpy(np.array([2, 0], dtype))).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert encode(many, torch.from_numpy(np.array([[2, 0]], dtype))).tolist() == [[0, 0, 1, 1, 0]]


def test_multi_binary_and_bools_are_cast():
    assert encode(
        spaces.MultiBinary((2, 2)), torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int8)
    ).tolist() == [[0, 1, 1, 1]]
    assert encode(spaces.Box(0, 1, (2,), np.bool_), torch.tensor([[True, False]])).tolist() == [
        [1, 0]
    ]


def test_a_tuple_concatenates_in_its_own_order():
    parts = [spaces.Box(-9, 20, (1,)) for _ in range(11)]
    obs = {str(i): torch.tensor([[float(i)]]) for i in range(11)}
    assert encode(spaces.Tuple(parts), obs).tolist() == [[float(i) for i in range(11)]]


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Text(3)})])
def test_other_spaces_are_named_and_refused(space):
    named = space["a"] if isinstance(space, spaces.Dict) else space
    with pytest.raises(ValueError, match="supported are Box, Discrete, MultiDiscrete") as error:
        encoded_size(space)
    assert str(named) in str(error.value)
    with pytest.raises(ValueError, match="supported are Box"):
        encode(space, {"a": torch.zeros(1)})


@pytest.mark.parametrize("name", ["tanh", "relu", "elu", "silu"])
def test_mlp_is_the_plain_sequence(name):
    torch.manual_seed(0)
    mlp = MLP(3, (8, 5), name)
    module = {
        "tanh": torch.nn.Tanh,
        "relu": torch.nn.ReLU,
        "elu": torch.nn.ELU,
        "silu": torch.nn.SiLU,
    }[name]
    plain = torch.nn.Sequential(mlp.layers[0], module(), mlp.layers[1], module())
    x, weight = torch.randn(7, 3), torch.randn(7, 5)
    torch.testing.assert_close(mlp(x), plain(x))
    got = torch.autograd.grad((mlp(x) * weight).sum(), list(mlp.parameters()))
    want = torch.autograd.grad((plain(x) * weight).sum(), list(mlp.parameters()))
    torch.testing.assert_close(got, want)


def test_mlp_leaves_its_input_alone_and_may_be_empty():
    x = torch.randn(7, 3)
    before = x.clone()
    MLP(3, (4,))(x)
    assert torch.equal(x, before)
    assert MLP(3, ())(x) is x
    assert MLP(3, ()).size_out == 3


def test_unknown_activation_lists_the_known():
    with pytest.raises(ValueError, match="'tahn' is unknown; known are tanh, relu"):
        MLP(3, activation="tahn")


def test_layers_are_orthogonal_with_their_gain():
    torch.manual_seed(0)
    layer = linear(16, 8, 0.01)
    torch.testing.assert_close(
        layer.weight @ layer.weight.t(), 1e-4 * torch.eye(8), atol=1e-9, rtol=1e-4
    )
    assert not layer.bias.any()
    hidden = MLP(8, (8,)).layers[0].weight
    torch.testing.assert_close(
        hidden @ hidden.t(), math.sqrt(2) ** 2 * torch.eye(8), atol=1e-5, rtol=1e-5
    )


def test_columns_is_the_layer_transposed():
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 3)
    x = torch.randn(11, 6)
    torch.testing.assert_close(columns(layer, x), layer(x).t())
