"""A reward that is learned from preferences while the policy trains, as a term of the rewards."""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import tree
from equipoise.facts import (
    KEPT,
    Help,
    NonNegativeFloat,
    PositiveInt,
    Range,
    Read,
    UnitInterval,
)
from equipoise.feedback import Ask, Purpose, Store
from equipoise.feedback.database import FILE
from equipoise.feedback.store import in_the_way
from equipoise.files import local_path
from equipoise.naming import called
from equipoise.nets.threads import one_thread
from equipoise.rewards.observed import Observed
from equipoise.rewards.preferences import guard as verdicts
from equipoise.rewards.preferences.asking import HELD_OUT, SPLIT, Asking, Budget, asks, of_rows
from equipoise.rewards.preferences.candidates import Candidates, Rows
from equipoise.rewards.preferences.clips import Clips, Labels
from equipoise.rewards.preferences.demonstrations import demonstration_answers
from equipoise.rewards.preferences.fit import Fitting, fit
from equipoise.rewards.preferences.model import RewardModel, RewardNets
from equipoise.rewards.preferences.moved import ROWS, Actor, Drawn, is_measured
from equipoise.rewards.preferences.novelty import KNOWN, Known, known, novelty, projection
from equipoise.rewards.preferences.saved import SAVED, loaded, saved
from equipoise.rewards.preferences.segments import (
    Answers,
    Segments,
    both,
    held_out,
    join,
    split,
)
from equipoise.rewards.preferences.teacher import Teacher
from equipoise.rewards.term import LearnerStates, Refused, RewardTerm
from equipoise.schema import Array, Each, Either, Flag, Number, Schema, Text, count, like
from equipoise.seeds import derive_seed
from equipoise.types import Algorithm, EnvSpec, Learns, Network, Pool, Trajectory, Tree

MOST_CAUTION = 8.0  # that the guard adds
BEST, JUDGED = "best", "judged"  # kept states of the learner
EQUAL = 1e-6  # deviations of a segment's return: the synthetic teacher calls two segments equal
SEEDED = threading.Lock()  # learners may be threads of one process, which has one torch seed


@dataclass(kw_only=True, eq=False)
class Preferences(RewardTerm):
    """The mean of an ensemble of networks that predicts which of two segments is preferred
    (Christiano et al. 2017, arXiv:1706.03741; Lee et al. 2021, arXiv:2106.05091), less ``caution``
    times the deviation of its members.

    Every ``every`` rows the learner has a round: it adds queries about segments of its own rows to
    the store, reads the answers that are there, fits a new ensemble to all of them, and goes on. It
    never waits. Until the first fit the reward is novelty. The env's reward is used by the
    synthetic teacher alone.
    """

    name: ClassVar[str] = "preferences"
    together: ClassVar[bool] = True

    store: Annotated[str, Help("Folder of the store of preferences", "It is created.")] = ""
    labels: Annotated[PositiveInt, Help("Queries in all, those of the store included")] = 700
    teacher: Annotated[
        Literal["people", "synthetic"],
        Help(
            "Source of the answers",
            "`synthetic` answers at once, by the env's rewards; `people` answer on the page.",
        ),
    ] = "people"
    score: Annotated[
        str,
        Help(
            "Function that the synthetic teacher judges a segment by",
            "`module:function`, from observations and actions [rows, ...] to a number; none uses "
            "the env's rewards.",
        ),
        Read("teacher", "synthetic", why="people answer"),
    ] = ""
    error: Annotated[
        UnitInterval,
        Help("Share of answers that the synthetic teacher gives wrongly"),
        Read("teacher", "synthetic", why="people answer"),
    ] = 0.0
    rationality: Annotated[
        NonNegativeFloat,
        Help(
            "How surely the synthetic teacher prefers the better one",
            "In deviations of a segment's return. 0: always.",
        ),
        Read("teacher", "synthetic", why="people answer"),
    ] = 0.0
    segment: Annotated[PositiveInt, Help("Rows of a segment"), KEPT] = 25
    every: Annotated[PositiveInt, Help("Rows between two rounds")] = 500
    first: Annotated[PositiveInt, Help("Answers that the first fit needs")] = 50
    queries: Annotated[PositiveInt, Help("New queries of a round")] = 50
    choose: Annotated[
        Literal["disagreement", "random"],
        Help(
            "Choice of queries",
            "`disagreement`: those of ten times as many that the members disagree most about.",
        ),
    ] = "disagreement"
    newest: Annotated[
        UnitInterval,
        Help("Share of queries about the newest segments beside the best"),
    ] = 0.2
    candidates: Annotated[
        int, Range(2, 100_000), Help("Newest segments that queries are chosen from"), KEPT
    ] = 500
    members: Annotated[int, Range(2, 64), Help("Networks of the ensemble"), KEPT] = 3
    hidden: Annotated[tuple[PositiveInt, ...], Help("Hidden layers of a network"), KEPT] = (64, 64)
    noise: Annotated[float, Range(0, 0.9), Help("Share of answers expected to be random"), KEPT] = (
        0.1
    )
    demonstrations: Annotated[
        str,
        Help(
            "Data set whose segments are preferred to the policy's",
            "To its earliest ones: as many pairs as `first`, in each fit (arXiv:1811.06521).",
        ),
    ] = ""
    caution: Annotated[
        NonNegativeFloat,
        Help("Deviations of the members that a reward is lowered by"),
    ] = 0.0
    guard: Annotated[
        bool,
        Help(
            "Act on the verdicts of the guard",
            "If false, it only reports its numbers and raises the alarm.",
        ),
        KEPT,
    ] = True
    kl: Annotated[
        NonNegativeFloat,
        Help(
            "KL divergence since the last fit that counts as far",
            "In nats; 0 turns it off. Three rounds farther away without answers are a pull back.",
        ),
    ] = 0.0

    def follow(self, algorithm: Learns) -> None:
        if not self.store:
            raise Refused(
                "reward.preferences.store: must be a folder, got none; try --set reward.store=DIR"
            )
        if not 0 < self.first <= self.labels:
            raise Refused(
                f"reward.preferences.first: must be 1 to labels ({self.labels:,}), since there is "
                f"no reward before a first fit, got {self.first:,}"
            )
        self._algorithm = algorithm
        self._check_kl(is_measured(algorithm))
        self._score = called(self.score, "reward.preferences.score") if self.score else None

    def _check_kl(self, measured: bool) -> None:
        if self.kl and not measured:
            raise Refused(
                "reward.preferences.kl: must be 0, since it needs an algorithm with a distribution "
                "over actions, no memory and no mask of actions, such as ppo or sac, got "
                f"{self.kl:g} and {type(self._algorithm).__name__}"
            )

    def build(self, spec: EnvSpec, seed: int) -> None:
        self._observed, self._action, self._seed = Observed(spec), spec.action, seed
        self._check_kl(measured := is_measured(self._algorithm, spec))
        self._spec = spec if measured else None
        self._clips = Clips(self._observed.space, spec.action)
        self._labels = Labels(self._clips)
        try:
            self._found = Candidates(
                self._clips.specs, rows=self.segment, most=self.candidates, seed=seed
            )
        except ValueError as error:
            raise Refused(f"reward.preferences.{error}") from error
        self._shown: Candidates | None = None  # segments of demonstrations
        self._device = torch.device("cpu")
        self._model, self._fitted = self._new_model(seed), False
        self._projection = projection(self._observed.size, seed)
        self._known: Known | None = None  # states that novelty compares with
        self._known_at = 0  # candidates so far, when it was made
        self._run = ""  # the name of the run in the store; "": before its first round
        self._rounds = 0  # rounds so far
        self._collected = self._last = 0  # rows so far, and at the last round
        self._row = 0  # of the answers that were read
        # the rounds whose segments were begun by the best version, and by the one that is judged
        self._best = self._judged = 0
        # pull backs so far, and the rows at the last one
        self._pulls = self._pulled_at = 0
        self._due, self._version = False, 0  # is there a round after this update, of this version?
        self._best_rows: Rows | None = None  # segments of the best version
        self._drawn: Drawn | None = None  # by the policy of the last fit
        self._extra = 0.0  # caution that the guard adds
        self._guard, self._verdict = verdicts.State(), "ok"
        self._numbers: dict[str, float] = {}
        try:
            self._check_store()
        except (ValueError, OSError) as error:
            raise Refused(f"reward.preferences.store: {error}") from error

    def recorded(self) -> str:
        return self.demonstrations

    def demonstrate(self, data: Trajectory) -> None:
        if self._shown is None:
            seed = derive_seed(self._seed, "demonstrations")
            self._shown = Candidates(
                self._clips.specs, rows=self.segment, most=self.candidates, seed=seed
            )
        self._shown.collect(replace(data, obs=self._observed.leaf(data.obs)), 0)

    def to(self, device: torch.device) -> None:
        self._device, self._model = device, self._model.to(device)
        if self._projection is not None:
            self._projection = self._projection.to(device)

    def _is_there(self) -> bool:
        return (Path(self.store) / FILE).exists() or Path(self.store).is_file()

    def _check_store(self) -> None:
        """ValueError for a store that is damaged, or whose clips are of another env."""
        folder = local_path(self.store)
        if not self._is_there():
            if folder.is_dir() and in_the_way(folder):
                raise ValueError(f"{folder}: must be a store or a new folder, got another one")
            above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
            if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
                raise ValueError(
                    f"{folder}: must be a folder that can be made, got none in {above}"
                )
            return
        with Store(folder) as store:
            self._clips.check(store)

    def _new_model(self, seed: int) -> RewardModel:
        nets = RewardNets(members=self.members, hidden=self.hidden, noise=self.noise)
        with SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return RewardModel(self._observed.space, self._action, nets).to(self._device)

    # ------------------------------------------------------------------------------------ rewards

    def collect(self, data: Trajectory) -> None:
        rows = replace(data, obs=self._observed.leaf(data.obs), state={}, behaviour={})
        host = Trajectory(**tree.on_host(rows.fields()))
        self._found.collect(host, self._rounds)
        self._collected += host.mask.size

    def rewards(self, data: Trajectory) -> Tensor:
        obs = self._observed.leaf(data.obs)
        if not self._fitted:
            if (seen := self._seen()) is None:
                return torch.zeros_like(data.reward)
            return novelty(self._states(tree.index(obs, slice(1, None))), seen)
        mean, deviation = self._model.rewards(tree.index(obs, slice(None, -1)), data.action)
        return verdicts.paid(mean, deviation, self.caution + self._extra)

    def _seen(self) -> Known | None:
        """Return states of the candidates; None if they are too few."""
        if self._known_at != self._found.count:
            self._known = known(self._states(self._some_obs(KNOWN)))
            self._known_at = self._found.count
        return self._known

    def _some_obs(self, count: int) -> Tree:
        """Return at most ``count`` observations of the candidates, on the device."""
        rows = self._found.segments()
        segment, row = (np.arange(self.segment) < rows.size[:, None]).nonzero()
        some = np.unique(np.linspace(0, len(row) - 1, count).astype(np.int64))
        obs = tree.torch_views(tree.index(rows.obs, (segment[some], row[some])))
        return tree.to(obs, self._device)

    def _states(self, obs: Tree) -> Tensor:
        """Return observations as numbers [..., F], projected if they are many."""
        found = self._observed.rows(obs)
        return found if self._projection is None else found @ self._projection

    # ------------------------------------------------------------------------------------- rounds

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        self._due = self._collected - self._last >= self.every and len(self._found) >= 2
        if self._due:
            self._last, self._pool = self._collected, pool
            self._version = int(pool.max(data.version.max()))

    def steer(self, states: LearnerStates) -> None:
        if self._due:
            self._due = False
            seed = derive_seed(self._seed, f"round {self._rounds}")
            try:
                with one_thread():
                    self._round(states, seed, self._pool)
            except OSError as error:  # such as a full disk
                raise Refused(f"reward.preferences.store: {error}") from error
        if self._verdict == "stop":  # the learner's update is taken back
            states.go_back(BEST)

    def _round(self, states: LearnerStates, seed: int, pool: Pool) -> None:
        """Ask, read the answers that are there, judge the model by the new ones, and fit.

        All learners do it alike. The first of them to ask writes the round, which the others find.
        """
        self._run = self._run if self._rounds else _name_of_run(self._run, pool)
        with self._opened() as store:
            upto, new = store.round_of(self._run, self._rounds), list[Ask]()
            if upto is None:
                new = self._asks(store, seed, states.progress)
            pool.max(torch.zeros(1))  # all have chosen their queries
            if upto is None:
                upto = store.ask(
                    self._run,
                    self._rounds,
                    new,
                    version=self._version,
                    step=self._collected,
                    most=self.labels,
                )
            most, least = int(pool.max(torch.tensor(upto))), -int(pool.max(torch.tensor(-upto)))
            if least != most:
                raise Refused(
                    f"reward.preferences.store: must be one folder for all learners, got folders "
                    f"with {least:,} and {most:,} answers"
                )
            answers = self._labels.read(store, upto)
            fresh = self._labels.since(store, upto, self._row)
            # late answers about a policy that was left already say nothing about the present one
            compared = self._labels.since(
                store, upto, self._row, purpose="newest", later=self._pulled_at
            )
            waits = self._waits(store, upto)
        self._numbers["labels"] = len(answers)
        changed, self._row = upto != self._row or not self._fitted, upto
        first, verdict, kl = not self._fitted, None, self._divergence(states.net)
        self._numbers["kl"] = kl
        if self._fitted and len(answers) and (len(fresh) or waits or self.kl):
            verdict = self._judge(fresh.to(self._device), compared.to(self._device), kl)
        enough = len(answers) >= self.first and answers.decided
        if changed and (enough or self._shown is not None):
            with torch.enable_grad():
                self._fit(answers, seed)
            self._draw(states.net, seed)
        self._rounds += 1
        if self.guard and self._fitted:
            self._follow(verdict, states, first=first, waits="newest" in waits)

    def _follow(
        self, verdict: verdicts.Verdict | None, states: LearnerStates, *, first: bool, waits: bool
    ) -> None:
        """Keep the best version so far, and go back to it if the guard asks for that.

        The answers of a round are about segments that the version at the end of the round before
        began. That version is judged until no answer about it is missing, so late answers choose no
        version that they are not about. ``first``: the model was just fitted for the first time.
        """
        back = verdict is not None and verdict.kind in ("pull back", "stop")
        better = verdict is not None and verdict.best
        if first:
            states.keep(BEST)
            self._keep_segments(self._rounds - 1)
        elif better:
            states.rename(JUDGED, BEST)
            self._keep_segments(self._judged)
        elif back:
            states.go_back(BEST)
        if first or better or back or not waits:
            states.keep(JUDGED)
            self._judged = self._rounds

    def _keep_segments(self, round_: int) -> None:
        """Keep the segments that are compared with the newest ones, those of a round."""
        rows = self._found.segments()
        if (mine := rows.round == round_).any():
            self._best, self._best_rows = round_, Rows(**tree.index(rows.fields(), mine))

    def _rows(self) -> Rows:
        """Return the candidates and the segments of the best version, the oldest first."""
        rows = self._found.segments()
        if self._best_rows is None:
            return rows
        others = tree.index(rows.fields(), rows.round != self._best)

        def joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
            return np.concatenate([one, other])

        return Rows(**tree.map(joined, self._best_rows.fields(), others))

    def _opened(self) -> Store:
        """Open the store; create it before the first round alone."""
        try:
            if not self._rounds:
                return Store.open_or_create(self.store)  # also by several runs at once
            store = Store(self.store)
            try:
                self._check_rows(store)
            except BaseException:
                store.close()
                raise
        except (ValueError, OSError) as error:
            raise Refused(f"reward.preferences.store: {error}") from error
        return store

    def _check_rows(self, store: Store) -> None:
        """ValueError if the store has fewer answers than the run has read."""
        if (last := store.last_row()) < self._row:
            raise ValueError(
                f"{store.path}: must have the {self._row:,} rows of answers that this run has "
                f"read, got {last:,}; try the store that it began with"
            )

    def _waits(self, store: Store, upto: int) -> set[Purpose]:
        """Return the purposes of queries up to now without an answer."""
        answered = {one.query for one in store.answers(upto=upto)}
        return {
            one.purpose
            for one in store.queries()
            if one.kind == "clip"
            and one.step is not None
            and one.step <= self._collected
            and one.id not in answered
        }

    def _asks(self, store: Store, seed: int, progress: float) -> list[Ask]:
        purposes = [one.purpose for one in store.queries() if one.kind == "clip"]
        newest = purposes.count("newest")
        others = len(purposes) - newest
        count, about_newest = Budget(
            labels=self.labels,
            round=self.queries,
            newest=self.newest,
            spread=self.guard,
        ).counts(newest, others, progress=progress, urgent=self._verdict != "ok")
        if self._verdict == "stop":
            count = about_newest = 0
        elif not self._fitted:  # all are at random
            count = min(max(self.queries, self.first - len(purposes)), self.labels - len(purposes))
        how = Asking(
            count=count,
            choose=self.choose,
            newest=about_newest,
            best=self._best,
            teacher=Teacher(rationality=self.rationality or math.inf, error=self.error, equal=EQUAL)
            if self.teacher == "synthetic"
            else None,
            score=self._score,
        )
        model = self._model if self._fitted else None
        return asks(store, self._clips, self._rows(), model, how, seed=seed)

    def _fit(self, answers: Answers, seed: int) -> None:
        """Fit a new ensemble to all answers, also the answers of demonstrations."""
        parts = [self._labels.segments()] if len(answers) else []
        if self._shown is not None:
            answers = self._with_demonstrations(self._shown.segments(), parts, answers, seed)
        segments = join(parts).to(self._device)
        answers = answers.to(self._device)
        train, _, _ = split(answers, segments.episode, share=HELD_OUT, seed=SPLIT)
        settings = Fitting(held_out=HELD_OUT if len(train) else 0.0)
        self._model, self._fitted = self._new_model(seed), True
        held = fit(self._model, segments, answers, settings, seed=SPLIT)
        self._numbers |= {"held_out_accuracy": held.accuracy, "held_out_ece": held.ece}

    def _with_demonstrations(
        self, shown: Rows, parts: list[Segments], answers: Answers, seed: int
    ) -> Answers:
        """Add demonstrations and the policy's earliest segments to ``parts``; return the answers
        with answers that prefer the demonstrations.
        """
        rows = self._found.segments()
        early = Rows(**tree.index(rows.fields(), rows.round == rows.round.min()))
        before = sum(map(len, parts))
        parts += [of_rows(shown), of_rows(early)]
        episode = torch.cat([one.episode for one in parts]).numpy()
        place = np.arange(len(episode)) - before
        more = demonstration_answers(
            (place >= 0) & (place < len(shown.size)),
            held_out(episode, share=HELD_OUT, seed=SPLIT),
            count=self.first,
            seed=seed,
            policy=place >= len(shown.size),
        )
        return both(answers, more)

    def _draw(self, net: nn.Module, seed: int) -> None:
        """Draw actions of the policy that the model is fitted with, on candidates."""
        if self._spec is not None:
            obs, seed = self._some_obs(ROWS), derive_seed(seed, "kl")
            drawn = self._actor(net).draw(obs, self._spec, seed)
            self._drawn = drawn.like(self._clips.specs["action"])

    def _divergence(self, net: nn.Module) -> float:
        return math.nan if self._drawn is None else self._actor(net).divergence(self._drawn)

    def _actor(self, net: nn.Module) -> Actor:
        return Actor(cast(Algorithm, self._algorithm), cast(Network, net))

    def _judge(self, fresh: Answers, compared: Answers, kl: float) -> verdicts.Verdict:
        """Let the guard look at the answers since the last round."""
        segments, rows = self._labels.segments().to(self._device), self._found.segments()
        newest = of_rows(Rows(**tree.index(rows.fields(), rows.round == rows.round.max())))
        chance = self._chance(segments, fresh)
        decided = fresh.share != 0.5
        predicted = ((chance > 0.5) == (fresh.share > 0.5))[decided].float()
        signs = verdicts.Signs(
            answers=int(decided.sum()),
            accuracy=float(predicted.mean()),
            expected=verdicts.expected_by(chance[decided]) if len(predicted) else math.nan,
            compared=len(compared),
            win_answers=float(compared.share.mean()),
            win_model=float(self._chance(segments, compared).mean()),
            deviation=self._deviation(newest.to(self._device)),
            deviation_labelled=self._deviation(segments),
            kl=0.0 if math.isnan(kl) else kl,
        )
        self._guard, verdict = verdicts.judge(self._guard, signs, verdicts.Limits(kl=self.kl))
        if self.guard:
            self._verdict = verdict.kind
            if verdict.kind == "pull back":
                self._pulls, self._pulled_at = self._pulls + 1, self._collected
                self._extra = min(2 * self._extra + 0.5, MOST_CAUTION)
        self._numbers |= {
            "accuracy": signs.accuracy,
            "deviation": signs.deviation,
            "win_rate": signs.win_answers,
            "caution": self.caution + self._extra,
            "verdict": float(get_args(verdicts.Kind).index(verdict.kind)),
            "contradicted": float(verdict.kind == "stop"),
            "pull_backs": float(self._pulls),
        }
        return verdict

    def _chance(self, segments: Segments, answers: Answers) -> Tensor:
        """Return the model's chances [Q] that the left segments are preferred."""
        returns = self._model.all_returns(segments).mean(0)
        return self._model.chance(returns[answers.left] - returns[answers.right])

    def _deviation(self, segments: Segments) -> float:
        obs, action = (tree.index(one, segments.mask) for one in (segments.obs, segments.action))
        return float(self._model.rewards(obs, action)[1].mean())

    def metrics(self) -> Mapping[str, float]:
        return {name: value for name, value in self._numbers.items() if math.isfinite(value)}

    # -------------------------------------------------------------------------------------- state

    def state(self) -> Tree:
        return {
            "candidates": self._found.state(),
            "model": dict(self._model.state_dict()),
            "fitted": self._fitted,
            "run": self._run,
            "rounds": self._rounds,
            "collected": self._collected,
            "last": self._last,
            "row": self._row,
            "best": self._best,
            "best_rows": {} if self._best_rows is None else self._best_rows.fields(),
            "judged": self._judged,
            "pulls": self._pulls,
            "pulled_at": self._pulled_at,
            "drawn": {} if self._drawn is None else self._drawn.fields(),
            "extra": self._extra,
            "verdict": self._verdict,
            "numbers": dict(self.metrics()),
            "guard": saved(self._guard),
        }

    def schema(self) -> Schema:
        counts = ("rounds", "collected", "last", "row", "best", "judged", "pulls", "pulled_at")
        drawn = tree.map(_tensors, self._clips.specs)
        drawn["logp"] = _tensors(tree.ArraySpec((), "float32"))
        return {
            "candidates": self._found.schema(),
            "model": like(dict(self._model.state_dict()), finite=True),
            "fitted": Flag(),
            "run": Text(100),
            **dict.fromkeys(counts, count()),
            "extra": Number(0, MOST_CAUTION),
            "best_rows": Either(({}, self._found.schema_of(None))),
            "drawn": Either(({}, drawn)),
            "verdict": Text(among=get_args(verdicts.Kind)),
            "numbers": Each(Number()),
            "guard": SAVED,
        }

    def load(self, state: Tree) -> None:
        self._found.load(state["candidates"])
        state = state | {"run": state["run"] or self._run}  # of a round that is done again
        self._model.load_state_dict(state["model"])
        self._fitted, self._run, self._rounds = state["fitted"], state["run"], state["rounds"]
        self._collected, self._last, self._row = state["collected"], state["last"], state["row"]
        self._best, self._judged, self._extra = state["best"], state["judged"], state["extra"]
        self._pulls, self._pulled_at = state["pulls"], state["pulled_at"]
        self._best_rows = Rows(**tree.map(np.copy, rows)) if (rows := state["best_rows"]) else None
        self._drawn = Drawn(**tree.to(drawn, self._device)) if (drawn := state["drawn"]) else None
        self._verdict, self._numbers = state["verdict"], dict(state["numbers"])
        self._guard = loaded(state["guard"])
        self._known_at = 0
        if self._row:
            with Store(self.store) as store:
                self._check_rows(store)


def _tensors(spec: tree.ArraySpec) -> Array:
    """Return the schema of tensors of this form, any number of them."""
    return Array((None, *spec.shape), spec.dtype, tensor=True, finite="float" in spec.dtype)


def _name_of_run(name: str, pool: Pool) -> str:
    """Return the name that a learner has, of a first round that is done again, or a random one; the
    same for all learners.
    """
    number = int(pool.max(torch.tensor(int(name or "0", 16))))
    return f"{number or int(pool.max(torch.tensor(secrets.randbits(62)))):016x}"
