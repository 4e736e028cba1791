"""The term of preferences: refusals, novelty, clips, and rounds in a store."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import api, trust
from equipoise.api.results import shown as print_of_run
from equipoise.errors import RewardsFailed
from equipoise.feedback import Ask, Plan, Store
from equipoise.feedback.database import FILE
from equipoise.rewards.preferences.clips import Clips, Labels
from equipoise.rewards.preferences.novelty import novelty, seen_states
from equipoise.rewards.preferences.term import Preferences
from equipoise.rewards.term import LearnerStates
from equipoise.types import Pool
from tests.rewards.preferences.test_loop import program

SPACE = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "on": spaces.MultiBinary(3)})


def clip(seed: int, size: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "observations.arm": rng.normal(size=(size, 2)).astype(np.float32),
        "observations.on": np.ones((size, 3), np.int64),
        "actions": rng.integers(0, 2, size),
        "episode": np.array([seed]),
    }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def hashes(store: Store) -> list[str]:
    return [store.add_segment(clip(seed, 3 + seed)) for seed in range(3)]


def test_a_round_that_is_asked_again_adds_nothing_and_reads_the_same(store: Store) -> None:
    a, b, c = hashes(store)
    asks = [Ask(left=a, right=b, purpose="random", choice="left")]
    upto = store.ask("run", 0, asks, version=1, step=10)
    more = [Ask(left=b, right=c, purpose="newest")]
    assert store.ask("run", 1, more, version=1, step=20) == upto
    assert store.ask("run", 0, more, version=1, step=10) == upto == store.round_of("run", 0)
    assert store.round_of("run", 2) is None
    assert [one.purpose for one in store.queries()] == ["random", "newest"]


def test_a_round_adds_no_more_queries_than_the_store_may_have(store: Store) -> None:
    a, b, c = hashes(store)
    asks = [Ask(left=x, right=y, purpose="random") for x, y in ((a, b), (b, c), (a, c))]
    store.ask("one", 0, asks[:1], version=0, step=0)
    # another run has added one since this run looked
    store.ask("two", 0, asks, version=0, step=0, most=2)
    store.ask("three", 0, asks[::-1], version=0, step=0, most=1)
    assert [(one.left, one.right) for one in store.queries()] == [(a, b), (b, c)]
    assert store.round_of("three", 0) is not None


def test_a_pair_that_is_there_is_answered_once_and_from_its_own_side(store: Store) -> None:
    a, b, _ = hashes(store)
    store.ask("one", 0, [Ask(left=a, right=b, purpose="random")], version=0, step=0)
    mirrored = [Ask(left=b, right=a, purpose="random", choice="left")]
    for run in ("two", "three"):
        store.ask(run, 0, mirrored, version=0, step=0)
    assert [one.choice for one in store.answers()] == ["right"]
    assert store.counts().open == 0


def test_a_round_is_all_or_nothing(store: Store) -> None:
    a, b, _ = hashes(store)
    asks = [Ask(left=a, right=b, purpose="random"), Ask(left=a, right="0" * 64, purpose="random")]
    with pytest.raises(ValueError, match="must be a stored segment"):
        store.ask("run", 0, asks, version=0, step=0)
    assert not store.queries()
    assert store.round_of("run", 0) is None


def test_clips_of_a_store_are_the_segments_that_were_put(store: Store) -> None:
    clips, (a, b, c) = Clips(SPACE, spaces.Discrete(2)), hashes(store)
    asks = [
        Ask(left=a, right=b, purpose="random", choice="right"),
        Ask(left=b, right=c, purpose="random", choice="equal"),
        Ask(left=a, right=c, purpose="random", choice="cannot_tell"),
    ]
    upto = store.ask("run", 0, asks, version=0, step=0)
    labels = Labels(clips)
    answers = labels.read(store, upto)
    assert answers.share.tolist() == [0.0, 0.5]
    segments = labels.segments()
    assert segments.mask.sum(1).tolist() == [3, 4, 5]
    assert segments.episode.tolist() == [0, 1, 2]
    assert torch.equal(segments.obs["arm"][1, :4], torch.tensor(clip(1)["observations.arm"]))
    made = clips.arrays(
        {"arm": np.zeros((9, 2), np.float32), "on": np.zeros((9, 3), np.int64)},
        np.zeros(9, np.int64),
        7,
        5,
    )
    assert {name: len(array) for name, array in made.items()} == {
        "observations.arm": 5,
        "observations.on": 5,
        "actions": 5,
        "episode": 1,
    }


def test_segments_of_undone_answers_are_dropped(store: Store) -> None:
    a, b, c = hashes(store)
    asks = [Ask(left=a, right=b, purpose="random"), Ask(left=b, right=c, purpose="newest")]
    store.ask("run", 0, asks, version=0, step=5)
    store.add_annotator("ann")
    for _ in asks:
        question = store.next_query("ann")
        assert question is not None
        store.answer(question.query.id, "ann", "left", latency_s=1.0)
    clips, before = Clips(SPACE, spaces.Discrete(2)), store.last_row()
    live = Labels(clips)
    assert len(live.read(store, before)) == 2 and len(live.segments()) == 3
    assert len(live.since(store, before, 0, purpose="newest")) == 1
    assert len(live.since(store, before, 0, purpose="newest", later=5)) == 0
    store.undo("ann")
    resumed = Labels(clips)
    for labels in (live, resumed):
        answers = labels.read(store, store.last_row())
        assert answers.left.tolist() == [0] and answers.right.tolist() == [1]
        assert labels.segments().episode.tolist() == [0, 1]
    assert len(live.read(store, before)) == 2  # as of then


def test_a_repeat_is_evidence_once_and_uses_no_label(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "asked", Plan(gold_share=0, repeat_share=0.5, repeat_after=0))
    store.add_annotator("ann")
    first, *others, last = [store.add_segment(clip(seed)) for seed in range(13)]
    asks = [Ask(left=first, right=other, purpose="random") for other in (*others, last)]
    store.ask("run", 0, asks[:-1], version=0, step=0)
    labels, repeats = Labels(Clips(SPACE, spaces.Discrete(2))), 0
    while (question := store.next_query("ann")) is not None:
        repeats += question.reason == "repeat"
        store.answer(question.query.id, "ann", "left", latency_s=1.0)
    assert repeats
    upto = store.ask("run", 1, asks[-1:], version=0, step=1, most=12)
    assert len(store.answers()) == 11 + repeats and len(store.queries()) == 12
    assert len(labels.read(store, upto)) == len(labels.since(store, upto, 0)) == 11


def test_a_clip_of_another_env_is_refused_by_name(store: Store) -> None:
    with pytest.raises(ValueError, match=r"clip x: must be of this env, with observations float32"):
        Clips(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)).rows(clip(1), "clip x")


def test_novelty_is_larger_far_from_what_was_seen() -> None:
    states = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    seen = seen_states(states)
    assert seen is not None
    found = novelty(torch.tensor([[[0.0, 0.0], [5.0, 5.0], [9.0, 9.0]]]), seen)[0]
    assert found[0] < found[1] < found[2]
    other = novelty(torch.randn(1, 5000, 2, generator=torch.Generator().manual_seed(1)), seen)
    assert abs(float(other.mean())) < 0.2 and 0.8 < float(other.std()) < 1.25
    assert seen_states(states[:5]) is None  # too few to compare with


def test_novelty_of_states_that_are_alike_is_zero_and_of_another_one_bounded() -> None:
    """Rounding of distances once drew a policy to one side of a world of few states."""
    five = torch.arange(5.0).repeat(40).unsqueeze(-1) / 4
    for states in (five, torch.full((200, 3), 0.1)):
        seen = seen_states(states)
        assert seen is not None
        assert novelty(states, seen).abs().max() == 0
    seen = seen_states(five)
    assert seen is not None
    assert 1 < float(novelty(torch.tensor([[9.0]]), seen)) < 100


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["reward.labels=0"], "first: must be 1 to labels"),
        (["reward.labels=7"], "first: must be 1 to labels"),
        (["reward.segment=9000000"], "reward.preferences.segment: must have at most"),
        (["reward.members=1"], "members"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(
    tmp_path: Path, settings: list[str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        api.start(program(tmp_path / "store", 256, *settings), on="serial", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "store").exists()


def test_a_missing_name_a_damaged_store_and_one_of_another_env_are_refused(tmp_path: Path) -> None:
    with Store.create(tmp_path / "other") as store:
        a, b, _ = hashes(store)
        store.ask("run", 0, [Ask(left=a, right=b, purpose="random")], version=0, step=0)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / FILE).write_bytes(b"no database" * 100)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    said = {
        "other": "must be of this env",
        "bad": "must be a",
        "full": "must be a store or a new folder",
    }
    for name, sentence in said.items():
        with pytest.raises(ValueError, match=rf"reward.preferences.store: .*{sentence}"):
            api.start(program(tmp_path / name, 256), on="serial", out=tmp_path / "run")
    with pytest.raises(ValueError, match="store: must be a folder, got none"):
        api.program("Pendulum-v1", "sac", reward="preferences")


def test_a_store_that_a_file_names_is_opened_only_if_the_user_vouches_for_it() -> None:
    rewards = {"sum": "preferences", "terms": {"preferences": {"store": "labels", "labels": 3}}}
    names = trust.of_rewards(rewards)
    assert names == [("reward setting", "labels")]
    with pytest.raises(trust.Untrusted, match="run.json: reward setting 'labels' would be opened"):
        trust.check(names, None, None, [], "run.json")
    assert not trust.of_rewards({"sum": "preferences", "terms": {"preferences": {"store": ""}}})
    scored = {"sum": "preferences", "terms": {"preferences": {"score": "mine:turns"}}}
    assert trust.of_rewards(scored) == [("reward score", "mine:turns")]


def test_a_store_that_cannot_be_made_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="reward.preferences.store: .*folder that can be made"):
        api.start(program(tmp_path / "file" / "store", 256), on="serial", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_store_that_is_removed_between_two_rounds_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new store would hold none of the answers."""
    first = Preferences._round

    def then_removed(self: Preferences, states: LearnerStates, seed: int, pool: Pool) -> None:
        first(self, states, seed, pool)
        shutil.rmtree(self.store)

    monkeypatch.setattr(Preferences, "_round", then_removed)
    run = api.start(program(tmp_path / "store", 512), on="serial", out=tmp_path / "run")
    with pytest.raises(RewardsFailed, match="^reward.preferences.store: .*store: must be a feedba"):
        for _ in run:
            pass
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("teacher", ["people", "synthetic"])
def test_a_run_that_people_answer_prints_the_command_for_it(
    teacher: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    of = program(Path("my labels"), 64, f"reward.teacher={teacher}")
    print_of_run(api.start(of, on="serial"), progress=True)
    printed = " ".join(capsys.readouterr().out.split())
    assert ("equipoise label 'my labels'" in printed) == (teacher == "people")


def test_a_run_of_python_without_progress_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = api.start(program(tmp_path / "store", 64), on="serial", out=tmp_path / "run")
    print_of_run(run, progress=False)
    assert capfd.readouterr() == ("", "")
