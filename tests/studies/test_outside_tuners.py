"""Programs for Ray Tune and Optuna: a trial goes on from a checkpoint to the same bits."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from equipoise import api, studies
from equipoise.api.outside_tuners import suggested
from equipoise.record.directory import RunDirectory
from equipoise.studies.space import read_space
from equipoise.types import Program
from equipoise.types.program import first_learning

RATE = "optimizer.learning_rate"


def program(**options: Any) -> Program:
    options = {"steps": 1024, "envs_per_actor": 4, "unroll": 16, "actors": 1} | options
    return api.program("CartPole-v1", "ppo", evaluate_episodes=0, recipe=False, **options)


def summary(run: str | Path) -> dict[str, Any]:
    found = RunDirectory.open(Path(run)).summary()
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------- Optuna


class OneTrial:
    """An Optuna trial that suggests the lower bound, and is pruned at some report."""

    number = 7

    def __init__(self, pruned_at: int = -1) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.reports: list[int] = []
        self.attrs: dict[str, str] = {}
        self._pruned_at = pruned_at

    def suggest_categorical(self, key: str, values: Any) -> Any:
        self.asked.append(("categorical", key, values))
        return values[0]

    def suggest_int(self, key: str, low: int, high: int, *, log: bool) -> int:
        self.asked.append(("int", key, low, high, log))
        return low

    def suggest_float(self, key: str, low: float, high: float, *, log: bool) -> float:
        self.asked.append(("float", key, low, high, log))
        return low

    def report(self, value: float, step: int) -> None:
        assert isinstance(value, float)
        self.reports.append(step)

    def should_prune(self) -> bool:
        return len(self.reports) == self._pruned_at

    def set_user_attr(self, name: str, value: str) -> None:
        self.attrs[name] = value


class Pruned(Exception):
    pass


@pytest.fixture
def optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("optuna")
    fake.TrialPruned = Pruned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "optuna", fake)


def test_a_trial_suggests_each_kind_of_parameter() -> None:
    space = read_space(["a=1..5", "b=log:1..64", "c=0.5..1", "d=log:1e-4..1e-2", "e=x,3,true"])
    trial = OneTrial()
    assert suggested(trial, space) == {"a": 1, "b": 1, "c": 0.5, "d": 1e-4, "e": "x"}
    assert trial.asked == [
        ("int", "a", 1, 5, False),
        ("int", "b", 1, 64, True),
        ("float", "c", 0.5, 1.0, False),
        ("float", "d", 1e-4, 1e-2, True),
        ("categorical", "e", ("x", 3, True)),
    ]


@pytest.mark.thorough
def test_an_objective_trains_to_the_bits_of_one_run_and_reports_scores(
    optuna: None, tmp_path: Path
) -> None:
    trial = OneTrial()
    function = studies.objective(program(), {RATE: "log:1e-3..1e-2"}, every=256, out=tmp_path)
    score = function(trial)
    assert trial.reports == [256, 512, 768, 1024]
    whole = api.train(program(settings=[f"{RATE}=0.001"]), out=tmp_path / "whole")
    ended = summary(trial.attrs["directory"])
    assert ended["params_sha256"] == whole.summary["params_sha256"]
    assert score == ended["return_mean"]


def test_a_pruned_trial_ends_saved(optuna: None, tmp_path: Path) -> None:
    trial = OneTrial(pruned_at=1)
    with pytest.raises(Pruned, match="at 256 env steps"):
        studies.objective(program(), [f"{RATE}=log:1e-3..1e-2"], every=256, out=tmp_path)(trial)
    assert summary(trial.attrs["directory"])["env_steps"] == 256


def test_a_trial_that_fails_raises_its_reason(optuna: None, tmp_path: Path) -> None:
    function = studies.objective(program(), {RATE: [-1.0, -2.0]}, out=tmp_path)
    with pytest.raises(RuntimeError, match=r"learning_rate"):
        function(OneTrial())


def test_a_wrong_space_and_interval_are_refused(optuna: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="space: must be KEY"):
        studies.objective(program(), ["optimizer.learning_rate"])
    with pytest.raises(ValueError, match="every: must be at least 1 env step, got 0"):
        studies.objective(program(), {RATE: [0.1, 0.2]}, every=0, out=tmp_path)(OneTrial())


@pytest.mark.thorough
def test_optuna_itself_prunes_and_finds_the_best(tmp_path: Path) -> None:
    real = pytest.importorskip("optuna")
    real.logging.set_verbosity(real.logging.ERROR)
    study = real.create_study(
        direction="maximize",
        sampler=real.samplers.RandomSampler(seed=0),
        pruner=real.pruners.ThresholdPruner(lower=1e9, n_warmup_steps=300),
    )
    function = studies.objective(program(), {RATE: "log:1e-3..1e-2"}, every=256, out=tmp_path)
    study.optimize(function, n_trials=2)
    assert [one.state.name for one in study.trials] == ["PRUNED", "PRUNED"]
    assert [sorted(one.intermediate_values) for one in study.trials] == [[256, 512]] * 2
    assert {summary(one.user_attrs["directory"])["env_steps"] for one in study.trials} == {512}


# ----------------------------------------------------------------------------------------- Ray Tune


class Kept:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def from_directory(cls, folder: str) -> Kept:
        return cls(Path(folder))

    def as_directory(self) -> Any:
        from contextlib import nullcontext

        return nullcontext(str(self.folder))


class Exploited(Exception):
    """Tune ends the function of a trial."""


class OneTune:
    """Ray Tune as one trial sees it."""

    Checkpoint = Kept

    def __init__(self, folder: Path, start: Path | None = None, end_at: int = -1) -> None:
        self._folder, self._start, self._end_at = folder, start, end_at
        self.reports: list[Mapping[str, Any]] = []
        self.kept: list[Path] = []

    def get_context(self) -> Any:
        return SimpleNamespace(get_trial_dir=lambda: str(self._folder))

    def get_checkpoint(self) -> Kept | None:
        return None if self._start is None else Kept(self._start)

    def report(self, metrics: Mapping[str, Any], checkpoint: Kept) -> None:
        self.reports.append(metrics)
        kept = self._folder / f"checkpoint_{len(self.reports)}"
        shutil.copytree(checkpoint.folder, kept)
        self.kept.append(kept)
        if len(self.reports) == self._end_at:
            raise Exploited


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., OneTune]:
    """``tuned(name, rate)``: train one trial of Ray Tune."""

    def run(name: str, rate: float, start: Path | None = None, end_at: int = -1) -> OneTune:
        one, fake = OneTune(tmp_path / name, start, end_at), ModuleType("ray")
        fake.tune = one  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", fake)
        try:
            studies.trainable(program(), every=256)({RATE: rate})
        except Exploited:
            assert end_at > 0
        return one

    return run


@pytest.mark.thorough
def test_a_trial_goes_on_from_the_checkpoint_of_another_to_the_same_bits(
    tuned: Callable[..., OneTune],
) -> None:
    whole = tuned("whole", 1e-3)
    assert [one["env_steps"] for one in whole.reports] == [256, 512, 768, 1024]
    source = tuned("source", 1e-3, end_at=2)
    went_on = tuned("clone", 1e-3, source.kept[1])
    assert went_on.reports[-1]["env_steps"] == 1024 and len(went_on.reports) == 2
    again, bits = summary(went_on.reports[-1]["directory"]), summary(whole.kept[-1] / "run")
    assert again["params_sha256"] == bits["params_sha256"]
    assert went_on.reports[-1]["score"] == whole.reports[-1]["score"]


@pytest.mark.thorough
def test_a_trial_goes_on_from_a_checkpoint_with_the_settings_of_its_config(
    tuned: Callable[..., OneTune],
) -> None:
    source = tuned("source", 1e-3, end_at=2)
    slower, faster = tuned("slower", 1e-3, source.kept[1]), tuned("faster", 2e-3, source.kept[1])
    found = RunDirectory.open(faster.kept[-1] / "run").program
    assert first_learning(found).optimizer.learning_rate == 2e-3
    bits = {summary(one.kept[-1] / "run")["params_sha256"] for one in (slower, faster)}
    assert len(bits) == 2


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
def test_ray_tune_itself_exploits_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune = pytest.importorskip("ray.tune", exc_type=ImportError)
    import ray

    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        tuner = tune.Tuner(
            studies.trainable(program(), every=512),
            param_space={RATE: tune.grid_search([1e-3, 1e-6])},
            tune_config=tune.TuneConfig(
                metric="score",
                mode="max",
                reuse_actors=True,
                scheduler=tune.schedulers.PopulationBasedTraining(
                    time_attr="env_steps",
                    perturbation_interval=512,
                    quantile_fraction=0.5,
                    hyperparam_mutations={RATE: [1e-3, 2e-3]},
                    synch=True,
                ),
            ),
            run_config=tune.RunConfig(storage_path=str(tmp_path), name="study", verbose=0),
        )
        results = tuner.fit()
    finally:
        ray.shutdown()
    assert not results.errors
    assert [one.metrics["env_steps"] for one in results] == [1024, 1024]
    assert {one.config[RATE] for one in results} <= {1e-3, 2e-3}, "the worse one was exploited"
