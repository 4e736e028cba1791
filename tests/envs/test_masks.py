"""Action masks: where they come from, what they are checked for, and that they make an episode
worth more.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from equipoise import tree
from equipoise.envs import make
from equipoise.envs.check.check import check_env
from equipoise.envs.failures.capsule import EnvFailed, Failures
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.masks import legal, mask_space, place_of
from equipoise.types import EnvFactory
from tests.envs.rolling import rows

MANY = spaces.MultiDiscrete([2, 3])
TREE = spaces.Dict(
    {"go": spaces.Discrete(3, start=1), "set": spaces.Tuple([MANY, spaces.Box(-1, 1, (2,))])}
)
NONE_LEFT = "expected at least one action allowed, got none"


class Masked(gymnasium.Env[Any, Any]):
    """Episodes of 4; the masks of step t allow the values v with (v + t) % 2 == 0, and a forbidden
    action raises.

    ``how``: "info", "obs" (PettingZoo's way), "late" (none in the row that ends an episode),
    "never", "stuck" (nothing is allowed from step 2 on), "short".
    """

    def __init__(self, how: str = "info", action: str = "one") -> None:
        self.how = how
        self.action_space: Any = {"one": spaces.Discrete(3, start=1), "many": MANY, "tree": TREE}[
            action
        ]
        seen = spaces.Box(-9, 9, (2,), np.float64)
        self.observation_space: Any = seen
        if how == "obs":
            mask: Any = mask_space(self.action_space)
            self.observation_space = spaces.Dict({"observation": seen, "action_mask": mask})
        self.t = 0

    def mask(self) -> Any:
        even = (np.arange(3) + self.t) % 2 == 0
        one, many = even.astype(np.int8), (even[:2].astype(np.int8), even)
        if isinstance(self.action_space, spaces.Discrete):
            return one
        whole = np.concatenate(many) if self.how == "obs" else many
        if isinstance(self.action_space, spaces.MultiDiscrete):
            return whole
        return {"go": one, "set": {"0": whole} if self.how == "obs" else (whole, None)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.say(False)

    def step(self, action: Any) -> Any:
        even = (np.arange(3) + self.t) % 2 == 0
        if isinstance(action, dict):
            assert even[action["go"] - 1] and all(even[v] for v in action["set"][0])
        else:
            assert all(
                even[v]
                for v in np.ravel(
                    action - (1 if isinstance(self.action_space, spaces.Discrete) else 0)
                )
            )
        self.t += 1
        obs, info = self.say(self.t == 4)
        return obs, 1.0, self.t == 4, False, info

    def say(self, ended: bool) -> Any:
        obs, mask = np.array([self.t, 0.5]), self.mask()
        if self.how == "obs":
            return {"observation": obs, "action_mask": mask}, {}
        if self.how == "never" or (self.how == "late" and ended):
            return obs, {}
        if self.how == "stuck" and self.t >= 2:
            return obs, {"action_mask": np.zeros(3, np.int8)}
        return obs, {"action_mask": mask[:2] if self.how == "short" else mask}


class Vector(SyncVectorEnv):
    """Says its masks as arrays [B, n], as a native vector env would."""

    def __init__(self, num_envs: int, action: str = "one") -> None:
        super().__init__([lambda: Masked("info", action)] * num_envs, autoreset_mode="NextStep")


def sync(num_envs: int, how: str = "info", action: str = "one") -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Masked(how, action)] * num_envs, autoreset_mode="NextStep")


def concurrent(num_envs: int, action: str = "one") -> AsyncVectorEnv:
    return AsyncVectorEnv([lambda: Masked("info", action)] * num_envs, autoreset_mode="NextStep")


def env_of(
    name: str, choice: str, streams: Any = 2, failures: Failures | None = None, **kwargs: Any
) -> Any:
    factory = EnvFactory(target=f"{__name__}:{name}", kwargs=kwargs, action_mask=choice)
    return make(factory, streams=np.arange(streams), seed=0, failures=failures)


def play(env: Any, n: int) -> Any:
    """Rows of an env that is given actions which its last mask allows."""
    env.recv()
    seen = []
    for _ in range(n):
        action = env.form.zeros()
        mask = env.ts.obs
        for key in env.spec.mask:
            mask = mask[key]
        tree.map(lambda a: a.fill(1), action)
        legal(env.spec.action, action, mask)
        env.send(action, env.ts.stream)
        seen.append(tree.map(np.array, env.recv().obs))
    return tree.stack(seen)


@pytest.mark.parametrize("action", ["one", "many", "tree"])
@pytest.mark.parametrize(
    ("name", "choice", "kwargs"),
    [
        ("Masked", "info", {"how": "info"}),
        ("Masked", "info", {"how": "late"}),
        ("Masked", "auto", {"how": "obs"}),
        ("Masked", "obs/action_mask", {"how": "obs"}),
        ("sync", "auto", {"how": "obs"}),
        ("sync", "info", {"how": "late"}),
        ("Vector", "info", {}),
    ],
)
def test_masks_from_everywhere_are_a_part_of_the_observation(
    name: str, choice: str, kwargs: Any, action: str
) -> None:
    env = env_of(name, choice, action=action, **kwargs)
    got = play(env, 9)
    assert env.spec.mask == ("action_mask",)
    flat = [x for path, x in tree.items(got) if path.startswith("action_mask")]
    assert [x.shape[2:] for x in flat] == {"one": [(3,)], "many": [(5,)], "tree": [(3,), (5,)]}[
        action
    ]
    said = np.concatenate(flat, -1)[:, 1, : 5 if action == "many" else 3]
    for t, row in enumerate(said, 1):
        at = t if t <= 4 else t - 5  # an episode of 4 steps, then a seam
        even = (np.arange(3) + at) % 2 == 0
        expected = np.concatenate([even[:2], even]) if action == "many" else even
        assert row.tolist() == (
            expected.tolist() if at < 4 or kwargs.get("how") != "late" else [1] * len(expected)
        )
    assert got["observation" if kwargs.get("how") == "obs" else "obs"].dtype == np.float32


def test_workers_of_gymnasium_gather_them_too() -> None:
    env = env_of("concurrent", "info", action="tree")
    try:
        assert [x.tolist() for x in tree.leaves(play(env, 1)["action_mask"])] == [
            [[[0, 1, 0]] * 2],
            [[[0, 1, 0, 1, 0]] * 2],
        ]
    finally:
        env.close()


def test_none_and_auto_leave_the_rest_alone() -> None:
    assert env_of("Masked", "none", how="obs").spec.mask == ()
    assert env_of("Masked", "auto", how="info").spec.mask == ()
    assert make(EnvFactory(target="CartPole-v1"), streams=np.arange(1), seed=0).spec.mask == ()


def test_taxi_and_its_masks() -> None:
    name = max(name for name in gymnasium.registry if name.startswith("Taxi-v"))
    env = make(
        EnvFactory(target=f"python:{name}", action_mask="info"), streams=np.arange(2), seed=0
    )
    got = rows(env, [np.zeros(2, np.int64)])
    assert got["obs"]["obs"].dtype == np.int64 and got["obs"]["action_mask"].shape == (2, 2, 6)
    assert env.spec.resume == "replay"  # as without


# ------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize("name", ["Masked", "sync"])
def test_a_mask_that_allows_nothing_names_the_env_and_the_stream(name: str) -> None:
    with pytest.raises(WrongValue, match=rf"Mask.*, stream 0: obs/action_mask: {NONE_LEFT}"):
        play(env_of(name, "info", how="stuck"), 3)


def test_it_says_which_choice() -> None:
    env = env_of("Masked", "auto", how="obs", action="many")
    env.recv()
    env.ts.obs["action_mask"][1] = [1, 0, 0, 0, 0]
    assert not env.checks.fine()
    (wrong,) = env.checks.wrong()
    assert wrong.index == 1 and str(wrong).endswith("got none for choice 1 of 2")
    env.ts.terminated[1] = True  # whatever comes next is ignored
    assert env.checks.fine() and not env.checks.wrong()


def test_where_failures_cost_an_episode_so_does_an_empty_mask() -> None:
    failures = Failures()
    env = env_of("Masked", "info", failures=failures, how="stuck")
    play(env, 6)
    assert failures.counts.tolist() == [6, 0, 0]


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        (
            "Masked",
            "never",
            r"info/action_mask: expected a mask, since action_mask=info, got info with the keys \[\]",  # noqa: E501
        ),
        ("sync", "never", r"info/action_mask: expected a mask, since action_mask=info"),
        ("Masked", "short", r"info/action_mask: expected 3 numbers, got int8 \[2\]"),
    ],
)
def test_a_mask_that_is_not_there_or_does_not_fit(name: str, how: str, said: str) -> None:
    with pytest.raises(WrongValue, match=said):
        env_of(name, "info", how=how).recv()


def test_an_env_without_a_mask_fails_three_times_and_ends_the_run() -> None:
    with pytest.raises(EnvFailed, match="failed 3 times in a row .* since action_mask=info"):
        env_of("Masked", "info", failures=Failures(), how="never").recv()


def test_an_env_that_raises_at_what_its_unused_mask_forbids_says_so() -> None:
    def forbidden() -> None:
        env = env_of("Masked", "none", streams=1, failures=Failures())
        for _ in range(4):
            env.recv()
            env.send(np.array([2]), env.ts.stream)  # which step 0 forbids

    with (
        pytest.warns(RuntimeWarning, match="info has an 'action_mask' without a request") as warned,
        pytest.raises(
            EnvFailed,
            match="(?s)AssertionError.*: with --action-mask info only allowed actions are taken",
        ),
    ):
        forbidden()
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("choice", "observation", "action", "said"),
    [
        ("maybe", MANY, MANY, "action_mask: expected 'auto' .*, got 'maybe'"),
        (
            "obs/legal",
            spaces.Dict(a=MANY),
            MANY,
            r"expected a key of the observation space, one of \['a'\], got 'obs/legal'",
        ),
        (
            "obs/a",
            spaces.Dict(a=spaces.MultiBinary(4)),
            MANY,
            "MultiBinary.4. at obs/a: expected a mask of 5 values",
        ),
        (
            "auto",
            spaces.Dict(action_mask=spaces.Discrete(3)),
            spaces.Discrete(3),
            "expected a mask of 3 values",
        ),
        (
            "auto",
            spaces.Dict(action_mask=spaces.MultiBinary(2)),
            spaces.Box(-1, 1, (2,)),
            "expected no mask for the action",
        ),
        (
            "auto",
            spaces.Dict(action_mask=spaces.Dict(x=spaces.MultiBinary(3))),
            TREE,
            "at obs/action_mask: expected no mask",
        ),
    ],
)
def test_what_is_no_mask_is_refused(choice: str, observation: Any, action: Any, said: str) -> None:
    with pytest.raises((ValueError, UnsupportedSpace), match=said):
        place_of(choice, observation, action)


def test_a_box_has_none() -> None:
    with pytest.raises(
        ValueError,
        match="action_mask=info: expected a Discrete or MultiDiscrete among its actions, got Box",
    ):
        make(EnvFactory(target="Pendulum-v1", action_mask="info"), streams=np.arange(1), seed=0)


def test_a_board_of_masks_may_have_its_own_shape() -> None:
    board = spaces.Dict(action_mask=spaces.Box(0, 1, (2, 2, 3), np.int8), x=spaces.Discrete(2))
    assert place_of("auto", board, spaces.Discrete(12)) == ("action_mask",)


@pytest.mark.parametrize("how", ["info", "obs"])
@pytest.mark.parametrize("action", ["one", "many", "tree"])
def test_a_check_plays_by_the_rules(how: str, action: str) -> None:
    choice = "info" if how == "info" else "auto"
    report = check_env(
        EnvFactory(
            target=f"{__name__}:Masked", kwargs={"how": how, "action": action}, action_mask=choice
        ),
        steps=60,
    )
    assert [f.what for f in report.findings if f.severity == "error"] == []
    assert report.facts["action mask"] == "obs/action_mask"


def test_a_check_says_that_a_mask_is_not_used() -> None:
    name = max(name for name in gymnasium.registry if name.startswith("Taxi-v"))
    envs = {
        choice: EnvFactory(target=f"python:{name}", action_mask=choice)
        for choice in ("auto", "none")
    }
    facts = {choice: check_env(env, steps=20).facts for choice, env in envs.items()}
    assert (
        facts["auto"]["action mask"]
        == "in info['action_mask'], and not used: --set source.env.action_mask=info does"
    )
    assert "action mask" not in facts["none"]
