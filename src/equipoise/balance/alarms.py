"""Alarms: signs in a run's own numbers that it makes no progress.

Each rule is a pure function of a short window of numbers. It returns the evidence in words, or ""
if there is none. ``Alarms`` keeps the windows. A late alarm is better than a false one, so every
sign has to last. docs/guides/alarms.md lists the numbers of each rule and the reasons.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from equipoise.balance.shares import Shares

RECORDS = 10  # looks at the learner's numbers that a collapse lasts
FEW = 5  # the same for lag and importance weights, which need no time to show a problem
# episodes that end in the window of a collapse, so that the return is the collapsed policy's
EPISODES = 20
# evaluations in a row below the best one, and by how many standard errors, of an exploited reward
FALLEN, FALLEN_ERRORS = 2, 2.0
EXPLODED, EXPLODING = 100.0, 3  # times the scale of the returns, and looks at it
# metric -> the power that gives it the unit of returns
ROOTS = {"value_error": 0.5, "critic_loss": 0.5, "td_error": 1.0, "q": 1.0, "surprise": 1.0}
LEAST_SAMPLE = 0.1  # of the rows are effective
# mean factor between an engine's and the learner's probabilities of a token, by the same weights
DISAGREES = 1.05
SAMPLES, UPDATES = (0.01, 20_000.0), 40.0  # of a replay: samples of a row, and updates an env step
FROZEN_S = 5.0  # that an actor began unrolls with weights older than the published ones
BELOW = 0.2  # of the run's steps below random play
BELOW_EPISODES = 100
# (seconds between samples, bytes a second) of a leak
MEMORY = ((1.0, 500_000.0), (20.0, 150_000.0))
SAMPLES_KEPT = 31  # of the memory of a worker: 30 times the seconds above
MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A sign that the run goes nowhere as it is, raised once for each owner."""

    name: str
    owner: str  # "learner", "policy main", "actor 1", ...
    evidence: str  # in numbers
    action: str  # advice, if there is any
    step: int
    wall_s: float

    @property
    def text(self) -> str:
        return f"alarm: {self.name} ({self.owner}): {self.evidence}; {self.action}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstEpisodes:
    """Returns of the first episodes of every stream, as an untrained policy gets them."""

    episodes: int
    mean: float
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLimits:
    """The numbers of a policy that rules compare with; None: the rule does not apply."""

    algorithm: str
    max_sensible_lag: float | None = None  # versions of lag that its correction bears
    least_entropy: float | None = None  # below it hardly anything is left to chance
    scale: float = 1.0  # factor of the rewards that are learned from


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits and settings of a run that rules need."""

    steps: int
    unroll: int
    policies: Mapping[str, PolicyLimits]  # the policies that learn
    # how often a row of the replay is learned from, on average; None: no replay
    samples: float | None = None
    updates: float = 0.0  # an env step, with a replay
    # bytes that a worker's memory may grow by, by its title
    filling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A run's own numbers at one moment."""

    wall_s: float
    step: int
    published: int  # newest version
    episodes: int
    return_mean: float | None  # last 100 episodes
    lag_mean: float
    metrics: Mapping[str, float]
    first: FirstEpisodes | None = None
    # by worker that acts: version and end row of its open unroll
    acting: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # bytes of the memory of each worker under way, by its title
    memory: Mapping[str, float] = field(default_factory=dict)
    balance: Mapping[str, Shares] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An evaluation by the true reward, which nothing learns from, and by the learned one."""

    step: int
    gold: float
    error: float  # standard error of ``gold``
    proxy: float


@dataclass(frozen=True, slots=True)
class OpenUnroll:
    """An unroll that somebody acts in."""

    version: int
    row: int  # its end
    published: int
    wall_s: float


# -------------------------------------------------------------------------------------------- rules


def collapse(
    entropy: Sequence[float],
    returns: Sequence[float],
    episodes: Sequence[int],
    *,
    least: float,
    first: FirstEpisodes,
    best: float,
) -> str:
    """Hardly any entropy is left, and half of the gain over the first episodes is lost.

    ``best``: the best return so far.
    """
    if len(entropy) < RECORDS or max(entropy) >= least or episodes[-1] - episodes[0] < EPISODES:
        return ""
    if max(returns) > first.mean + max(first.std, best - first.mean) / 2:
        return ""
    return (
        f"the entropy fell to {entropy[-1]:.3g} (below {least:.3g} hardly anything is left to "
        f"chance), and the return is {returns[-1]:.4g}, after {first.mean:.4g} in the first "
        f"{first.episodes} episodes and {best:.4g} at best"
    )


def exploding(values: Sequence[float], scale: float) -> str:
    """An error of the values, in the unit of returns, is far above every return and stays."""
    last = [abs(x) if math.isfinite(x) else math.inf for x in values][-EXPLODING:]
    if len(last) < EXPLODING or min(last) <= EXPLODED * scale or last[-1] < last[0]:
        return ""
    return (
        f"{last[-1]:.3g}, which is over {EXPLODED:.0f} times the largest return or first value, "
        f"{scale:.3g}"
    )


def small_sample(shares: Sequence[float]) -> str:
    """The importance weights leave few rows that count. ``shares``: effective rows, 0..1."""
    if len(shares) < FEW or max(shares[-FEW:]) >= LEAST_SAMPLE:
        return ""
    return (
        f"the importance weights leave {shares[-1]:.1%} of the rows effective (alarm below "
        f"{LEAST_SAMPLE:.0%})"
    )


def disagreeing(factors: Sequence[float]) -> str:
    """Engine and learner differ in probabilities. ``factors``: mean exp |difference of logs|."""
    if len(factors) < EXPLODING or min(factors[-EXPLODING:]) <= DISAGREES:
        return ""
    return (
        f"the probabilities that drew tokens are off by a factor of {factors[-1]:.3f} on "
        f"average (alarm above {DISAGREES})"
    )


def contradicted(verdict: float, said: Mapping[str, float]) -> str:
    """The evidence that a policy exploits a reward that was learned from preferences, by the
    verdict of its guard; "" if it does not.
    """
    if verdict <= 0:
        return ""
    won = f", of which the last ones let it win {said['preferences_win_rate']:.0%}"
    return "the answers contradict the learned reward again and again" + (
        won if "preferences_win_rate" in said else ""
    )


def exploited(best: Probe, later: Sequence[Probe]) -> str:
    """Return the evidence that a policy exploits a learned reward: the last two evaluations are
    clearly below the ``best`` one by the true reward, and not below it by the learned one.
    """
    if len(later) < FALLEN:
        return ""
    for one in later[-FALLEN:]:
        chance = math.hypot(best.error, one.error)
        if best.gold - one.gold <= FALLEN_ERRORS * chance or one.proxy < best.proxy:
            return ""
    last = later[-1]
    return (
        f"the true reward fell from {best.gold:.3g} at step {best.step:,} to {last.gold:.3g} at "
        f"step {last.step:,}, while the learned reward went from {best.proxy:.3g} to "
        f"{last.proxy:.3g}"
    )


def lagging(lags: Sequence[float], limits: PolicyLimits) -> str:
    """Experience is older than the algorithm's correction bears."""
    if (
        limits.max_sensible_lag is None
        or len(lags) < FEW
        or min(lags[-FEW:]) <= limits.max_sensible_lag
    ):
        return ""
    return (
        f"experience is {lags[-1]:.1f} versions old on average, and {limits.algorithm} bears "
        f"{limits.max_sensible_lag:g}"
    )


def ratio(samples: float | None, updates: float) -> str:
    """The rows of a replay are learned from unusually often, or hardly at all."""
    low, high = SAMPLES
    if samples is None or (low <= samples <= high and updates <= UPDATES):
        return ""
    return (
        f"a row is learned from {_plain(samples)} times on average, with {_plain(updates)} updates "
        f"an env step; usual are {low:g} to {high:,.0f} times, and at most {UPDATES:g} updates"
    )


def _plain(x: float) -> str:
    return f"{x:,.0f}" if x >= 10 else f"{x:.2g}"


def frozen(since: OpenUnroll | None, now: OpenUnroll, unroll: int) -> str:
    """Two unrolls and more began after ``since`` by a version that was outdated even then."""
    if (
        since is None
        or now.row - since.row < 2 * unroll
        or (ago := now.wall_s - since.wall_s) < FROZEN_S
    ):
        return ""
    return (
        f"it acts by version {now.version}, as it did {ago:.0f} s ago; version {now.published} "
        "is published"
    )


def leaking(samples: Sequence[tuple[float, float]], rate: float) -> str:
    """Memory grew in each third of the ``samples`` (s, bytes), at ``rate`` bytes/s or faster."""
    if len(samples) < SAMPLES_KEPT:
        return ""
    marks = [samples[i * (SAMPLES_KEPT - 1) // 3] for i in range(4)]
    if any(b - a < rate * (t - s) for (s, a), (t, b) in pairwise(marks)):
        return ""
    (began, before), (ended, after) = samples[0], samples[-1]
    grew, took = after - before, ended - began
    return (
        f"its memory grew by {grew / MB:.0f} MB in {took:.0f} s, {grew / took / MB:.2g} MB/s, "
        f"to {after / MB:,.0f} MB"
    )


def random_play(first: FirstEpisodes) -> float:
    """The return below which a policy is clearly worse than the first episodes were."""
    if first.episodes < EPISODES:
        return -math.inf
    return (
        first.mean - first.std * (0.25 + 3.0 / math.sqrt(first.episodes)) - 0.05 * abs(first.mean)
    )


# ------------------------------------------------------------------------------------------ windows


Found = Iterator[tuple[str, str, str, str]]  # name, owner, evidence, action


class Alarms:
    """Looks at a run moment by moment, and keeps the alarms that were raised."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.raised: list[Alarm] = []
        # the learner's numbers at the last look
        self._metrics: Mapping[str, float] | None = None
        # by policy and number
        self._looks: dict[tuple[str, str], deque[float]] = defaultdict(
            lambda: deque(maxlen=RECORDS)
        )
        # by policy and number: the largest of the first looks, before a return is known
        self._scale: dict[tuple[str, str], float] = {}
        self._return = 0.0  # the largest absolute value; 0: unknown
        self._best = -math.inf  # return
        # by acting worker: since when newer weights are published
        self._old: dict[str, OpenUnroll] = {}
        self._below: Moment | None = None  # since when the return is below random play
        self._memory: dict[tuple[str, float], deque[tuple[float, float]]] = defaultdict(
            lambda: deque(maxlen=SAMPLES_KEPT)
        )
        self._base: dict[str, float] = {}
        self._probes = deque[Probe](maxlen=FALLEN)

    def look(self, now: Moment) -> list[Alarm]:
        """Take in a moment -> the alarms that it raises, each name once for an owner."""
        before = len(self.raised)
        for rule in (self._learning, self._ratio, self._acting, self._returns, self._leaks):
            for name, owner, evidence, action in rule(now):
                if evidence and not any(
                    (one.name, one.owner) == (name, owner) for one in self.raised
                ):
                    self._raise(name, owner, evidence, action, now.step, now.wall_s)
        return self.raised[before:]

    def evaluated(self, best: Probe, last: Probe, wall_s: float) -> Alarm | None:
        """Take in an evaluation by the true and the learned reward -> the alarm that it raises."""
        if last.step <= best.step:
            self._probes.clear()
            return None
        self._probes.append(last)
        name, evidence = "reward exploited", exploited(best, list(self._probes))
        if not evidence or any(one.name == name for one in self.raised):
            return None
        action = (
            "labels of the newest answers, a higher algorithm.beta or source.caution; the best "
            "version is kept (equipoise evaluate DIR --best)"
        )
        return self._raise(name, self._all, evidence, action, last.step, wall_s)

    def failed(self, said: str, *, step: int, wall_s: float) -> Alarm:
        """Note an update whose loss or gradient was not finite, by the error's words ``said``."""
        action = "a lower optimizer.learning_rate, optimizer.max_grad_norm or rewards.clip may help"
        evidence = said.partition(";")[0]
        return self._raise("loss not finite", "learner", evidence, action, step, wall_s)

    def _raise(
        self, name: str, owner: str, evidence: str, action: str, step: int, wall_s: float
    ) -> Alarm:
        alarm = Alarm(
            name=name, owner=owner, evidence=evidence, action=action, step=step, wall_s=wall_s
        )
        self.raised.append(alarm)
        return alarm

    def _learning(self, now: Moment) -> Found:
        """Alarms from the learner's numbers of each policy, if the numbers are new."""
        if not now.published or now.metrics is self._metrics:
            return
        self._metrics = now.metrics
        self._best = max(self._best, -math.inf if now.return_mean is None else now.return_mean)
        first = now.first or FirstEpisodes(episodes=0, mean=0.0, std=0.0)
        self._return = max(
            self._return, abs(now.return_mean or 0.0), abs(first.mean) + 3 * first.std
        )
        several = len(self._limits.policies) > 1
        for policy, limits in self._limits.policies.items():
            room, owner = f"{policy}/" if several else "", f"policy {policy}"
            said = {
                name.removeprefix(room): x
                for name, x in now.metrics.items()
                if name.startswith(room)
            }
            yield (
                "lag too large",
                owner,
                lagging(self._add(policy, "lag", now.lag_mean), limits),
                "a lower --max-lag, a faster learner or fewer actors make experience fresher",
            )
            if "rho" in said and "rho_squared" in said:
                share = effective(said["rho"], said["rho_squared"])
                yield (
                    "weights collapsed",
                    owner,
                    small_sample(self._add(policy, "sample", share)),
                    "a lower --max-lag or optimizer.learning_rate keeps the policies nearer to "
                    "each other",
                )
            if "token_mult_prob_error" in said:
                yield (
                    "engine disagrees",
                    owner,
                    disagreeing(self._add(policy, "gate", said["token_mult_prob_error"])),
                    "source.on_update=recompute, if samples span versions; else look at the engine",
                )
            if "preferences_contradicted" in said:
                yield (
                    "reward exploited",
                    owner,
                    contradicted(said["preferences_contradicted"], said),
                    "the weights stay at the best version; begin a new run with --init-from this "
                    "one, with more reward.labels or a higher reward.caution",
                )
            yield from self._collapse(now, policy, limits, said)
            for name, power in ROOTS.items():
                if name in said:
                    yield from self._exploding(policy, name, abs(said[name]) ** power, limits.scale)

    def _collapse(
        self, now: Moment, policy: str, limits: PolicyLimits, said: Mapping[str, float]
    ) -> Found:
        if (
            now.first is None
            or now.return_mean is None
            or limits.least_entropy is None
            or "entropy" not in said
        ):
            return
        entropy = self._add(policy, "entropy", said["entropy"])
        returns = self._add(policy, "return", now.return_mean)
        episodes = [int(x) for x in self._add(policy, "episodes", now.episodes)]
        evidence = collapse(
            entropy, returns, episodes, least=limits.least_entropy, first=now.first, best=self._best
        )
        action = (
            "a lower optimizer.learning_rate, or a larger algorithm.entropy, keeps it exploring; "
            "start again"
        )
        yield "entropy collapsed", f"policy {policy}", evidence, action

    def _exploding(self, policy: str, name: str, value: float, factor: float) -> Found:
        values, before = self._add(policy, name, value), self._scale.get((policy, name), 1.0)
        if not self._return and len(values) <= EXPLODING and math.isfinite(value):
            # no episode has shown yet how large values may be
            self._scale[policy, name] = before = max(before, value)
        said = exploding(values, max(self._return * factor, 1.0) if self._return else before)
        action = (
            "a lower optimizer.learning_rate, optimizer.max_grad_norm or rewards.clip may help; "
            "start again"
        )
        yield "loss exploding", f"policy {policy}", f"{name} came to {said}" if said else "", action

    def _add(self, policy: str, name: str, value: float) -> list[float]:
        window = self._looks[policy, name]
        window.append(value)
        return list(window)

    def _ratio(self, now: Moment) -> Found:
        action = "replay.updates, policy.batch and policy.unroll decide it"
        yield (
            "replay ratio out of range",
            "replay",
            ratio(self._limits.samples, self._limits.updates),
            action,
        )

    def _acting(self, now: Moment) -> Found:
        """An actor that begins unroll after unroll with outdated weights."""
        for who, (version, row) in now.acting.items():
            seen, since = OpenUnroll(version, row, now.published, now.wall_s), self._old.get(who)
            if since is not None and (version != since.version or row < since.row):
                since = None
            if since is None and version < now.published:
                since = seen
            if since is None:
                self._old.pop(who, None)
                continue
            self._old[who] = since
            yield (
                "old weights",
                who,
                frozen(since, seen, self._limits.unroll),
                "it does not take newer weights; start again, and report it if no code of yours is "
                "in its way",
            )

    def _returns(self, now: Moment) -> Found:
        """The return is below that of random play for long, and does not rise."""
        first, mean = now.first, now.return_mean
        if first is None or mean is None or mean >= random_play(first):
            self._below = None
            return
        since = self._below
        if since is None or mean > (since.return_mean or 0.0) + 0.1 * first.std:
            self._below = since = now
        if (
            now.step - since.step < BELOW * self._limits.steps
            or now.episodes - since.episodes < BELOW_EPISODES
        ):
            return
        yield (
            "below random play",
            self._all,
            f"the return is {mean:.4g} after {now.step:,} steps, and was {first.mean:.4g} in the "
            f"first {first.episodes} episodes (deviation {first.std:.3g})",
            "look at the sign of the rewards and at what ends an episode; a lower learning rate "
            "may help",
        )

    @property
    def _all(self) -> str:
        """The policies that learn, as an owner."""
        names = list(self._limits.policies)
        return f"policy {names[0]}" if len(names) == 1 else f"policies {', '.join(names)}"

    def _leaks(self, now: Moment) -> Found:
        """A worker whose memory grows all the time, beyond what it may fill."""
        # a worker that starts or compiles is not watched
        for who in self._base.keys() - now.memory.keys():
            del self._base[who]
            for every, _ in MEMORY:
                self._memory.pop((who, every), None)
        for who, size in now.memory.items():
            base = self._base.setdefault(who, size)
            for every, rate in MEMORY:
                window = self._memory[who, every]
                if window and size < 0.75 * window[-1][1]:  # another process in its place
                    window.clear()
                    self._base[who] = base = size
                if window and now.wall_s - window[-1][0] < every:
                    continue
                window.append((now.wall_s, size))
                if size - base > self._limits.filling.get(who, 0.0):
                    yield (
                        "memory grows",
                        who,
                        leaking(window, rate),
                        _look_for(now.balance.get(who)),
                    )


def _look_for(shares: Shares | None) -> str:
    if shares is not None and shares.side == "sampling" and not shares.serves:
        return "look in the env and its wrappers for what is kept from step to step"
    return "look in the algorithm and the network for what is kept from update to update"


def effective(rho: float, rho_squared: float) -> float:
    """Effective sample size by rows, 0..1 (Kong 1992): E[rho]^2 / E[rho^2]; 0 on overflow."""
    if not (math.isfinite(rho) and math.isfinite(rho_squared)) or rho_squared <= 0:
        return 0.0
    return min(rho * rho / rho_squared, 1.0)
