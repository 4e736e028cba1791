"""A program on its way: each step alone, and the same steps for a recipe and for a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.api import draft as drafts
from equipoise.api.draft import Draft
from equipoise.programs.config_file import write_config
from equipoise.programs.fields import alter
from equipoise.types import Policy


def begun(algorithm: str = "impala", *, recipe: bool = False, **given: Any) -> Draft:
    policies: Mapping[str, Any] = given.pop("policies", {})
    settings, env_kwargs = given.pop("settings", ()), given.pop("env_kwargs", None)
    return drafts.from_recipe(
        "CartPole-v1",
        algorithm,
        policies,
        recipe=recipe,
        settings=settings,
        env_kwargs=env_kwargs,
        fields=given,
    )


def after(draft: Draft, last: str) -> Draft:
    """The draft after the steps up to the one of that name."""
    for step in drafts.STEPS:
        draft = step(draft)
        if step.__name__ == last:
            return draft
    raise AssertionError(last)


def main(draft: Draft) -> Policy:
    policy = draft.program.policies["main"]
    assert isinstance(policy, Policy)
    return policy


def test_a_draft_begins_with_the_recipe_or_with_defaults() -> None:
    assert begun("ppo", recipe=True).begun == "recipe"
    assert begun("ppo", recipe=False).begun == "defaults"
    assert begun(actors=None, max_lag=None).fields == {"max_lag": None}


def test_options_are_laid_over_the_program_in_their_types() -> None:
    draft = drafts.options(begun(actors="3", unroll="8", env_kwargs={"render_mode": None}))
    assert draft.program.actors == 3 and main(draft).unroll == 8
    assert draft.fields == {"actors": 3, "unroll": 8} and draft.program.env.kwargs == {
        "render_mode": None
    }
    with pytest.raises(TypeError, match="unknown option 'actor'; did you mean 'actors'"):
        drafts.options(begun(actor=3))


def test_options_give_their_sizes_to_each_of_several_policies() -> None:
    draft = drafts.options(begun(unroll=8, policies={"main": "impala", "other": "a2c"}))
    sizes = [
        policy.unroll for policy in draft.program.policies.values() if isinstance(policy, Policy)
    ]
    assert sizes == [8, 8]
    with pytest.raises(ValueError, match="algorithm: expected one that a policy has"):
        drafts.options(begun("ppo", policies={"main": "impala"}))


def test_settings_are_laid_over_the_options() -> None:
    draft = drafts.settings(begun(settings=["algorithm.gamma=0.5", "algorithm.gamma=0.75"]))
    assert main(draft).algorithm.gamma == 0.75  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"replay.updates: expected an algorithm with a replay"):
        drafts.settings(begun(settings=["replay.updates=2"]))


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ({"unroll": 8}, "policy.unroll=16"),
        ({"actors": 3}, "placement.actors=4"),
        ({"action_mask": "none"}, "source.env.action_mask=info"),
        ({"inference": "auto"}, "placement.inference=local"),
    ],
)
def test_an_option_and_a_setting_agree(option: dict[str, Any], setting: str) -> None:
    (name,) = option
    same = f"{setting.partition('=')[0]}={option[name]}"
    after(begun(settings=[same], **option), "agreement")
    with pytest.raises(ValueError, match=f"{name}: expected to be given once"):
        after(begun(settings=[setting], **option), "agreement")


def test_a_batch_that_is_not_given_is_one_unroll_of_every_stream() -> None:
    draft = drafts.options(begun(actors=3, envs_per_actor=5))
    assert main(drafts.batch(draft)).batch == 15
    assert main(drafts.batch(drafts.options(begun(actors=3, envs_per_actor=5, batch=5)))).batch == 5


def test_a_group_of_samples_is_the_streams_of_an_actor() -> None:
    def task(**given: Any) -> Draft:
        made = drafts.from_recipe(
            "sort",
            "grpo",
            {},
            recipe=False,
            settings=["algorithm.num_generations=4"],
            env_kwargs=None,
            fields=given,
        )
        return drafts.group(drafts.settings(drafts.options(made)))

    assert task().program.placement.envs_per_actor == 4
    assert task(envs_per_actor=16).program.placement.envs_per_actor == 16


def test_a_large_batch_is_cut_unless_somebody_says_how() -> None:
    parts = [
        main(
            drafts.minibatches(
                after(begun("ppo", actors=32, envs_per_actor=16, settings=settings), "agreement")
            )
        )
        for settings in ([], ["algorithm.minibatches=2"])
    ]
    assert parts[0].algorithm.minibatches > 2 == parts[1].algorithm.minibatches


def test_a_file_leaves_no_size_open(tmp_path: Path) -> None:
    write_config(
        alter(api.program("CartPole-v1", "impala", actors=2, recipe=False), actors=4),
        tmp_path / "file.toml",
    )
    draft = drafts.options(drafts.from_file(tmp_path / "file.toml", (), (), {}))
    assert drafts.sizes(draft) is draft


@pytest.mark.parametrize("way", ["option", "setting"])
def test_auto_is_central_if_it_can_be_from_a_recipe_and_from_a_file(
    tmp_path: Path, way: str
) -> None:
    """Settings of central inference are then taken; else the sentence says why central inference
    cannot be.
    """
    write_config(api.program("CartPole-v1", "impala", actors=2), tmp_path / "file.toml")
    given: dict[str, Any] = (
        {"inference": "auto"} if way == "option" else {"settings": ["placement.inference=auto"]}
    )
    for made in (
        api.program("CartPole-v1", "impala", actors=2, inference_workers=2, **given),
        api.configured(tmp_path / "file.toml", inference_workers=2, **given),
    ):
        place = made.placement
        assert (
            place.inference == "central"
            and place.inference_workers == 2
            and "inference" in place.auto
        )
    with pytest.raises(
        ValueError, match=r"placement\.inference_workers: expected at most 2, .*, got 3"
    ):
        api.program("CartPole-v1", "impala", actors=2, inference_workers=3, **given)


def test_auto_is_local_where_central_cannot_be() -> None:
    world = "remote:tcp://127.0.0.1:1"
    place = api.program(world, "impala", inference="auto").placement
    assert place.inference == "local" and "inference" in place.auto
    with pytest.raises(
        ValueError, match=r"placement\.inference: expected local with remote:.*, got central"
    ):
        api.program(world, "impala", inference="auto", inference_wait_ms=1)


def test_the_last_step_checks() -> None:
    draft = begun(settings=["placement.inference_wait_ms=1"])
    with pytest.raises(
        ValueError, match="expected settings that change something, got placement.inference_wait_ms"
    ):
        after(draft, "checks")
    with pytest.raises(ValueError, match="actors"):
        drafts.checks(draft.having(alter(draft.program, actors=-1)))


def test_a_task_of_text_has_no_option_of_envs_from_a_file(tmp_path: Path) -> None:
    write_config(api.program("sort", "grpo"), tmp_path / "file.toml")
    with pytest.raises(
        ValueError,
        match="metrics: expected none with grpo, which learns from a task and steps no env",
    ):
        api.configured(tmp_path / "file.toml", metrics="success")
