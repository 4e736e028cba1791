"""Text on the ring: the same bits wherever it runs, whoever dies, and after a resume; no token
older than the bound.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise import api, cli
from equipoise.actors.examiner import MOST_ANSWERS
from equipoise.errors import WorkerFailed
from equipoise.learners.learner import Learner
from equipoise.record.completions import read_completions
from equipoise.record.directory import RunDirectory
from tests.runtime.resuming import kill_after
from tests.runtime.test_cluster import pids

STEPS = 1024
GRADING = "tests.runtime.grading"
SMALL: dict[str, Any] = {
    "algorithm": "grpo",
    "batch": 64,
    "steps": STEPS,
    "max_lag": 0,
    "evaluate_episodes": 0,
    "tensorboard": False,
    "settings": ["optimizer.learning_rate=1e-3", "source.samples_at_once=64"],
}


def finished(run: Any) -> dict[str, Any]:
    with run:
        for _ in run:
            pass
    assert run.summary is not None and run.summary["status"] == "completed", run.summary
    rows = run.summary["rows"]
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    return dict(run.summary)


def trained(out: Path, env: str = "sort", **options: Any) -> dict[str, Any]:
    return finished(api.start(env, out=out, **SMALL | options))


def shown(out: Path, name: str) -> float:
    """The mean of a metric over a run's records."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = [line["metrics"][name] for line in lines if name in line["metrics"]]
    return sum(found) / len(found)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("alone") / "run", on="serial")


@pytest.mark.thorough
def test_the_same_bits_wherever_it_runs(alone: Any, tmp_path: Path) -> None:
    assert trained(tmp_path / "run", on="process")["params_sha256"] == alone["params_sha256"]


@pytest.mark.thorough
def test_generators_may_draw_with_rounded_weights(tmp_path: Path) -> None:
    settings = [*SMALL["settings"], "source.weights=bf16", "source.weight_buffers=2"]
    trained(tmp_path / "run", on="process", max_lag=1, settings=settings)
    assert 1.0 < shown(tmp_path / "run", "token_mult_prob_error") < 1.02


@pytest.mark.thorough
def test_the_same_bits_wherever_it_runs_where_several_write(tmp_path: Path) -> None:
    found = [
        trained(tmp_path / on, on=on, actors=3)["params_sha256"] for on in ("serial", "process")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("on", ["serial", pytest.param("process", marks=pytest.mark.thorough)])
def test_groups_of_equal_rewards_are_written_anew(on: Any, tmp_path: Path) -> None:
    # A built-in task is graded in place: when another process answers decides what is drawn side by
    # side, and so the last bit.
    options: dict[str, Any] = {
        "actors": 2,
        "steps": 256,
        "max_completion_length": 1,
        "env": "reverse_add",
    }
    refilling = [*SMALL["settings"], "algorithm.refills=3"]
    found = trained(tmp_path / "run", on=on, settings=refilling, **options)
    again = trained(tmp_path / "again", on="serial", settings=refilling, **options)
    assert found["params_sha256"] == again["params_sha256"]
    trained(tmp_path / "not", on="serial", **options)
    equal = {name: shown(tmp_path / name, "frac_reward_zero_std") for name in ("run", "not")}
    assert equal["run"] < 0.6 * equal["not"], equal
    assert 0.0 < shown(tmp_path / "run", "refills") <= 3.0
    assert (
        json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])["tokens_per_s"]
        > 0.0
    )


@pytest.mark.thorough
def test_a_run_that_goes_on_ends_in_the_same_bits(alone: Any, tmp_path: Path) -> None:
    trained(
        tmp_path / "run",
        on="serial",
        steps=STEPS // 2,
        settings=[*SMALL["settings"], f"schedule.schedule_steps={STEPS}"],
    )
    whole = finished(api.start(resume=tmp_path / "run", on="process", steps=STEPS))
    assert whole["params_sha256"] == alone["params_sha256"]


@pytest.mark.thorough
def test_a_run_goes_on_with_its_own_prompts_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(
        "".join(
            f'{{"prompt": "{one}>", "answer": "{one}"}}\n' for one in ("012", "120", "201", "110")
        )
    )
    options: dict[str, Any] = SMALL | {
        "steps": 64,
        "on": "serial",
        "reward": "equipoise.language.scoring.own:answered",
    }
    model = (
        trained(tmp_path / "first", steps=64, on="serial")
        and api.export(tmp_path / "first", tmp_path / "model").path
    )
    finished(api.start(str(file), out=tmp_path / "run", model=str(model), **options))
    # of "tiny" the letters of the prompts are the tokens
    finished(api.start(str(file), out=tmp_path / "tiny", model="tiny", **options))
    for other in ("021", "xyz"):
        file.write_text(file.read_text().replace("012", other))
        for name in ("run", "tiny") if other == "021" else ("tiny",):
            with pytest.raises(
                ValueError, match="source.task: expected the prompts that the run began with"
            ):
                api.start(resume=tmp_path / name, on="serial", steps=128)
        file.write_text(file.read_text().replace(other, "012"))


@pytest.mark.thorough
def test_a_generator_that_is_killed_is_replaced(tmp_path: Path) -> None:
    run, killed = (
        api.start(
            "sort", out=tmp_path / "run", on="process", actors=2, **SMALL | {"steps": 8 * STEPS}
        ),
        list[int](),
    )
    with run:
        for report in run:
            found = pids("generator 1")
            if (
                report.env_steps >= STEPS * (len(killed) + 1)
                and len(killed) < 2
                and found
                and found[0] not in killed
            ):
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])
    assert run.summary is not None and len(killed) == 2 and run.summary["status"] == "completed"
    rows = run.summary["rows"]
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    assert sum("generator 1 was killed" in note for note in run.summary["notes"]) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["rloo", "reinforce_pp", "token_ppo", "sft"])
def test_every_algorithm_of_text_learns_on_the_ring(algorithm: str, tmp_path: Path) -> None:
    summary = trained(
        tmp_path / "run", algorithm=algorithm, on="serial", steps=512, envs_per_actor=8
    )
    assert summary["updates"] == 8 and summary["episodes"] == 512
    api.export(tmp_path / "run", tmp_path / "model")
    again = trained(
        tmp_path / "again", algorithm="rloo", on="serial", steps=64, model=str(tmp_path / "model")
    )
    assert again["updates"] == 1


def test_a_text_ends_a_completion(tmp_path: Path) -> None:
    given = [*SMALL["settings"], "source.stop=1,02"]
    trained(tmp_path / "run", on="serial", steps=256, settings=given)
    said = api.generate(
        tmp_path / "run", [f"{one:06}>" for one in (0, 12, 201210, 111111, 222000, 12021)]
    )
    cut = [one for one in said if one.ended and one.text.endswith(("1", "02"))]
    assert cut and all("1" not in one.text[:-1] and "02" not in one.text[:-1] for one in said), said
    with pytest.raises(ValueError, match="source.stop: expected texts of at least one letter"):
        api.start("sort", out=tmp_path / "not", **SMALL | {"settings": {"source.stop": ("",)}})


class _Seen:
    """The ages of tokens, by the learner that used them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.oldest, self.of = 0, 0
        step = Learner.step

        def looked(learner: Learner, batch: Any) -> Any:
            behaviour = batch.data.behaviour
            version = behaviour["version"][behaviour["chosen"]]
            assert version.max() <= learner.version
            self.oldest, self.of = (
                max(self.oldest, int(learner.version - version.min())),
                self.of + version.numel(),
            )
            return step(learner, batch)

        monkeypatch.setattr(Learner, "step", looked)


@pytest.mark.few(1)
@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_no_token_is_older_than_the_bound(
    max_lag: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = _Seen(monkeypatch)
    summary = trained(tmp_path / "run", on="serial", max_lag=max_lag, actors=2)
    assert seen.of > 1000 and seen.oldest <= max_lag and summary["lag"]["max"] <= max_lag
    assert max_lag == 0 or seen.oldest > 0


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_two_learners_share_the_groups(on: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"actors": 2, "learners": 2}
    one, other = (
        trained(tmp_path / name, on=where, **options)
        for name, where in (("one", on), ("other", "serial"))
    )
    assert one["params_sha256"] == other["params_sha256"]


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_reward_that_fails_costs_its_group_and_leaves_a_capsule(on: Any, tmp_path: Path) -> None:
    summary = trained(tmp_path / "run", on=on, reward=f"{GRADING}:sometimes", max_lag=1)
    assert summary["failures"]["generator 0"]["aborted"] >= 8 * (STEPS // 8 // 5)
    assert any("KeyError" in note and "no such word" in note for note in summary["notes"])
    capsule, *_ = (tmp_path / "run/capsules").glob("*.json")
    done = CliRunner().invoke(cli.app, ["reproduce", str(capsule), "--trust", GRADING])
    assert (
        done.exit_code == 3
        and "KeyError" in done.output
        and "not reproduced: it gave" in done.output
    )


def test_rewards_that_always_fail_end_the_run(tmp_path: Path) -> None:
    run = api.start("sort", out=tmp_path / "run", on="process", reward=f"{GRADING}:never", **SMALL)
    with pytest.raises(WorkerFailed, match="expected 8 rewards, one for each completion, got 7"):
        for _ in run:
            pass
    assert run.summary is not None and run.summary["status"] == "failed"


@pytest.mark.thorough
def test_a_reward_may_be_async_and_is_learned_from_as_any(alone: Any, tmp_path: Path) -> None:
    assert (
        trained(tmp_path / "run", on="serial", reward=f"{GRADING}:later")["params_sha256"]
        == alone["params_sha256"]
    )


@pytest.mark.thorough
def test_what_was_trained_can_be_asked_and_examined(tmp_path: Path) -> None:
    trained(tmp_path / "run", on="serial", evaluate_episodes=20)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (
        summary["evaluation"]["episodes"] == 20
        and 0 <= summary["evaluation"]["info"]["pass@1"] <= 1
    )
    kept = read_completions(tmp_path / "run")
    samples: Any = kept["samples"]
    assert kept["step"] == summary["env_steps"] and len(samples) == MOST_ANSWERS
    assert all(one["prompt"].endswith(">") and one["reward"] is not None for one in samples)
    assert all(list(one["rewards"].values()) == [one["reward"]] for one in samples)
    again = api.evaluate(tmp_path / "run", episodes=20)
    assert again.mean == pytest.approx(summary["evaluation"]["mean"])
    drawn, other = (
        api.generate(tmp_path / "run", ["201102>", "000000>"], samples=3, seed=seed)
        for seed in (1, 2)
    )
    assert [one.prompt for one in drawn] == ["201102>"] * 3 + ["000000>"] * 3
    assert (
        drawn == api.generate(tmp_path / "run", ["201102>", "000000>"], samples=3, seed=1)
        and drawn != other
    )
    (greedy,) = api.generate(tmp_path / "run", ["201102>"], greedy=True)
    assert greedy.tokens >= 1 and greedy.logp < 0
    with pytest.raises(ValueError, match="expected one of '012>', got 'x'"):
        api.generate(tmp_path / "run", ["20x"])
    with pytest.raises(ValueError, match="equipoise generate"):
        api.load(tmp_path / "run")


@pytest.mark.thorough
def test_a_run_at_a_url_is_asked_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url: Any = f"file://{tmp_path}/store/run"
    trained(url, on="serial", steps=64)
    (said,) = api.generate(url, ["201102>"], greedy=True)
    (run,) = (tmp_path / "runs").iterdir()
    assert [said] == api.generate(run, ["201102>"], greedy=True)
    assert (api.export(url, tmp_path / "model").path / "model.safetensors").is_file()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"settings": ["algorithm.num_generations=1"]}, "num_generations: expected"),
    (
        {"batch": 60},
        "batch: expected a multiple of algorithm.num_generations=8.*got 60; the nearest is 64",
    ),
    ({"envs_per_actor": 4}, "placement.envs_per_actor: expected the 8 samples of a group"),
    ({"unroll": 4}, "policy.unroll: expected 1"),
    ({"inference": "central"}, "placement.inference: expected local with a task"),
    ({"precision": "auto"}, "placement.auto: expected text alone with a task"),
    ({"action_mask": "none"}, "action_mask: expected none with grpo"),
    ({"reward": "no_such:function"}, "no module 'no_such' is found"),
    ({"reward": "function"}, "expected module:function"),
    ({"model": "llama:hidden_sise=48"}, "hidden_size"),
    (
        {"settings": ["algorithm.minibatches=16"]},
        "algorithm.minibatches: expected at most 8, the groups",
    ),
    (
        {"settings": ["algorithm.epsilon=0"], "max_lag": 4},
        "algorithm.epsilon: expected a clip with max_lag=4",
    ),
]


@pytest.mark.parametrize(
    ("options", "said"),
    WRONG,
    ids=[str(next(iter(one))) + str(n) for n, (one, _) in enumerate(WRONG)],
)
def test_bad_input_is_refused_in_one_line(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        api.start("sort", out=tmp_path / "run", **SMALL | options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("target", "algorithm", "said"),
    [
        ("sorts", "grpo", "unknown task 'sorts'.*sort"),
        ("CartPole-v1", "grpo", "task"),
        ("sort", "ppo", "sort"),
    ],
)
def test_a_task_and_an_algorithm_that_do_not_go_together(
    target: str, algorithm: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=said):
        api.start(target, algorithm, out=tmp_path / "run", steps=64)


def test_a_task_s_settings_are_refused_without_one() -> None:
    with pytest.raises(
        ValueError, match="source.model: expected an algorithm for text, such as grpo, got PPO"
    ):
        api.program("CartPole-v1", "ppo", model="tiny")


KILLS = 10  # of each victim


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["driver", "learner", "generator 0"])
@pytest.mark.parametrize("algorithm", ["grpo", "token_ppo"])
def test_whoever_is_killed_at_a_random_moment_the_bits_are_the_same(
    algorithm: str, victim: str, tmp_path: Path, seed: int, deadline: Any
) -> None:
    """Each resumes: the run by itself where a worker dies, by hand where all of it does."""
    options: dict[str, Any] = {
        "algorithm": algorithm,
        "steps": 2048,
        "settings": [*SMALL["settings"], "optimizer.schedule=linear"],
    }
    whole = trained(tmp_path / "whole", on="serial", **options)
    draw = random.Random(seed)
    for moment in range(KILLS):
        out, at = tmp_path / f"killed {moment}", draw.randrange(64, 1900)
        if victim == "driver":
            words = [
                "train",
                "sort",
                "--algorithm",
                algorithm,
                "--batch",
                "64",
                "--steps",
                "2048",
                "--max-lag",
                "0",
            ]
            words += [
                "--evaluate-episodes",
                "0",
                "--no-tensorboard",
                "--checkpoint-every",
                "256",
                "--on",
                "process",
            ]
            words += [word for one in options["settings"] for word in ("--set", one)]
            there = out / "checkpoints" / f"step_{at // 256 * 256 or 256}" / "manifest.json"
            kill_after([*words, "--out", str(out)], there.exists, deadline, draw.uniform(0.0, 0.3))
            done = RunDirectory.open(out).summary() or finished(api.start(resume=out))
        else:
            run, killed = (
                api.start("sort", out=out, on="process", checkpoint_every=256, **SMALL | options),
                list[int](),
            )
            with run:
                for report in run:
                    if report.env_steps >= at and not killed:
                        killed = pids(victim)[:1]
                        os.kill(killed[0], signal.SIGKILL)
            assert run.summary is not None and run.summary["status"] == "completed"
            assert not killed or any(
                f"{victim} was killed" in note for note in run.summary["notes"]
            ), run.summary["notes"]
            done = run.summary
        assert done["params_sha256"] == whole["params_sha256"], (
            f"{victim} killed at about step {at}"
        )
