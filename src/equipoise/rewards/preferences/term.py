"""A reward that is learned from preferences while the policy trains, as a term of the rewards."""

from __future__ import annotations

import math
import secrets
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import tree
from equipoise.facts import KEPT, Help, NonNegativeFloat, PositiveInt, Range, Read, UnitInterval
from equipoise.feedback import Ask, Store
from equipoise.files import local_path
from equipoise.naming import called
from equipoise.nets.threads import one_thread
from equipoise.rewards.observed import Observed
from equipoise.rewards.preferences import guard as verdicts
from equipoise.rewards.preferences.asking import (
    HELD_OUT,
    SPLIT,
    Asking,
    Budget,
    asks,
    is_last,
    of_rows,
    unanswered,
)
from equipoise.rewards.preferences.candidates import Candidates, Rows
from equipoise.rewards.preferences.clips import Clips, Labels
from equipoise.rewards.preferences.demonstrations import demonstration_answers
from equipoise.rewards.preferences.divergence import (
    ROWS,
    DrawnActions,
    StochasticPolicy,
    is_measured,
)
from equipoise.rewards.preferences.fit import Fitting, fit
from equipoise.rewards.preferences.model import Pictures, RewardModel, RewardNets
from equipoise.rewards.preferences.novelty import (
    MOST_SEEN,
    SeenStates,
    novelty,
    projection,
    seen_states,
)
from equipoise.rewards.preferences.segments import Answers, Segments, both, held_out, join, split
from equipoise.rewards.preferences.teacher import Teacher
from equipoise.rewards.preferences.versions import BEST, Versions
from equipoise.rewards.term import LearnerStates, Refused, RewardTerm
from equipoise.schema import Array, Each, Either, Flag, Number, Schema, Text, count, like
from equipoise.seeds import derive_seed
from equipoise.types import Algorithm, EnvSpec, Learns, Network, Pool, Trajectory, Tree

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
    labels: Annotated[PositiveInt, Help("Most queries in the store, by all runs together")] = 700
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
            "Function that the synthetic teacher scores a segment by",
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
            "Rationality of the synthetic teacher",
            "A segment that is one deviation of returns better is preferred with the probability "
            "sigmoid(rationality). 0: the better one always is.",
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
        Help("Share of queries that compare newest and best segments"),
    ] = 0.2
    candidates: Annotated[
        int, Range(2, 100_000), Help("Newest segments that queries are chosen from"), KEPT
    ] = 500
    members: Annotated[int, Range(2, 64), Help("Networks of the ensemble"), KEPT] = 3
    hidden: Annotated[tuple[PositiveInt, ...], Help("Hidden layers of a network"), KEPT] = (64, 64)
    pictures: Annotated[Pictures, KEPT] = "cnn"
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
        try:
            self._score = called(self.score, "reward.preferences.score") if self.score else None
        except ValueError as error:
            raise Refused(str(error)) from error

    def notes(self) -> Sequence[str]:
        if self.teacher != "people":
            return ()
        where = shlex.quote(self.store)
        return (f"people answer, from the first round of queries on: equipoise label {where}",)

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
        self._spec = spec if measured else None  # None: the policy's divergence is not measured
        self._clips = Clips(self._observed.space, spec.action)
        self._labels = Labels(self._clips)
        try:
            self._candidates = self._new_candidates(seed)
        except ValueError as error:
            raise Refused(f"reward.preferences.{error}") from error
        self._demonstrations: Candidates | None = None  # segments of demonstrations
        self._device = torch.device("cpu")
        self._model, self._fitted = self._new_model(seed), False
        self._projection = projection(self._observed.size, seed)
        self._seen: SeenStates | None = None  # states that novelty compares with
        self._seen_at = 0  # candidates so far, when it was made
        self._run = ""  # name of the run in the store; "" before its first round
        self._rounds = 0  # rounds so far
        self._collected = self._last_round_at = 0  # rows so far, and at the last round
        self._last_row = 0  # of answers, up to which the store was read
        self._due, self._version = False, 0  # is a round due, and the policy version that it names
        self._drawn: DrawnActions | None = None  # by the policy at the last fit
        self._versions = Versions()
        self._numbers: dict[str, float] = {}
        try:
            self._clips.check_folder(local_path(self.store))
        except (ValueError, OSError) as error:
            raise Refused(f"reward.preferences.store: {error}") from error

    def recorded(self) -> str:
        return self.demonstrations

    def demonstrate(self, data: Trajectory) -> None:
        if self._demonstrations is None:
            self._demonstrations = self._new_candidates(derive_seed(self._seed, "demonstrations"))
        self._demonstrations.collect(replace(data, obs=self._observed.leaf(data.obs)), 0)

    def to(self, device: torch.device) -> None:
        self._device, self._model = device, self._model.to(device)
        if self._projection is not None:
            self._projection = self._projection.to(device)

    def _new_candidates(self, seed: int) -> Candidates:
        return Candidates(self._clips.specs, rows=self.segment, most=self.candidates, seed=seed)

    def _new_model(self, seed: int) -> RewardModel:
        nets = RewardNets(
            members=self.members,
            hidden=self.hidden,
            noise=self.noise,
            pictures=self.pictures,
        )
        with SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return RewardModel(self._observed.space, self._action, nets).to(self._device)

    # ------------------------------------------------------------------------------------ rewards

    def collect(self, data: Trajectory) -> None:
        rows = replace(data, obs=self._observed.leaf(data.obs), state={}, behaviour={})
        host = Trajectory(**tree.on_host(rows.fields()))
        self._candidates.collect(host, self._rounds)
        self._collected += host.mask.size

    def rewards(self, data: Trajectory) -> Tensor:
        obs = self._observed.leaf(data.obs)
        if not self._fitted:
            if (seen := self._seen_states()) is None:
                return torch.zeros_like(data.reward)
            return novelty(self._states(tree.index(obs, slice(1, None))), seen)
        mean, deviation = self._model.rewards(tree.index(obs, slice(None, -1)), data.action)
        return verdicts.paid(mean, deviation, self.caution + self._versions.caution)

    def _seen_states(self) -> SeenStates | None:
        """Return states of the candidates to compare with; None if they are too few."""
        if self._seen_at != self._candidates.count:
            self._seen = seen_states(self._states(self._some_obs(MOST_SEEN)))
            self._seen_at = self._candidates.count
        return self._seen

    def _some_obs(self, count: int) -> Tree:
        """Return at most ``count`` observations of the candidates, on the device."""
        rows = self._candidates.segments()
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
        self._due = (
            self._collected - self._last_round_at >= self.every and len(self._candidates) >= 2
        )
        if self._due:
            self._last_round_at, self._pool = self._collected, pool
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
        if self._versions.verdict == "stop":  # the learner's update is taken back
            states.go_back(BEST)

    def _round(self, states: LearnerStates, seed: int, pool: Pool) -> None:
        """Ask, read the answers that are there, assess the model by the new ones, and fit. All
        learners do it alike.
        """
        self._run = self._run if self._rounds else _name_of_run(self._run, pool)
        with self._opened() as store:
            upto = self._ask(store, seed, states.progress, pool)
            answers = self._labels.read(store, upto)
            fresh = self._labels.since(store, upto, self._last_row)
            # answers about a policy from before a pull back say nothing about the present one
            compared = self._labels.since(
                store, upto, self._last_row, purpose="newest", later=self._versions.pulled_at
            )
            waits = unanswered(store, upto, self._collected)
        self._numbers["labels"] = len(answers)
        changed, self._last_row = upto != self._last_row or not self._fitted, upto
        first, verdict, kl = not self._fitted, None, self._divergence(states.net)
        self._numbers["kl"] = kl
        if self._fitted and len(answers) and (len(fresh) or waits or self.kl):
            last = is_last(states.progress, self._rounds)
            verdict = self._assess(fresh.to(self._device), compared.to(self._device), kl, last=last)
        enough = len(answers) >= self.first and answers.decided
        if changed and (enough or self._demonstrations is not None):
            with torch.enable_grad():
                self._fit(answers, seed)
            self._draw(states.net, seed)
        self._rounds += 1
        if self.guard and self._fitted:
            rows = self._candidates.segments()
            if first:
                self._versions.begin(states, rows, self._rounds)
            else:
                self._versions.follow(verdict, states, rows, self._rounds, waits="newest" in waits)

    def _ask(self, store: Store, seed: int, progress: float, pool: Pool) -> int:
        """Add the queries of a round to the store; return the row that its answers are read up to.

        The first learner to ask writes the round; all others, and a resumed run, find it there.
        """
        upto, new = store.round_of(self._run, self._rounds), list[Ask]()
        if upto is None:
            new = self._asks(store, seed, progress)
        pool.max(torch.zeros(1))  # wait until all learners have chosen their queries
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
        return upto

    def _opened(self) -> Store:
        """Open the store; create it only in the first round."""
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
        if (last := store.last_row()) < self._last_row:
            raise ValueError(
                f"{store.path}: must have the {self._last_row:,} rows of answers that this run has "
                f"read, got {last:,}; try the store that it began with"
            )

    def _asks(self, store: Store, seed: int, progress: float) -> list[Ask]:
        """Choose the queries of a round, within the budget."""
        purposes = [one.purpose for one in store.queries() if one.kind == "clip"]
        newest = purposes.count("newest")
        others = len(purposes) - newest
        count, about_newest = Budget(
            labels=self.labels,
            round=self.queries,
            newest=self.newest,
            spread=self.guard,
            at_end=self.teacher == "synthetic",  # people have no time to answer it
        ).counts(
            newest,
            others,
            progress=progress,
            urgent=self._versions.verdict != "ok",
            last=is_last(progress, self._rounds),
        )
        if self._versions.verdict == "stop":
            count = about_newest = 0
        elif not self._fitted:  # enough for the first fit
            count = min(max(self.queries, self.first - len(purposes)), self.labels - len(purposes))
        how = Asking(
            count=count,
            choose=self.choose,
            newest=about_newest,
            best=self._versions.best,
            teacher=Teacher(rationality=self.rationality or math.inf, error=self.error, equal=EQUAL)
            if self.teacher == "synthetic"
            else None,
            score=self._score,
        )
        model = self._model if self._fitted else None
        rows = self._versions.with_best(self._candidates.segments())
        return asks(store, self._clips, rows, model, how, seed=seed)

    def _fit(self, answers: Answers, seed: int) -> None:
        """Fit a new ensemble to all answers, also the answers of demonstrations."""
        parts = [self._labels.segments()] if len(answers) else []
        if self._demonstrations is not None:
            answers = self._with_demonstrations(
                self._demonstrations.segments(), parts, answers, seed
            )
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
        rows = self._candidates.segments()
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
        """Keep actions of the present policy on candidates, which later ones are compared with."""
        if self._spec is not None:
            obs, seed = self._some_obs(ROWS), derive_seed(seed, "kl")
            drawn = self._policy(net).draw(obs, self._spec, seed)
            self._drawn = drawn.like(self._clips.specs["action"])

    def _divergence(self, net: nn.Module) -> float:
        return math.nan if self._drawn is None else self._policy(net).divergence(self._drawn)

    def _policy(self, net: nn.Module) -> StochasticPolicy:
        return StochasticPolicy(cast(Algorithm, self._algorithm), cast(Network, net))

    def _assess(
        self, fresh: Answers, compared: Answers, kl: float, *, last: bool
    ) -> verdicts.Verdict:
        """Let the guard assess the model by the answers since the last round.

        ``fresh``: these answers; ``compared``: the ones about the candidate.
        """
        segments, rows = self._labels.segments().to(self._device), self._candidates.segments()
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
        versions, limits = self._versions, verdicts.Limits(kl=self.kl)
        versions.guard, verdict = verdicts.assess(versions.guard, signs, limits, last=last)
        if self.guard:
            versions.take(verdict, self._collected)
        self._numbers |= {
            "accuracy": signs.accuracy,
            "deviation": signs.deviation,
            "win_rate": signs.win_answers,
            "caution": self.caution + versions.caution,
            "verdict": float(get_args(verdicts.Kind).index(verdict.kind)),
            "contradicted": float(verdict.kind == "stop"),
            "pull_backs": float(versions.pull_backs),
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
            "candidates": self._candidates.state(),
            "model": dict(self._model.state_dict()),
            "fitted": self._fitted,
            "run": self._run,
            "rounds": self._rounds,
            "collected": self._collected,
            "last": self._last_round_at,
            "row": self._last_row,
            "drawn": {} if self._drawn is None else self._drawn.fields(),
            "versions": self._versions.state(),
            "numbers": dict(self.metrics()),
        }

    def schema(self) -> Schema:
        counts = ("rounds", "collected", "last", "row")
        drawn = tree.map(_tensors, self._clips.specs)
        drawn["logp"] = _tensors(tree.ArraySpec((), "float32"))
        return {
            "candidates": self._candidates.schema(),
            "model": like(dict(self._model.state_dict()), finite=True),
            "fitted": Flag(),
            "run": Text(100),
            **dict.fromkeys(counts, count()),
            "drawn": Either(({}, drawn)),
            "versions": Versions.schema(self._candidates.schema_of(None)),
            "numbers": Each(Number()),
        }

    def load(self, state: Tree) -> None:
        self._candidates.load(state["candidates"])
        state = state | {"run": state["run"] or self._run}  # a first round may be done again
        self._model.load_state_dict(state["model"])
        self._fitted, self._run, self._rounds = state["fitted"], state["run"], state["rounds"]
        self._collected, self._last_round_at = state["collected"], state["last"]
        self._last_row = state["row"]
        self._drawn = (
            DrawnActions(**tree.to(drawn, self._device)) if (drawn := state["drawn"]) else None
        )
        self._versions, self._numbers = Versions.loaded(state["versions"]), dict(state["numbers"])
        self._seen_at = 0
        if self._last_row:
            with Store(self.store) as store:
                self._check_rows(store)


def _tensors(spec: tree.ArraySpec) -> Array:
    """Return the schema of tensors of this form, any number of them."""
    return Array((None, *spec.shape), spec.dtype, tensor=True, finite="float" in spec.dtype)


def _name_of_run(name: str, pool: Pool) -> str:
    """Return one name for all learners: the ``name`` that a learner still has from a first round
    which is done again, else a random one.
    """
    number = int(pool.max(torch.tensor(int(name or "0", 16))))
    return f"{number or int(pool.max(torch.tensor(secrets.randbits(62)))):016x}"
