"""Clips with pictures: what ``equipoise clips`` adds to a store, and who reads it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise import api
from equipoise.api.clips import Asked, add_clips, small
from equipoise.cli import app
from equipoise.feedback import Choice, Plan, Store
from equipoise.labeling.clips import packed
from equipoise.record.directory import RunDirectory
from equipoise.rewards.preferences.clips import Clips
from tests.rewards.preferences.test_loop import content, finish, train
from tests.rewards.preferences.worlds import Drawn

pytestmark = pytest.mark.usefixtures("one_thread")
WORLD = "tests.rewards.preferences.worlds:Drawn"
ASKED = Asked(clips=12, rows=4)


def short(out: Path, env: str) -> Path:
    """A run of PPO with the env's reward."""
    made = api.program(
        env,
        "ppo",
        recipe=False,
        actors=1,
        envs_per_actor=2,
        unroll=8,
        steps=32,
        evaluate_episodes=0,
    )
    finish(api.start(made, on="serial", out=out))
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return short(tmp_path_factory.mktemp("run") / "run", WORLD)


def clips_of(store: Store) -> list[dict[str, Any]]:
    found = {hash_ for one in store.queries() for hash_ in (one.left, one.right)}
    return [store.segment(one) for one in found]


def test_a_clip_is_behaviour_without_a_seam_and_its_frames(trained: Path, tmp_path: Path) -> None:
    (added,) = add_clips(trained, tmp_path / "store", ASKED)
    assert (added.step, added.clips, added.total) == (32, 12, added.queries)
    assert 8 <= added.queries <= 12
    reader = Clips(Drawn.observation_space, Drawn.action_space)
    with Store.open(tmp_path / "store") as store:
        found = clips_of(store)
        assert {(one.purpose, one.step) for one in store.queries()} == {("random", None)}
    begins = set()
    for one in found:
        assert set(one) == {"observations", "actions", "episode", "frames", "fps"}  # no reward
        rows, size, _ = reader.rows(one, "clip")
        assert 3 <= size <= 4
        t = rows["obs"][:, 0]
        assert (np.diff(t) == 1).all()
        assert one["frames"].shape == (size, 150, 200, 3)
        assert (one["frames"][:, 0, 0, 0] == 20 * t).all()  # the frame that was seen with the row
        moved = np.clip(rows["obs"][:-1, 1] + np.clip(rows["action"][:-1, 0], -1, 1), 0, 20)
        np.testing.assert_allclose(moved, rows["obs"][1:, 1], atol=1e-5)
        assert one["fps"] == [10]
        assert packed(one)
        begins.add(int(t[0]))
    assert begins == {0, 4, 8}
    assert len({int(one["episode"][0]) for one in found}) == 4


def test_an_episode_shorter_than_a_clip_is_a_clip(trained: Path, tmp_path: Path) -> None:
    (added,) = add_clips(trained, tmp_path / "store", Asked(clips=5, rows=25))
    assert added.clips == 5
    with Store.open(tmp_path / "store") as store:
        for one in clips_of(store):
            assert one["observations"][:, 0].tolist() == list(range(11))


def test_a_long_episode_gives_some_of_its_pieces(trained: Path, tmp_path: Path) -> None:
    list(add_clips(trained, tmp_path / "store", Asked(clips=16, rows=2)))
    with Store.open(tmp_path / "store") as store:
        found = clips_of(store)
    episodes = [int(one["episode"][0]) for one in found]
    assert max(map(episodes.count, episodes)) == 4
    assert len({int(one["observations"][0, 0]) for one in found}) > 4  # not only the first ones
    for one in found:
        assert (one["frames"][:, 0, 0, 0] == 20 * one["observations"][:, 0]).all()


def test_the_same_command_makes_the_same_clips_and_asks_no_pair_twice(
    trained: Path, tmp_path: Path
) -> None:
    asked = Asked(clips=8, rows=4)
    for name in ("one", "two"):
        list(add_clips(trained, tmp_path / name, asked))
    assert content(tmp_path / "one") == content(tmp_path / "two")
    list(add_clips(trained, tmp_path / "one", asked))
    with Store.open(tmp_path / "one") as store:
        pairs = [frozenset((one.left, one.right)) for one in store.queries()]
    assert len(pairs) == len(set(pairs)) > 8


def test_the_store_never_gets_more_queries_than_the_limit(trained: Path, tmp_path: Path) -> None:
    asked = Asked(clips=12, rows=4, queries=5)
    totals = [one.total for _ in range(2) for one in add_clips(trained, tmp_path / "store", asked)]
    assert totals == [5, 5]


def test_large_frames_are_halved_and_a_long_clip_has_fewer_of_them(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halved = small(np.array([[[0], [200]], [[100], [100]]], np.uint8).repeat(200, 1).repeat(3, 2))
    assert halved.shape == (1, 200, 3)
    assert halved.ravel().tolist()[::300] == [50, 150]
    assert small(np.zeros((801, 400, 3), np.uint8)).shape == (200, 100, 3)
    monkeypatch.setattr("equipoise.api.clips.MOST_BYTES", 2 * 150 * 200 * 3)
    list(add_clips(trained, tmp_path / "store", ASKED))
    with Store.open(tmp_path / "store") as store:
        for one in clips_of(store):
            assert (one["frames"][:, 0, 0, 0] == 20 * one["observations"][::2, 0]).all()
            assert one["fps"] == [5]


def test_an_env_that_does_not_render_gets_one_sentence(tmp_path: Path) -> None:
    store = tmp_path / "unused"
    short(tmp_path / "run", "tests.rewards.preferences.worlds:pendulum")
    done = CliRunner().invoke(app, ["clips", str(tmp_path / "run"), str(store)])
    assert done.exit_code == 2
    assert "show curves" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not store.exists()


def test_a_store_of_another_env_stays_as_it_is(trained: Path, tmp_path: Path) -> None:
    with Store.create(tmp_path / "store") as store:
        pair = [
            store.add_segment(
                {
                    "observations": np.full((4, 3), i, np.float32),
                    "actions": np.zeros((4, 1), np.float32),
                    "episode": np.array([i]),
                }
            )
            for i in range(2)
        ]
        store.add_query("clip", *pair)
    with pytest.raises(ValueError, match="must be of this env"):
        list(add_clips(trained, tmp_path / "store", ASKED))
    assert len(content(tmp_path / "store")[0]) == 1


def answer(place: Path) -> int:
    """Answer all open queries: positions near 5 are better. Return their number."""
    count = 0
    with Store.open(place) as store:
        store.add_annotator("ann")
        while (question := store.next_query("ann")) is not None:
            left, right = (
                np.abs(store.segment(one)["observations"][:, 1] - 5).mean()
                for one in (question.left, question.right)
            )
            choice: Choice = "left" if left < right else "right"
            store.answer(question.query.id, "ann", choice, 1.0)
            count += 1
    return count


@pytest.mark.thorough
def test_a_training_learns_from_answers_about_pictures(tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    Store.create(store, Plan(gold_share=0.0, repeat_share=0.0)).close()
    limits = ("reward.labels=8", "reward.first=8")  # the training asks 8 queries itself
    train(run, store, 128, *limits, env=WORLD)
    assert len(content(store)[0]) == 8
    done = CliRunner().invoke(
        app, ["clips", str(run), str(store), "--rows", "8", "--queries", "26"]
    )
    assert done.exit_code == 0, done.output
    assert re.fullmatch(
        rf"step 128: 20 clips, 1\d queries; 2\d queries in {store}\n", done.stdout
    ), done.stdout
    answers = answer(store)
    assert answers == len(content(store)[0]) > 20
    finish(api.start(resume=run, steps=384))
    told = [one["metrics"] for one in RunDirectory.found(run).metrics()]
    assert {one["preferences_labels"] for one in told} == {0, answers}
    assert len(content(store)[0]) == answers  # its limit counts the queries about pictures


@pytest.mark.thorough
def test_pictures_that_come_in_between_change_no_round_that_is_done_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    train(tmp_path / "half", store, 256, "reward.teacher=synthetic", env=WORLD)
    shutil.copytree(tmp_path / "half", tmp_path / "killed")
    params = finish(api.start(resume=tmp_path / "half", steps=512))
    before = content(store)
    list(add_clips(tmp_path / "killed", store, Asked(rows=8)))
    assert answer(store) > 8
    list(add_clips(tmp_path / "half", store, Asked(rows=8)))  # these stay open
    assert finish(api.start(resume=tmp_path / "killed", steps=512)) == params
    half, killed = (
        [one["metrics"] for one in RunDirectory.found(tmp_path / name).metrics()]
        for name in ("half", "killed")
    )
    assert half == killed
    after = content(store)
    assert [part[: len(old)] for part, old in zip(after, before, strict=True)] == list(before)


@pytest.mark.thorough
def test_following_plays_each_newer_checkpoint_until_the_run_ends(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    summary = (run / "summary.json").read_bytes()
    (run / "summary.json").unlink()
    (run / "checkpoints").rename(tmp_path / "later")
    waits: list[int] = []

    def wait(_: float) -> None:
        """The run gets its first checkpoint, then a newer one, then it ends."""
        waits.append(len(waits))
        newest = tmp_path / "later"
        match len(waits):
            case 1:
                shutil.copytree(newest, run / "checkpoints")
            case 2:
                shutil.copytree(newest / "step_32", run / "checkpoints" / "step_64")
            case 3:
                (run / "summary.json").write_bytes(summary)
            case _:
                pytest.fail("the run has ended")

    monkeypatch.setattr("equipoise.api.clips.time.sleep", wait)
    with pytest.raises(FileNotFoundError, match="--follow waits"):
        list(add_clips(run, tmp_path / "store", ASKED))
    followed = Asked(clips=12, rows=4, seed=1, follow=True)
    found = list(add_clips(run, tmp_path / "store", followed))
    assert len(found) == 2
    assert waits == [0, 1, 2]


def test_a_run_at_a_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a path on this machine, got a URL"):
        next(add_clips(f"file://{tmp_path}/run", tmp_path / "store", ASKED))
