"""Data sets: what is written is what is read, and the rows that a policy learns from are those that
were recorded.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from equipoise import tree
from equipoise.envs import observation_spec
from equipoise.envs.spaces import action_spec
from equipoise.experience.layout import RowSpec
from equipoise.experience.recorded import dataset as datasets
from equipoise.experience.recorded.dataset import Dataset, Episode, Faulty
from equipoise.experience.recorded.offline import CHUNK, NOBODY, RecordedRows, look
from equipoise.experience.replay.replay import Replay
from equipoise.types import Batch, Stack, Trajectory
from equipoise.types import ReplaySettings as Settings
from tests.experience.history import FRAMES, SIDE, STREAM, History
from tests.experience.test_replay import ACTORS, BLOCK, ROUND, Writers, replay

pytest.importorskip("minari")
pytest.importorskip("h5py")

STACK = Stack(frames=FRAMES, padding="zero")


@pytest.fixture(autouse=True)
def _minaris_folder(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def recorded(history: History) -> list[Episode]:
    """The whole episodes of stream 0."""
    found, begins = [], np.flatnonzero(history.first[:, 0])
    for begin, after in itertools.pairwise(begins):
        rows = range(begin, after)  # the last is the seam
        obs = [history.obs(0, row) for row in rows]
        real = slice(begin, after - 1)
        terminated = ~history.bootstrap[real, 0]
        ended = np.arange(after - 1 - begin) == after - 2 - begin
        found.append(
            Episode(
                obs={name: np.stack([one[name] for one in obs]) for name in obs[0]},
                action=history.action[real, 0],
                reward=history.reward[real, 0],
                terminated=terminated,
                truncated=ended & ~terminated,
            )
        )
    return found


def of(history: History, name: str = "known/rows-v0") -> Dataset:
    inner: dict[str, Any] = {"vector": spaces.Box(-np.inf, np.inf, (2,))}
    if history.stack is not None:
        inner["image"] = spaces.Box(0, 255, (FRAMES, SIDE, SIDE), np.uint8)
    return datasets.write(
        name, recorded(history), observation=spaces.Dict(inner), action=spaces.Discrete(5)
    )


def shelf(dataset: Dataset, history: History, *, window: int, **settings: Any) -> RecordedRows:
    row = RowSpec(
        obs=history.row.obs, action=history.row.action, behaviour={}, state={}, context=STREAM
    )
    stacks = {} if history.stack is None else {"image": history.stack}
    return RecordedRows(dataset, Settings(**settings), row=row, window=window, stacks=stacks)


def prove(history: History, batch: Batch) -> None:
    """As ``History.prove``, of what a data set keeps; the rows after its last episode are seams."""
    data, whole = batch.data, int(np.flatnonzero(history.first[:, 0])[-1])
    unroll, items = data.reward.shape
    assert bool(data.mask[0].all()), "no window begins with a seam"
    for b in range(items):
        start = int(data.context["start"][b])
        for t in range(unroll + 1):
            if (row := start + t) >= whole:
                assert bool(data.first[t, b]) and (t == unroll or not bool(data.mask[t, b]))
                continue
            for name, value in history.obs(0, row).items():
                np.testing.assert_array_equal(
                    data.obs[name][t, b].numpy(), value, err_msg=f"row {row}: {name}"
                )
            assert bool(data.first[t, b]) == history.first[row, 0], row
            if t < unroll:
                assert data.version[t, b].item() == NOBODY
                for name in ("reward", "mask", "bootstrap"):
                    assert getattr(data, name)[t, b].item() == getattr(history, name)[row, 0], (
                        row,
                        name,
                    )
                assert (
                    not history.mask[row, 0] or data.action[t, b].item() == history.action[row, 0]
                )


@pytest.mark.few(2)
@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
@pytest.mark.parametrize("window", [1, 3, 7])
@pytest.mark.parametrize(
    "stack",
    [None, STACK, Stack(frames=FRAMES, padding="first")],
    ids=["vectors", "black", "repeated"],
)
def test_windows_of_a_data_set_are_what_was_recorded(
    selector: str, window: int, stack: Stack | None
) -> None:
    history = History(streams=1, rows=700, stack=stack)  # more than two chunks
    dataset = of(history)
    made, rng = shelf(dataset, history, window=window, selector=selector), np.random.default_rng(0)
    assert len(made.selector) == dataset.steps, "every real row begins a window"
    seen: set[int] = set()
    for i in range(60):
        batch = made.draw(32, rng, done=i / 60, buffer=i % 2)
        prove(history, batch)
        seen |= set(batch.keys[:, 1].tolist())
        made.learned(batch.keys, np.full(32, 0.5))
    assert len(seen) > dataset.steps * 0.8


def test_what_is_written_is_read_again_without_pickle(monkeypatch: Any) -> None:
    observation = spaces.Dict(
        {
            "pair": spaces.Tuple((spaces.Box(-1, 1, (3,)), spaces.Discrete(4, start=2))),
            "image": spaces.Box(0, 255, (32, 32, 3), np.uint8),
            "bits": spaces.MultiBinary(5),
        }
    )
    action = spaces.Tuple((spaces.MultiDiscrete([3, 2]), spaces.Box(-2, 2, (1,))))
    observation.seed(1)
    rng = np.random.default_rng(0)

    def drawn(spec: Any, n: int) -> Any:
        return tree.map(lambda s: rng.integers(0, 2, (n, *s.shape)).astype(s.dtype), spec)

    ends = np.array([False, False, True])
    episodes = [
        Episode(
            obs=drawn(observation_spec(observation), 4),
            action=drawn(action_spec(action), 3),
            reward=rng.normal(size=3).astype(np.float32),
            terminated=ends & (i > 0),
            truncated=ends & (i == 0),
        )
        for i in range(3)
    ]
    about = {"run": "a-run", "stacks": {"image": {"frames": 4, "padding": "zero"}}}
    made = datasets.write(
        "nested-v3", episodes, observation=observation, action=action, algorithm="ppo", about=about
    )

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("pickle")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    found = datasets.find("nested-v3")
    assert (found.observation, found.action, found.episodes, found.steps) == (
        observation,
        action,
        3,
        9,
    )
    assert found.about == about and found.stacks == {"image": Stack(frames=4, padding="zero")}
    assert found.sha256() == made.sha256()
    for mine, other in zip(found, episodes, strict=True):
        for name in Episode.__slots__:
            tree.map(np.testing.assert_array_equal, getattr(mine, name), getattr(other, name))


def test_beside_live_rows_a_share_of_every_batch_is_recorded() -> None:
    live, old = History(streams=BLOCK * ACTORS, rows=1200), History(streams=1, rows=400, seed=5)
    live.row = row = dataclasses.replace(live.row, behaviour={})
    settings = Settings(
        capacity=ROUND * 6,
        starts_at=ROUND * 2,
        updates=2,
        selector="prioritized",
        dataset_share=0.25,
    )
    dataset = of(old)
    made: Replay = replay(live, settings, window=3)
    made.recorded = RecordedRows(dataset, settings, row=row, window=3, stacks={})

    writers, proven = Writers(live, made), 0
    while proven < 40:
        for actor in range(ACTORS):
            writers.write(actor)
        while (batch := made.sample(8)) is not None:
            versions = batch.data.version[0].numpy()
            assert (versions[:6] >= 0).all() and (versions[6:] == NOBODY).all(), (
                "two of eight, at the end"
            )
            fields = batch.data.fields()
            last = {
                name: tree.map(lambda x, n=name: x[6:] if n == "context" else x[:, 6:], x)
                for name, x in fields.items()
            }
            prove(old, dataclasses.replace(batch, data=Trajectory(**last)))
            made.learned(batch.keys, np.arange(8) + 1.0)
            made.finish(batch.keys)
            proven += 1
    state = made.state()
    assert "shelf" in state and not any("obs" in path for path, _ in tree.items(state["shelf"]))


def test_a_missing_data_set_names_those_that_there_are(tmp_path: Any) -> None:
    of(History(streams=1, rows=60), "cartpole/expert-v0")
    with pytest.raises(
        FileNotFoundError,
        match=r"did you mean 'cartpole/expert-v0'\? There are: cartpole/expert-v0\.",
    ):
        datasets.find("cartpole/expret-v0")
    with pytest.raises(
        FileNotFoundError, match="expected Minari's files in .*nowhere/data, got none"
    ):
        datasets.find(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no rows", "No data found"),
        ("no JSON", "JSONDecodeError"),
        ("no space", "KeyError: 'type'"),
        ("no steps", "KeyError: 'total_steps'"),
        ("no stacks", "Stack.* 'padding'"),
    ],
)
def test_what_is_no_data_set_is_named(what: str, said: str, tmp_path: Any) -> None:
    made = of(History(streams=1, rows=60), "odd-v0")
    file = made.path / "metadata.json"
    about = json.loads(file.read_text())
    if what == "no rows":
        (made.path / "main_data.hdf5").unlink()
    elif what == "no space":
        about["observation_space"] = "{}"
    elif what == "no steps":
        del about["total_steps"]
    elif what == "no stacks":
        about["equipoise"] = {"stacks": {"": {"frames": 4}}}
    file.write_text("{" if what == "no JSON" else json.dumps(about))
    with pytest.raises(Faulty, match=f"^data set 'odd-v0': .*metadata.json: .*{said}"):
        datasets.find("odd-v0")


def test_a_directory_is_a_data_set_too_and_none_is_overwritten(tmp_path: Any) -> None:
    where = str(tmp_path / "mine")
    made = of(History(streams=1, rows=60), where)
    assert made.path == tmp_path / "mine" / "data"
    assert json.loads((made.path / "metadata.json").read_text())["dataset_id"] == "mine-v0"
    with pytest.raises(ValueError, match="expected a new one, got .*mine, which is there already"):
        of(History(streams=1, rows=60), where)


def test_a_data_set_that_was_not_written_whole_is_not_there(tmp_path: Any) -> None:
    def episodes() -> Any:
        yield recorded(History(streams=1, rows=60))[0]
        raise KeyboardInterrupt

    space = spaces.Dict({"vector": spaces.Box(-np.inf, np.inf, (2,))})
    with pytest.raises(KeyboardInterrupt):
        datasets.write(
            str(tmp_path / "half"), episodes(), observation=space, action=spaces.Discrete(5)
        )
    assert not list(tmp_path.iterdir())


BOX, FOUR = spaces.Box(-1, 1, (2,)), spaces.Discrete(4)


@pytest.mark.parametrize(
    ("observation", "action", "said"),
    [
        (
            spaces.Box(-1, 1, (3,)),
            FOUR,
            r"observation: expected Box\(-1.0, 1.0, \(3,\), float32\), that of the env, got Box",
        ),
        (
            BOX,
            spaces.Discrete(5),
            r"action: expected Discrete\(5\), that of the env, got Discrete\(4\)",
        ),
        (spaces.Dict({"a": BOX}), FOUR, "observation: expected Dict"),
        (BOX, BOX, "action: expected Box"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(
    tmp_path: Any, observation: Any, action: Any, said: str
) -> None:
    made = Dataset(name="d-v0", path=tmp_path, observation=BOX, action=FOUR, episodes=1, steps=1)
    with pytest.raises(ValueError, match=f"^d-v0: {said}"):
        made.fits(observation, action)
    # how far an observation may go does not matter
    made.fits(spaces.Box(-np.inf, np.inf, (2,), np.float64), FOUR)


def test_the_bounds_of_a_continuous_action_are_looked_at(tmp_path: Any) -> None:
    nested = spaces.Dict({"a": spaces.Tuple((BOX, FOUR))})
    made = Dataset(name="d-v0", path=tmp_path, observation=BOX, action=nested, episodes=1, steps=1)
    made.fits(BOX, nested)
    with pytest.raises(ValueError, match=r"action/a/0: expected Box\(-2.0"):
        made.fits(BOX, spaces.Dict({"a": spaces.Tuple((spaces.Box(-2, 2, (2,)), FOUR))}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"terminated": np.array([True, False, True])},
            "episode 0: expected an end at its last step, 2, alone, got one at 0",
        ),
        (
            {"obs": np.zeros((3, 2), np.float32)},
            r"episode 0, observation: expected shape \(4, 2\), got \(3, 2\)",
        ),
        (
            {"reward": np.array([0, np.nan, 0])},
            "episode 0, reward: expected finite numbers, got nan at step 1",
        ),
        (
            {"truncated": np.zeros(2, bool)},
            r"episode 0, truncated: expected shape \(3,\), as of its rewards, got \(2,\)",
        ),
        (
            {"action": np.array([0, 4, 1])},
            r"episode 0, action: expected one of Discrete\(4\), got 4 at step 1",
        ),
        ({"action": np.array([0, 1.5, 1])}, "episode 0, action: expected int64, got float64"),
    ],
)
def test_episodes_that_are_none_are_refused(change: dict[str, Any], said: str) -> None:
    whole: dict[str, Any] = {
        "obs": np.zeros((4, 2), np.float32),
        "action": np.zeros(3, np.int64),
        "reward": np.zeros(3),
        "terminated": np.array([False, False, True]),
        "truncated": np.zeros(3, bool),
    }
    dataset = datasets.write("odd-v0", [Episode(**whole | change)], observation=BOX, action=FOUR)
    row = RowSpec(
        obs=observation_spec(BOX), action=action_spec(FOUR), behaviour={}, state={}, context=STREAM
    )
    for read in (
        lambda: look(dataset, row, {}),
        lambda: RecordedRows(dataset, Settings(), row=row, window=1, stacks={}),
    ):
        with pytest.raises(Faulty, match=f"^odd-v0: {said}"):
            read()


def test_stacks_that_cannot_be_made_again_are_refused() -> None:
    history = History(streams=1, rows=60, stack=STACK)
    dataset = of(history)
    history.stack = Stack(frames=FRAMES, padding="first")  # the spaces are the same
    with pytest.raises(
        ValueError,
        match="expected stacks of 4 frames that move by one a step and begin with the first one",
    ):
        shelf(dataset, history, window=1)


def test_a_policy_that_needs_more_than_rows_is_refused() -> None:
    history = History(streams=1, rows=60)
    with pytest.raises(ValueError, match=r"one that needs behaviour \(logp\)"):
        look(of(history), history.row, {})


def test_a_sign_of_life_comes_with_every_chunk_of_rows() -> None:
    history, pulses = History(streams=1, rows=900), list[int]()
    dataset, row = (
        of(history),
        RowSpec(
            obs=history.row.obs, action=history.row.action, behaviour={}, state={}, context=STREAM
        ),
    )
    RecordedRows(dataset, Settings(), row=row, window=1, stacks={}, pulse=lambda: pulses.append(1))
    assert len(pulses) >= dataset.steps // CHUNK > 1
