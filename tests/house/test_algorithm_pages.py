"""Every algorithm has its page, and the page knows every metric, every option and every default,
and no other.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from equipoise import api, recipes
from equipoise.experience.recorded import dataset as datasets
from equipoise.programs.program import algorithm_class, algorithm_names
from tests.sources.test_preferences import file_of

PAGES = Path(__file__).parents[2] / "docs/reference/algorithms"
SHOW_ALL = {  # settings under which every metric is logged
    "appo": ["algorithm.kl=0.1"],
    # within so few rows
    "r2d2": ["algorithm.burn_in=4", "algorithm.length=4", "algorithm.n_step=1"],
}
# for those that cannot act in CartPole-v1
ENVS = dict.fromkeys(("crossq", "td3", "tqc"), "Pendulum-v1")
HEADINGS = ("Metrics", "Options", "Deviations", "Score")


def section(page: str, title: str) -> str:
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)",
        (PAGES / f"{page}.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert found, f"{page}.md: no heading {title!r}"
    return found[1]


def table(page: str, title: str) -> dict[str, str]:
    """The first column, which is code, and the second."""
    return dict(re.findall(r"^\| `([^`]+)` \| (.*?) \|", section(page, title), re.MULTILINE))


def test_every_algorithm_has_its_page_and_every_page_its_algorithm() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*algorithm_names(), "index"}
    assert all(f"]({name}.md)" in (PAGES / "index.md").read_text() for name in algorithm_names())


@pytest.mark.parametrize("name", algorithm_names())
def test_a_page_says_what_there_is_to_say(name: str) -> None:
    assert all(section(name, title).strip() for title in HEADINGS)
    commands = re.findall(r"^ *(equipoise train .*)$", section(name, "Score"), re.MULTILINE)
    of_own_data = ("bc", "dpo", "reward_model")
    assert commands or name in of_own_data, f"{name}.md: no command that gives the score"
    for command in commands:
        words = shlex.split(command)
        assert recipes.find(words[2], name) and words[3:5] == ["--algorithm", name], command


def pairs(path: Path) -> Path:
    """A file of pairs with different prompts."""
    rows = [{"prompt": f"{n}=", "chosen": f"{n}", "rejected": f"{n + 1}"} for n in range(20)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def recorded(path: Path) -> Path:
    """A data set of CartPole's: an episode of two steps."""
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    ends = np.array([False, True])
    episode = datasets.Episode(
        obs=np.zeros((3, 4), np.float32),
        action=np.zeros(2, np.int64),
        reward=np.ones(2),
        terminated=ends,
        truncated=np.zeros(2, bool),
    )
    env = gymnasium.make("CartPole-v1")
    datasets.write(str(path), [episode], observation=env.observation_space, action=env.action_space)
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("name", algorithm_names())
def test_a_page_knows_every_metric(name: str, tmp_path: Path) -> None:
    cls, settings = algorithm_class(name), SHOW_ALL.get(name, [])
    if cls.needs_dataset:
        settings = [*settings, f"source.dataset={recorded(tmp_path / 'rows')}"]
    elif cls.needs_replay:
        settings = [*settings, "replay.starts_at=0", "replay.updates=4"]
    if cls.needs_task:
        made = api.program(
            str(file_of(tmp_path)) if cls.needs_pairs else "sort",
            name,
            recipe=False,
            batch=64,
            steps=128,
            max_lag=0,
            evaluate_episodes=0,
        )
    else:
        made = api.program(
            ENVS.get(name, "CartPole-v1"),
            name,
            recipe=False,
            actors=1,
            envs_per_actor=4,
            unroll=8,
            steps=64,
            evaluate_episodes=0,
            settings=settings,
        )
    reports = list(api.start(made, on="serial", out=tmp_path / "run"))
    # with max_lag=0 no token is so: left out
    of_none = {"token_mult_prob_error/older_keys"} if cls.needs_task else set()
    assert set(table(name, "Metrics")) - of_none == set(reports[-1].metrics)
