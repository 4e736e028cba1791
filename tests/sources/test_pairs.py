"""A fourth source in one file: pairs of rows, the better action first (Hejna et al. 2023,
arXiv:2310.13639).
"""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn.functional import softplus

import equipoise as eq
from equipoise.actors.forward.noise import Noise
from equipoise.algorithms.bc import BC
from equipoise.cli.report import report
from equipoise.experience.layout import RowSpec
from equipoise.experience.recorded.dataset import Dataset, Episode
from equipoise.sources.envs import spec_json
from equipoise.sources.source import Source
from equipoise.tree import ArraySpec
from equipoise.types import (
    EnvSpec,
    LossOutput,
    Policy,
    Program,
    ReplaySettings,
    RunSpec,
    Schedule,
    SourceSettings,
)

SPACES: Any = {"observation": spaces.Box(-4, 4, (3,), np.float32), "action": spaces.Discrete(3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsSource(SourceSettings):
    behaviour: ClassVar[str] = f"{__name__}:Pairs"
    count: int = 64
    title = recorded = property(lambda self: "pairs")


class PairRows(Dataset):
    """Each episode is a pair: the same observation twice, the index of its greatest number and then
    another one.
    """

    def __iter__(self) -> Any:
        rng = np.random.default_rng(len(self.name))
        for _ in range(self.episodes):
            obs, other, end = (
                rng.standard_normal(3).astype(np.float32),
                rng.integers(1, 3),
                np.array([False, True]),
            )
            action = np.array([obs.argmax(), (obs.argmax() + other) % 3])
            yield Episode(
                obs=np.stack([obs] * 3),
                action=action,
                reward=np.zeros(2),
                terminated=end,
                truncated=~end & end,
            )

    def sha256(self) -> str:
        return sha256(b"".join(one.obs.tobytes() for one in self)).hexdigest()


class Preferred(BC):
    """L = -log sigmoid(log pi(better) - log pi(worse)), over the windows that begin with a pair."""

    item_rows = 2

    def loss(self, net: Any, target_net: Any, batch: Any, **_: Any) -> LossOutput:
        data = batch.data
        logp, both = (
            net.unroll(data.obs[:2], data.first[:2], {})[0].policy.logp(data.action),
            data.mask.all(0),
        )
        return LossOutput(
            loss=(softplus(logp[1] - logp[0]) * both).sum(), count=both.sum(), metrics={}
        )


class Ranked(SimpleNamespace):
    """An evaluation: the share of new pairs whose better action is the likelier one."""

    progress = (0, 0, 0)

    def tick(self) -> None:
        for one in self.rows:
            policy, _ = self.net.policy(
                torch.from_numpy(one.obs[:2]), torch.ones(2, dtype=torch.bool), {}
            )
            better, worse = policy.logp(torch.from_numpy(one.action)).tolist()
            self.returns["main"].append(float(better > worse))
        self.done = True


class Pairs(Source):
    settings: PairsSource

    def dataset(self, name: str = "pairs", count: int = 0) -> Dataset:
        n = count or self.settings.count
        return PairRows(name=name, path=Path(), episodes=n, steps=2 * n, **SPACES)

    def spec(self, dataset: Any) -> RunSpec:
        return RunSpec(env=EnvSpec(**SPACES), policies={"main": EnvSpec(**SPACES)})

    def row(self, learns: Policy, net: Any, spec: Any) -> tuple[RowSpec, Noise]:
        number, obs = ArraySpec((), "int64"), ArraySpec((3,), "float32")
        return RowSpec(
            obs=obs,
            action=number,
            behaviour={},
            state={},
            context={"stream": number, "start": number},
        ), Noise(0)

    def spec_json(self, spec: Any, where: str) -> dict[str, Any]:
        return spec_json(spec, where)

    def acting(self, algorithm: Any, net: Any, noise: Noise) -> SimpleNamespace:
        return SimpleNamespace(net=net)

    def exam(self, policies: Any, *, episodes: int, **_: Any) -> Any:
        rows = self.dataset("held out", episodes)
        return Ranked(
            net=policies["main"].net,
            rows=rows,
            returns={"main": []},
            info={},
            close=int,
            done=False,
        )


def told(run: Any) -> Any:
    with run:
        return [*run] and run.summary


@pytest.mark.few(1)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_source_of_pairs_trains_resumes_and_reports(
    tmp_path: Path, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(algorithm=Preferred(hidden=(16,)), unroll=2, batch=32, replay=ReplaySettings())
    made, path = (
        Program(source=PairsSource(), policies={"main": policy}, schedule=Schedule(steps=400)),
        tmp_path / "run",
    )
    whole = told(eq.start(made, on=on, out=tmp_path / "whole"))
    told(eq.start(replace(made, schedule=Schedule(steps=200, schedule_steps=400)), on=on, out=path))
    done = told(eq.start(resume=path, on=on, steps=400))
    assert done["params_sha256"] == whole["params_sha256"] and done["updates"] == 400
    assert done["evaluation"]["mean"] > 0.7 and done["evaluation"]["episodes"] == 20
    report([path], tmp_path / "page.html")
    monkeypatch.setattr(PairRows, "sha256", lambda self: "other")
    with pytest.raises(ValueError, match="pairs: expected the rows that the run began with"):
        told(eq.start(resume=path, on=on, steps=500))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(
        ValueError, match="source 'tests.sources.test_pairs:PairsSource' would be imported from"
    ):
        eq.start(resume=path)
