"""Learners with a part of each parameter make the update that one would have made, and their
checkpoint is that of one.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from equipoise import tree
from equipoise.algorithms.grpo import GRPO
from equipoise.algorithms.ppo import PPO
from equipoise.learners.learner import Learner
from equipoise.learners.parameters.kinds import parameters_of
from equipoise.learners.parameters.parts import part_of
from equipoise.nets.block import blocks, parts, recompute
from equipoise.record import statefile
from equipoise.types import Batch
from tests.algorithms import items
from tests.learners.apart import apart
from tests.learners.several import SEED, share
from tests.learners.test_pool import CONTINUOUS
from tests.learners.test_text_parts import GROUPS, SPEC
from tests.learners.test_text_parts import batch as text_batch

UPDATES, STREAMS, ROWS = 3, 4, 6
SMALL: dict[str, Any] = {
    "core": "gtrxl",
    "core_size": 32,
    "core_layers": 2,
    "core_window": 4,
    "hidden": (16, 16),
    "epochs": 2,
    "minibatches": 1,
}


def net_of(algorithm: Any) -> Any:
    return items.network(algorithm, CONTINUOUS, 0)


def batch(algorithm: Any, net: Any, update: int) -> Batch:
    data = items.drawn(CONTINUOUS, ROWS, STREAMS, update)
    logp = -torch.rand(ROWS, STREAMS, generator=items.generator(update))
    state = tree.map(lambda x: x.clone(), net.initial_state(STREAMS))
    return items.batch(
        replace(data, behaviour={"logp": logp, "value": logp}, state=state), torch.ones(STREAMS)
    )


def learner(algorithm: Any, net: Any, **settings: Any) -> Any:
    return Learner(
        algorithm, copy.deepcopy(net), schedule_updates=100, seed=SEED, batch=1_000, **settings
    )


def learned(made: Any, batches: list[Batch], pool: Any = None) -> None:
    for one in batches:
        made.step(one if pool is None else share(one, pool.rank, pool.size))


def one(options: dict[str, Any], updates: int = UPDATES) -> tuple[Any, list[Batch]]:
    """One learner after the updates, and the batches.

    One thread, as in the others' processes: other roundings may turn a ReLU on or off, and Adam
    makes much of it.
    """
    torch.set_num_threads(1)
    algorithm = PPO(**options)
    net = net_of(algorithm)
    batches = [batch(algorithm, net, n) for n in range(updates)]
    made = learner(algorithm, net)
    learned(made, batches)
    return made, batches


def arrays(state: Any) -> Any:
    return tree.map(lambda x: x.detach().clone().numpy() if isinstance(x, Tensor) else x, state)


def tensors(state: Any) -> Any:
    return tree.map(lambda x: torch.from_numpy(x.copy()) if not isinstance(x, int) else x, state)


def spread(
    pool: Any,
    kind: Any,
    options: dict[str, Any],
    updates: int,
    begins: str = "",
    again: bool = False,
) -> dict[str, Any]:
    """In a process each: learn -> the whole weights, the state, and how much of the parameters lies
    here.
    """
    algorithm = PPO(**options)
    net = net_of(algorithm)
    batches = [batch(algorithm, net, n) for n in range(updates)]
    if again:
        recompute(net)
    made = learner(algorithm, net, parameters=parameters_of(kind, pool))
    if begins:
        made.adopt(statefile.parse(Path(begins).read_bytes()))
    learned(made, batches, pool)
    here = sum(part_of(p).untyped_storage().nbytes() for p in made.net.parameters())
    slots = sum(
        x.untyped_storage().nbytes()
        for each in made.parameters.optimizers["all"].each
        for x in each.slots.values()
    )
    whole = sum(p.numel() * p.element_size() for p in made.net.parameters())
    params = {name: x.numpy() for name, x in made.params().items()}
    return {
        "params": params,
        "state": arrays(made.state()),
        "share": here / whole,
        "slots": slots / whole,
    }


@pytest.mark.thorough
def test_two_make_the_updates_of_one_and_their_state_is_that_of_one() -> None:
    whole, batches = one(SMALL)
    first, second = apart(2, spread, "fsdp", SMALL, UPDATES)
    assert max(first["share"], second["share"]) <= 0.6
    assert max(first["slots"], second["slots"]) <= 1.2  # Adam's two moments
    for name, x in whole.params().items():
        torch.testing.assert_close(
            torch.from_numpy(first["params"][name]), x, rtol=0, atol=1e-5, msg=name
        )
        assert (first["params"][name] == second["params"][name]).all()
    # One learner goes on from the state of two.
    went_on = learner(whole.algorithm, net_of(whole.algorithm))
    went_on.load(tensors(first["state"]))
    for name, x in went_on.params().items():
        assert (first["params"][name] == x.numpy()).all(), name
    assert went_on.version == UPDATES
    for made in (whole, went_on):
        learned(made, batches[:1])
    for name, x in whole.params().items():
        torch.testing.assert_close(went_on.params()[name], x, rtol=0, atol=1e-5, msg=name)


@pytest.mark.thorough
def test_two_go_on_from_the_state_of_one_and_compute_blocks_anew(tmp_path: Path) -> None:
    whole, batches = one(SMALL)
    saved = tmp_path / "state"
    saved.write_bytes(statefile.dump(whole.state()))
    learned(whole, batches)
    first, _ = apart(2, spread, "fsdp", SMALL, UPDATES, str(saved), True)
    for name, x in whole.params().items():
        torch.testing.assert_close(
            torch.from_numpy(first["params"][name]), x, rtol=0, atol=1e-5, msg=name
        )
    assert (first["state"]["version"], first["state"]["before"]) == (UPDATES, UPDATES)


@pytest.mark.thorough
def test_layers_that_are_spread_make_the_updates_of_one() -> None:
    options = SMALL | {"minibatches": 2}
    whole, _ = one(options)
    first, second = apart(2, spread, "tensor", options, UPDATES)
    assert 0.5 < first["share"] < 0.9
    for name, x in whole.params().items():
        torch.testing.assert_close(
            torch.from_numpy(first["params"][name]), x, rtol=0, atol=1e-5, msg=name
        )
        assert (first["params"][name] == second["params"][name]).all(), name
    went_on = learner(whole.algorithm, net_of(whole.algorithm))
    went_on.load(tensors(first["state"]))


HUB = {
    "family": "transformers",
    "model_type": "gpt2",
    "vocab_size": 20,
    "hidden_size": 16,
    "max_position_embeddings": 16,
    "fields": {
        "vocab_size": 20,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 16,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}


def text(pool: Any, part: int, model: Any = None) -> Any:
    """In a process each: a learner of text, with the groups of its rank; a group fewer in parts
    than the other's. ``model``: in the place of our decoder.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    algorithm = GRPO(num_generations=4, micro_batch=part)
    spec = SPEC if model is None else replace(SPEC, model=model)
    groups = [GROUPS[:3], GROUPS[3:]] if pool is not None else [GROUPS]
    mine = text_batch(groups[0 if pool is None else pool.rank])
    parameters = None if pool is None else parameters_of("fsdp", pool)
    made = Learner(
        algorithm,
        algorithm.network(spec),
        schedule_updates=10,
        seed=0,
        batch=16,
        parameters=parameters,
    )
    mine = replace(
        mine,
        data=replace(
            mine.data,
            behaviour=mine.data.behaviour
            | {"logp": torch.full(mine.data.action["token"].shape, -1.0)},
        ),
    )
    for _ in range(3):
        made.step(mine)
    units = [one for one in parts(made.net) if isinstance(one, FSDPModule)]
    found = {name: x.detach().clone().numpy() for name, x in made.params().items()}
    return found | {"units": np.array(len(units))}


@pytest.mark.thorough
def test_learners_of_text_may_have_other_numbers_of_parts() -> None:
    whole, (first, _) = text(None, 0), apart(2, text, 9)
    assert (whole.pop("units"), first["units"]) == (0, 2)
    for name, x in whole.items():
        torch.testing.assert_close(
            torch.from_numpy(first[name]), torch.from_numpy(x), rtol=1e-4, atol=2e-6, msg=name
        )


@pytest.mark.thorough
def test_a_model_of_transformers_is_gathered_layer_by_layer() -> None:
    pytest.importorskip("transformers")
    whole, (first, second) = text(None, 0, HUB), apart(2, text, 0, HUB)
    assert (whole.pop("units"), first["units"]) == (0, 2)
    for name, x in whole.items():
        torch.testing.assert_close(
            torch.from_numpy(first[name]), torch.from_numpy(x), rtol=1e-4, atol=2e-6, msg=name
        )
        assert (first[name] == second[name]).all(), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_policy_of_50m_parameters(tmp_path: Path) -> None:
    """The next update of two from the state of one,
    and the next one of one from the state of two.
    """
    options = SMALL | {"core_size": 512, "core_layers": 8, "core_heads": 8, "epochs": 1}
    whole, batches = one(options, updates=1)
    assert sum(p.numel() for p in whole.net.parameters()) >= 50_000_000
    saved = tmp_path / "state"
    saved.write_bytes(statefile.dump(whole.state()))
    learned(whole, batches)
    first, second = apart(2, spread, "fsdp", options, 1, str(saved))
    assert max(first["share"], second["share"]) <= 0.6
    assert max(first["slots"], second["slots"]) <= 1.2
    for name, x in whole.params().items():
        torch.testing.assert_close(
            torch.from_numpy(first["params"][name]), x, rtol=0, atol=1e-5, msg=name
        )
    went_on = learner(whole.algorithm, net_of(whole.algorithm))
    went_on.load(tensors(first["state"]))
    for name, x in went_on.params().items():
        assert (first["params"][name] == x.numpy()).all(), name
    learned(went_on, batches)


def test_blocks_computed_anew_have_the_same_gradients() -> None:
    whole, batches = one(SMALL, updates=1)
    net = net_of(whole.algorithm)
    recompute(net)
    assert len(blocks(net)) == 2
    anew = Learner(whole.algorithm, net, schedule_updates=100, seed=SEED, batch=1_000)
    learned(anew, batches)
    for name, x in whole.params().items():
        assert torch.equal(anew.params()[name], x), name
