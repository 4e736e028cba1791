"""Equipoise from Python: options in their order, errors that name the nearest,
policies that play.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import equipoise as eq
from equipoise import api
from equipoise.api.evaluating import Asked, evaluated
from equipoise.console.terminal import summary_rows
from equipoise.plans.plan import plan_run
from equipoise.recipes import RECIPES
from equipoise.run.evaluation_schedule import fixed_policies
from equipoise.types import learning


def test_a_batch_smaller_than_the_run_is_kept_where_nobody_idles() -> None:
    """Free-running actors may each be a batch;
    with a bound on the lag there must be room for all.
    """
    made = api.program("CartPole-v1", "a3c")
    assert made.actors > 1 and learning(made)["main"].batch == made.placement.envs_per_actor
    made = api.program("CartPole-v1", "a3c", max_lag=0)
    assert learning(made)["main"].batch == made.actors * made.placement.envs_per_actor


def test_fields_and_settings_win_over_the_recipe() -> None:
    made = api.program(
        "CartPole-v1", "ppo", settings=["policy.unroll=16", "algorithm.gamma=0.5"], actors=2
    )
    policy: Any = made.policies["main"]
    assert (policy.unroll, policy.algorithm.gamma, made.actors) == (16, 0.5, 2)
    assert policy.batch == 2 * made.placement.envs_per_actor, (
        "a batch that is not given follows the streams"
    )
    assert learning(api.program("CartPole-v1", "ppo", actors=2, batch=64))["main"].batch == 64


def test_unknown_names_are_errors_that_name_the_nearest() -> None:
    with pytest.raises(TypeError, match="actors"):
        api.program("CartPole-v1", "ppo", **cast(Any, {"actor": 2}))
    with pytest.raises(ValueError, match="ppo"):
        api.program("CartPole-v1", "pop")
    with pytest.raises(TypeError, match="says everything itself; got actors"):
        api.start(api.program("CartPole-v1"), actors=2)
    with pytest.raises(ValueError, match="env: must be at the top of a module"):
        api.program(lambda: None)


def test_options_are_read_like_those_of_the_command_line() -> None:
    texts: Any = {
        "steps": "20k",
        "max_lag": "none",
        "actors": "2",
        "unroll": "8",
        "metrics": "won",
        "stop_at": 475,
    }
    made = api.program("CartPole-v1", "impala", **texts)
    assert (
        made.schedule.steps,
        made.placement.max_lag,
        made.actors,
        made.source.reported,
        made.evaluation.stop_at,
    ) == (
        20_000,
        None,
        2,
        ("won",),
        475.0,
    )
    assert learning(made)["main"].unroll == 8 and type(made.evaluation.stop_at) is float
    assert (
        api.program("CartPole-v1", steps=cast(Any, np.int64(2048)), device="cpu").schedule.steps
        == 2048
    )
    for wrong, said in (
        ({"actors": "two"}, "actors: expected a whole number or auto, got 'two'"),
        ({"steps": [1]}, "steps: expected a whole"),
    ):
        with pytest.raises(ValueError, match=said):
            api.program("CartPole-v1", **wrong)


def test_settings_may_be_a_dict_but_not_one_text() -> None:
    made = api.program(
        "CartPole-v1",
        settings={"algorithm.gamma": 0.5, "policy.unroll": "16", "env.max_episode_steps": 9},
    )
    policy: Any = made.policies["main"]
    assert (policy.algorithm.gamma, policy.unroll, made.env.kwargs) == (
        0.5,
        16,
        {"max_episode_steps": 9},
    )
    with pytest.raises(ValueError, match="algorithm.gamma: expected a number, got 'x'"):
        api.program("CartPole-v1", settings={"algorithm.gamma": "x"})
    for wrong in (
        lambda: api.program("CartPole-v1", settings="steps=1"),
        lambda: api.check("CartPole-v1", settings="env.a=1"),
    ):
        with pytest.raises(
            ValueError,
            match=r"settings: expected a list such as \['algorithm.gamma=0.98'\], or a dict, got "
            r"the",
        ):
            wrong()
    with pytest.raises(
        TypeError, match=r"is the optimizer's: expected settings=\{'optimizer.learning_rate': 0.1\}"
    ):
        api.program("CartPole-v1", **cast(Any, {"learning_rate": 0.1}))


def test_what_is_said_twice_has_to_be_said_alike() -> None:
    assert (
        learning(api.program("CartPole-v1", unroll=16, settings=["policy.unroll=16"]))[
            "main"
        ].unroll
        == 16
    )
    cases: Any = (
        (
            {"unroll": 8},
            "policy.unroll=16",
            "unroll: expected to be given once, got 8 and, by the setting policy.unroll, 16",
        ),
        (
            {"steps": 100},
            "schedule.steps=1k",
            "steps: expected to be given once, got 100 and, by the setting schedule.steps",
        ),
        (
            {"env_kwargs": {"size": 3}},
            "env.size=4",
            "size: expected to be given once, got 3 in env_kwargs and, by the setting env.size, 4",
        ),
    )
    for given, setting, said in cases:
        with pytest.raises(ValueError, match=said):
            api.program("CartPole-v1", settings=[setting], **given)
    with pytest.raises(ValueError, match=said):
        api.check("CartPole-v1", settings=["env.size=4"], env_kwargs={"size": 3})
    alike = api.program(
        "CartPole-v1", settings={"env.max_episode_steps": 9}, env_kwargs={"max_episode_steps": 9}
    )
    assert alike.env.kwargs["max_episode_steps"] == 9


def test_an_algorithm_beside_policies_has_to_be_one_of_theirs() -> None:
    policies = ["speaker=ppo", "listener=appo"]
    with pytest.raises(
        ValueError,
        match=r"algorithm: expected one that a policy has \(appo, ppo\), .* got 'impala'",
    ):
        api.program("A-v0", "impala", policies=policies)
    assert api.program("A-v0", "appo", policies=policies).placement.max_lag == 1


@pytest.mark.parametrize("name", ["main", "other"])
def test_an_env_of_one_agent_has_one_policy_and_that_is_main(name: str) -> None:
    made = api.program("CartPole-v1", policies={name: "ppo"})
    if name == "main":
        assert tuple(plan_run(made).roles) == ("main",)
    else:
        with pytest.raises(
            ValueError, match="expected a PettingZoo parallel env for the policy 'other'"
        ):
            plan_run(made)


def finish(run: Any) -> Any:
    for _ in run:
        pass
    return run


@pytest.mark.parametrize(
    ("algorithm", "core"), [("impala", "none"), ("ppo", "none"), ("ppo", "gru")]
)
def test_minibatches_of_every_kind_train(algorithm: str, core: str, tmp_path: Any) -> None:
    """IMPALA's loss runs along time, so its parts are windows; PPO's are rows, or windows of a
    recurrent network.
    """
    settings = ["algorithm.minibatches=2", "algorithm.epochs=2", f"algorithm.core={core}"]
    run = finish(
        api.start(
            "CartPole-v1",
            algorithm,
            on="serial",
            out=tmp_path / "run",
            settings=settings,
            actors=1,
            envs_per_actor=4,
            unroll=8,
            steps=100,
            recipe=False,
            evaluate_episodes=2,
        )
    )
    assert run.summary["updates"] == 4 and run.summary["evaluation"]["episodes"] == 2


def test_a_loaded_policy_plays_one_or_many_and_stays_in_the_space(tmp_path: Any) -> None:
    options: dict[str, Any] = {
        "on": "serial",
        "actors": 1,
        "envs_per_actor": 4,
        "unroll": 8,
        "steps": 32,
        "evaluate_episodes": 0,
    }
    run = finish(
        api.start(
            "Pendulum-v1",
            "ppo",
            out=tmp_path / "run",
            settings=["algorithm.minibatches=1"],
            **options,
        )
    )
    player = eq.load(run.directory)
    space = player.spec.action
    one = player.act(np.zeros(3), deterministic=False)
    assert space.contains(one.astype(space.dtype))
    player.reset()
    many = player.act(np.random.default_rng(0).normal(size=(500, 3)), deterministic=False)
    assert many.shape == (500, 1) and np.abs(many).max() <= 2.0
    for wrong in (np.zeros((2, 2, 2, 3)), np.zeros(4), np.zeros((5, 2)), np.zeros((0, 3))):
        with pytest.raises(
            ValueError,
            match=r"obs: expected shape \[3\], or a batch \[B, ...\] of it in all parts, got",
        ) as error:
            player.act(wrong)
        assert str(error.value).endswith(str(list(wrong.shape)))
    for nothing in ([[1.0], [1.0, 2.0]], ["left"] * 3):
        with pytest.raises(
            ValueError, match=r"obs: expected float32 \[3\], got (str_|lists of different lengths)"
        ):
            player.act(nothing)


def test_a_recurrent_policy_keeps_its_number_of_rows(tmp_path: Any) -> None:
    made = api.program(
        "CartPole-v1",
        "impala",
        recipe=False,
        settings=["algorithm.core=gru"],
        actors=1,
        envs_per_actor=2,
        steps=1,
    )
    blue = plan_run(made)
    policy: Any = fixed_policies(blue)["main"]
    player = api.Player(policy, blue.roles["main"].spec, meta={"version": 0, "env_steps": 0})
    player.act(np.zeros((3, 4)))
    for other in (np.zeros((2, 4)), np.zeros(4)):
        with pytest.raises(
            ValueError, match="expected as many rows as before, 3, since the policy is recurrent"
        ):
            player.act(other)
    player.act(np.zeros((3, 4)))
    player.reset()
    assert player.act(np.zeros(4)) in (0, 1)


def test_a_mask_that_allows_nothing_is_refused() -> None:
    made = api.program(
        "tests.envs.test_masks:Masked", "impala", settings=["source.env.action_mask=info"], steps=1
    )
    blue = plan_run(made)
    policy: Any = fixed_policies(blue)["main"]
    player = api.Player(policy, blue.roles["main"].spec, meta={"version": 0, "env_steps": 0})
    rows = {"obs": np.zeros((2, 2)), "action_mask": np.array([[0, 1, 0], [0, 0, 0]])}
    with pytest.raises(
        ValueError, match="obs/action_mask: expected at least one action allowed, got none in row 1"
    ):
        player.act(rows)
    assert player.act({key: x[0] for key, x in rows.items()}) == 2


def test_evaluate_reads_only_the_directory(tmp_path: Any) -> None:
    run = finish(
        api.start(
            "CartPole-v1", "ppo", on="serial", out=tmp_path / "run", steps=1024, evaluate_episodes=0
        )
    )
    result = api.evaluate(run.directory, episodes=5, deterministic=False)
    assert result.episodes == 5 and result.version == 2 and result.env_steps == 1024
    told: list[Any] = []
    again = evaluated(run.directory, Asked(episodes=5, deterministic=False), told.append)
    assert result == again
    assert [one.episodes for one in told] == sorted(one.episodes for one in told)
    assert (
        told[0].episodes == 0
        and told[-1].episodes == 5
        and {one.of for one in told} == {5}
        and told[5].steps == 6
    )


def test_an_evaluation_without_one_whole_episode_is_an_error(tmp_path: Any) -> None:
    run = api.start(
        "tests.runtime.failing:Failing",
        "impala",
        on="serial",
        out=tmp_path / "run",
        env_kwargs={"after": 5},
        actors=1,
        envs_per_actor=1,
        unroll=4,
        steps=8,
        evaluate_episodes=1,
    )
    notes = [note for report in run for note in report.notes]
    assert any("expected the return of 1 episode, got none" in note for note in notes), notes
    assert (
        run.summary is not None
        and run.summary["evaluation"] is None
        and "evaluation" not in summary_rows(run.summary)
    )
    with pytest.raises(
        ValueError,
        match="expected the return of 1 episode, got none: the env failed in each of them",
    ):
        api.evaluate(run.directory, episodes=1)


def test_arguments_of_an_env_are_laid_over_those_of_the_recipe() -> None:
    """Pong's has no sticky actions."""
    pytest.importorskip("ale_py")
    made = api.program("ALE/Pong-v5", "ppo", env_kwargs={"noop_max": 1})
    assert made.env.kwargs == {"repeat_action_probability": 0.0, "noop_max": 1}
    made = api.program("ALE/Pong-v5", "ppo", env_kwargs={"repeat_action_probability": 0.25})
    assert made.env.kwargs == {"repeat_action_probability": 0.25}
    made = api.program("CartPole-v1", "ppo", env_kwargs={"sutton_barto_reward": True})
    assert made.env.kwargs == {"sutton_barto_reward": True}


def test_what_the_package_has_is_listed_without_its_parts() -> None:
    assert set(eq.__all__) <= set(dir(eq)) and all(
        getattr(eq, name) is not None for name in dir(eq)
    )


TINY: dict[str, Any] = {
    "steps": 16,
    "actors": 1,
    "envs_per_actor": 2,
    "unroll": 4,
    "batch": 2,
    "evaluate_episodes": 0,
}


def test_a_run_and_a_policy_say_what_they_are_in_a_line(tmp_path: Any) -> None:
    run = api.start("CartPole-v1", "ppo", out=tmp_path / "run", on="serial", recipe=False, **TINY)
    before = repr(run)
    list(run)
    player = eq.load(tmp_path / "run")
    for shown in (before, repr(run), repr(player)):
        assert (
            shown.startswith("<")
            and shown.endswith(">")
            and "\n" not in shown
            and " object at 0x" not in shown
        )
    assert "CartPole-v1" in before and "step 16" in repr(player)


def test_an_evaluation_plays_a_changed_env(tmp_path: Any) -> None:
    list(api.start("CartPole-v1", "ppo", out=tmp_path / "run", on="serial", recipe=False, **TINY))
    assert (
        api.evaluate(tmp_path / "run", episodes=2, settings=["env.max_episode_steps=3"]).mean == 3.0
    )
    assert (
        api.evaluate(tmp_path / "run", episodes=2, settings={"env.max_episode_steps": 4}).mean
        == 4.0
    )
    for wrong, said in (
        (["env.max_step=3"], "takes no argument 'max_step'"),
        (["algorithm.gamma=0.5"], "algorithm.gamma"),
        (["env.sutton_barto_reward"], "expected KEY=VALUE"),
    ):
        with pytest.raises(ValueError, match=said):
            api.evaluate(tmp_path / "run", episodes=1, settings=wrong)


def test_an_atari_game_without_a_recipe_is_told_of() -> None:
    from equipoise.tuning.sizing import untuned

    assert "no recipe for ALE/Breakout-v5 with ppo" in untuned(
        api.program("ALE/Breakout-v5", "ppo")
    )
    tuned = [name for env, name in RECIPES if env == "ALE/Pong-v5"]
    assert [untuned(api.program("ALE/Pong-v5", name)) for name in tuned] == [""] * len(tuned)
    assert untuned(api.program("CartPole-v1", "impala")) == ""
