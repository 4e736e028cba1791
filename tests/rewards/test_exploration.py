"""The bonuses of learned features and of episodes: icm, e3b, episodic, and rnd as a modulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise import api
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.ppo import PPO
from equipoise.learners.pool import ALONE
from equipoise.learners.reward_sum import RewardSum
from equipoise.rewards.e3b import elliptical
from equipoise.rewards.observed import reached
from equipoise.rewards.streams import check_size, in_order
from equipoise.types import EnvSpec, Rewards, Trajectory
from tests.algorithms.items import BOX, DISCRETE, drawn, trajectory
from tests.rewards.test_curiosity import rows, term
from tests.rewards.test_terms import SMALL, batches

FAST = {"learning_rate": 1e-2, "steps": 4, **SMALL}
pytestmark = pytest.mark.usefixtures("one_thread")


def learn(made: Any, data: Trajectory, batches: int) -> Tensor:
    """Let a term learn from a batch some times -> its rewards after that."""
    name = made.name
    term = RewardSum(Rewards(sum=name), {name: made}, PPO(), ALONE, torch.device("cpu"))
    with torch.no_grad():
        for _ in range(batches - 1):
            term(data)
            term.learn(data, 0.0)
        return term(data)


def windows(data: Trajectory, cut: int) -> tuple[Trajectory, Trajectory]:
    """The rows before ``cut`` and the other ones, as two windows of each stream."""

    def part(a: int, b: int) -> Trajectory:
        edges = {name: getattr(data, name)[a : b + 1] for name in ("obs", "first")}
        inner = {
            name: getattr(data, name)[a:b]
            for name in ("action", "reward", "mask", "bootstrap", "version")
        }
        context = {**data.context, "start": data.context["start"] + a}
        return replace(data, **edges, **inner, context=context)

    return part(0, cut), part(cut, data.shape[0])


def with_episodes(data: Trajectory) -> Trajectory:
    """Some rows are seams, after which an episode begins."""
    first, mask = data.first.clone(), data.mask.clone()
    mask[[3, 7], [0, 1]] = False
    first[[4, 8], [0, 1]] = True
    return replace(data, first=first, mask=mask)


def side_by_side(*several: Trajectory) -> Trajectory:
    """One batch of windows of the same streams."""
    joined: dict[str, Any] = {
        name: torch.cat([getattr(one, name) for one in several], 1)
        for name in ("obs", "first", "action", "reward", "mask", "bootstrap", "version")
    }
    context = {key: torch.cat([one.context[key] for one in several]) for key in ("stream", "start")}
    return replace(several[0], **joined, context=context)


# --------------------------------------------------------------------------------------------- icm


@pytest.mark.parametrize("encoder", ["inverse", "random", "none"])
@pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "box"])
def test_icm_pays_the_error_of_its_forward_model_and_nothing_at_seams(
    spec: EnvSpec, encoder: str
) -> None:
    made, data = term("icm", spec, encoder=encoder, **FAST), drawn(spec, 12, 4, 0)
    assert not data.mask.all()
    with torch.no_grad():
        bonus = made.rewards(data)
        features = made.net.encoded(made.net.features.rows(data.obs))
        inputs = torch.cat([features[:-1], made.net.features.action_rows(data.action)], -1)
        predicted = made.net.last(made.net.forward_model(inputs.flatten(0, 1)))
    error = 0.5 * (predicted.view_as(features[1:]) - features[1:]).square().sum(-1)
    torch.testing.assert_close(bonus, error * data.mask)
    assert (bonus[reached(data)] > 0).all() and not bonus[~data.mask].any()
    kept = made.net.features.encoder[1].weight.clone()
    assert learn(made, data, 10).sum() < 0.7 * bonus.sum(), "it is foreseen by and by"
    assert torch.equal(kept, made.net.features.encoder[1].weight) == (encoder != "inverse")


def test_the_features_of_icm_tell_actions_and_leave_noise_out() -> None:
    """Two numbers of four: the first moves by the action, the others are noise."""
    torch.manual_seed(0)
    space = spaces.Box(-9, 9, (4,), np.float32)
    action = torch.randint(3, (32, 16))
    obs = torch.randn(33, 16, 4)
    obs[..., 0] = torch.cat([torch.zeros(1, 16), (action - 1.0).cumsum(0)]) / 3
    data = trajectory(obs, action, np.zeros((32, 16)))
    spec = EnvSpec(observation=space, action=spaces.Discrete(3))
    made = term("icm", spec, hidden=(32,), features=8, learning_rate=1e-2, steps=4)
    learn(made, data, 25)
    rows = made.net.features.rows(data.obs).requires_grad_()
    features = made.net.encoded(rows)
    told = made.net.features.inverse_loss(features[:-1], features[1:], data.action)
    told.sum().backward()
    assert told.mean() < 0.5 < np.log(3)
    slope = rows.grad.abs().mean((0, 1))
    assert slope[0] > 2 * slope[1:].max()


def noisy(seed: int) -> tuple[Trajectory, EnvSpec]:
    """A window of a number that moves by the action, beside four of noise."""
    rng = torch.Generator().manual_seed(seed)
    action = torch.randint(3, (64, 8), generator=rng)
    noise = torch.randn(65, 8, 4, generator=rng)
    place = torch.cat([torch.zeros(1, 8), (action - 1.0).cumsum(0)]) % 5
    obs = torch.cat([torch.eye(5)[place.long()], noise], -1)
    data = trajectory(obs, action, np.zeros((64, 8)))
    space = spaces.Box(-9, 9, (9,), np.float32)
    return data, EnvSpec(observation=space, action=spaces.Discrete(3))


@pytest.mark.thorough
@pytest.mark.parametrize(("encoder", "low", "high"), [("inverse", 0.0, 0.02), ("none", 0.3, 1.0)])
def test_the_bonus_of_noise_ends_with_learned_features_alone(
    encoder: str, low: float, high: float
) -> None:
    spec = noisy(0)[1]
    made = term("icm", spec, encoder=encoder, hidden=(32,), features=16, learning_rate=5e-3)
    steps = RewardSum(Rewards(sum="icm"), {"icm": made}, PPO(), ALONE, torch.device("cpu"))
    paid = []
    for batch in range(50):
        data = noisy(batch)[0]
        with torch.no_grad():
            paid.append(float(steps(data).mean()))
            steps.learn(data, 0.0)
    last = sum(paid[-5:]) / 5
    assert low < last / max(paid) < high


def test_a_step_of_icm_takes_a_share_of_the_rows_and_each_step_others() -> None:
    made, data = term("icm", share=0.25, **SMALL), batches(1)[0].data
    made.rewards(data)
    counts = [float(made.loss(data).count) for _ in range(8)]
    assert 0.1 * reached(data).sum() < sum(counts) / 8 < 0.4 * reached(data).sum()
    losses = {made.loss(data).loss.item() for _ in range(8)}
    assert len(losses) > 4
    whole = term("icm", share=1.0, **SMALL)
    bonus = whole.rewards(data)
    wanted = whole.beta * bonus.sum()
    features = whole.net.encoded(whole._rows)
    told = whole.net.features.inverse_loss(features[:-1], features[1:], data.action)
    wanted += (1 - whole.beta) * (told * reached(data)).sum()
    torch.testing.assert_close(whole.loss(data).loss, wanted)


# --------------------------------------------------------------------------------------------- e3b


def test_updates_of_the_inverse_matrix_equal_the_direct_inverse() -> None:
    data, ridge = with_episodes(drawn(DISCRETE, 12, 4, 1)), 0.1
    features = torch.randn(13, 4, 5, dtype=torch.float64)
    begins, real = data.first[:-1], reached(data)
    new = torch.eye(5, dtype=torch.float64) / ridge
    bonus, after = elliptical(features, begins, real, new.expand(4, 5, 5), new)
    for b in range(4):
        matrix = ridge * torch.eye(5, dtype=torch.float64)
        for t in range(12):
            if begins[t, b]:
                matrix = ridge * torch.eye(5, dtype=torch.float64)
                matrix += features[t, b].outer(features[t, b])
            if real[t, b]:
                f = features[t + 1, b]
                torch.testing.assert_close(bonus[t, b], f @ matrix.inverse() @ f, rtol=0, atol=1e-5)
                matrix += f.outer(f)
            else:
                assert bonus[t, b] == 0
        torch.testing.assert_close(after[b], matrix.inverse(), rtol=0, atol=1e-5)
    assert begins.any() and not real.all()


@pytest.mark.parametrize("name", ["e3b", "episodic"])
def test_an_episode_goes_on_in_the_next_batch_and_in_the_next_window(name: str) -> None:
    small = {"encoder": "random", **SMALL} if name == "e3b" else {"bits": 3, "once": False}
    data = with_episodes(drawn(DISCRETE, 12, 4, 2))
    data = replace(data, obs=data.obs.round())
    start, end = windows(data, 6)
    whole, parts, mixed = (term(name, **small) for _ in range(3))
    wanted = whole.rewards(data)
    found = [parts.rewards(start)]
    if name == "e3b":  # as it is before the statistics
        parts._inverse = parts._after
    else:
        parts.absorb(start, ALONE)
    found.append(parts.rewards(end))
    torch.testing.assert_close(torch.cat(found), wanted)
    backwards = mixed.rewards(side_by_side(end, start))
    torch.testing.assert_close(torch.cat([backwards[:, 4:], backwards[:, :4]]), wanted)
    if name == "e3b":
        torch.testing.assert_close(mixed._after, whole._after)
    else:
        assert torch.equal(mixed._after, whole._after)


def test_e3b_divides_by_the_running_deviation_and_random_features_stay() -> None:
    made, data = term("e3b", encoder="random", **SMALL), batches(1)[0].data
    raw = made.rewards(data)
    assert made.loss(data) is None
    made.absorb(data, ALONE)
    deviation = raw[reached(data)].double().std(correction=0)
    made._inverse = made._inverse[:0]
    made.net.norm = term("e3b", **SMALL).net.norm
    torch.testing.assert_close(made.rewards(data), (raw / deviation).float())


@pytest.mark.parametrize(
    ("name", "key", "streams"), [("e3b", "features", 8192), ("episodic", "bits", 4097)]
)
def test_the_state_of_all_streams_has_a_bound_and_64_take_a_few_megabytes(
    name: str, key: str, streams: int
) -> None:
    made = term(name)
    assert 64 * made._new.nbytes < 5e6
    check_size(4096, made._new, key)
    data = drawn(DISCRETE, 4, 2, 0)
    data = replace(data, context={**data.context, "stream": torch.tensor([0, streams])})
    with pytest.raises(
        ValueError,
        match=rf"^reward.{name}.{key}: must take at most 256 MiB .*; try a smaller {key}",
    ):
        made.rewards(data)


@pytest.mark.parametrize("name", ["e3b", "episodic"])
def test_bonuses_of_episodes_refuse_a_replay_in_one_sentence(name: str) -> None:
    in_order(PPO(), name)
    with pytest.raises(ValueError, match=rf"^reward: {name}: must have an .*, got DQN, .* try ppo"):
        term(name, algorithm=DQN())
    with pytest.raises(ValueError, match=f"reward: {name}: must have"):
        api.program("CartPole-v1", "dqn", reward=f"env+{name}")


# ---------------------------------------------------------------------------------------- episodic


def test_first_visits_of_an_episode_pay_and_the_next_episode_begins_again() -> None:
    data, spec = rows(np.array([0, 1, 1, 0, 2, 0, 1, 0]), spaces.Discrete(3))
    first, mask = data.first.clone(), data.mask.clone()
    first[0] = first[5] = True
    mask[4] = False  # the seam between two episodes
    data = replace(data, first=first, mask=mask)
    made, often = term("episodic", spec), term("episodic", spec, once=False)
    # 0 began the first episode and the second one
    assert made.rewards(data).flatten().tolist() == [1, 0, 0, 1, 0, 1, 0]
    wanted = [1, 2**-0.5, 2**-0.5, 1, 0, 1, 2**-0.5]
    assert often.rewards(data).flatten().tolist() == pytest.approx(wanted)
    often.absorb(data, ALONE)
    assert often.state()["counts"].tolist() == [[2, 1, 0]]


def test_one_key_of_the_observation_is_counted() -> None:
    space = spaces.Dict(
        {"far": spaces.Dict({"x": spaces.Discrete(3)}), "noise": spaces.Box(-1, 1, (2,))}
    )
    obs: Any = {
        "far": {"x": torch.tensor([0, 1, 1, 2])[:, None]},
        "noise": torch.randn(4, 1, 2),
    }
    data = trajectory(obs, torch.zeros(3, 1, dtype=torch.int64), np.zeros((3, 1)))
    spec = EnvSpec(observation=space, action=spaces.Discrete(2))
    assert term("episodic", spec, key="far/x").rewards(data).flatten().tolist() == [1, 0, 1]
    assert term("episodic", spec).rewards(data).flatten().tolist() == [1, 1, 1]
    with pytest.raises(
        ValueError, match=r"episodic.key: must be a key of .*\(far, noise\), got 'a"
    ):
        term("episodic", spec, key="a")


def test_whole_numbers_are_told_apart_by_each_of_them() -> None:
    many = np.random.default_rng(0).integers(5, size=(1001, 60))
    many[1:, :59] = many[0, :59]  # they differ in one number of sixty
    data, spec = rows(many, spaces.MultiDiscrete([5] * 60))
    made = term("episodic", spec, bits=16)
    assert len(made._hashes(data.obs)[1:].unique()) == 5
    many = np.random.default_rng(1).integers(5, size=(1001, 60))
    data, _ = rows(many, spec.observation)
    assert len(made._hashes(data.obs).unique()) > 985, "few collisions"


# --------------------------------------------------------------------------------------- modulator


def test_rnd_as_a_modulator_is_one_and_the_deviations_above_the_mean_at_most_the_limit() -> None:
    made, given = term("rnd", warmup=8, modulator=1.5, **SMALL), batches(3)
    for one in given[:2]:
        assert (made.rewards(one.data) == 1).all()
        made.loss(one.data)
        made.absorb(one.data, ALONE)
    found = made.rewards(given[2].data)
    norm = made._scale.state()["statistics"]
    deviation = (norm["m2"] / norm["count"]).sqrt()
    alpha = 1 + (made._errors - norm["mean"]) / deviation
    torch.testing.assert_close(found.double(), alpha.clamp(1, 1.5).double(), rtol=1e-4, atol=1e-5)
    assert (found == 1).any() and (found == 1.5).any()
    with pytest.raises(ValueError, match="modulator: must be 0 or at least 1, got 0.5"):
        term("rnd", modulator=0.5)
