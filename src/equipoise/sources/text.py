"""Text that a model writes: prompts of a task, completed by generators and graded by rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import nn

from equipoise import foreign, phases
from equipoise.actors import generator
from equipoise.actors.engine.conversing import Bounds, ConversationSettings, Conversing
from equipoise.actors.engine.engine import Continuing, Engine
from equipoise.actors.engine.paged_engine import PagedEngine
from equipoise.actors.engine.reciter import Recited, Reciter
from equipoise.actors.engine.server_engine import Drawing
from equipoise.actors.engine.sim_engine import SimEngine, latency
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.actors.examiner import Examiner, spread
from equipoise.actors.forward.noise import Noise
from equipoise.envs.failures.capsule import Failures
from equipoise.experience.layout import RowSpec
from equipoise.experience.recorded.dataset import Dataset
from equipoise.language import architectures, reward_models, tasks
from equipoise.language.scoring.functions import check_columns, functions, load
from equipoise.language.scoring.pool import ProcessScorer
from equipoise.language.scoring.scorer import HereScorer
from equipoise.language.turns import capsules as turn_capsules
from equipoise.language.turns import partner
from equipoise.nets.decoder import Decoder
from equipoise.nets.room import rounded
from equipoise.seeds import derive_seed
from equipoise.sources import curricula, engines, invariance, kv_budget, scored
from equipoise.sources.graders import ConversationGrader, Grader, Ungraded
from equipoise.sources.prompts import KEPT, Prompts, Text, Voice, read
from equipoise.sources.source import Exam, Source, source_of
from equipoise.sums import MODELS
from equipoise.tree import ArraySpec
from equipoise.types import (
    Algorithm,
    Example,
    Learns,
    Policy,
    Program,
    RunSpec,
    TaskSource,
    TextSpec,
    learning,
)

if TYPE_CHECKING:
    from equipoise.language.scoring.remote import Scorers
    from equipoise.language.scoring.server import Scoring

AT_ONCE = 100  # most answers that an evaluation writes side by side
LITTLE = 0.05  # of the greatest entropy of a token


@dataclass(frozen=True, slots=True)
class Writer:
    """A policy that writes, with a network of its own."""

    net: Any


class Texts(Source):
    """Prompts of a task, which a model completes and rewards grade."""

    settings: TaskSource
    sampler = "generator"
    writes = True

    def text(self) -> Text:
        """Read the task and the facts about its model; the result is kept."""
        return read(self.settings, self.program.schedule.seed)

    # ------------------------------------------------------------------------ before there is a run

    def problems(self) -> list[str]:
        source, problems = self.settings, []
        if not source.task.strip():
            problems.append("source.task: expected a task, such as sort or a JSONL file, got ''")
        if not source.model.strip():
            problems.append("source.model: expected a model, such as tiny or a directory, got ''")
        problems += engines.problems(source, self.program.placement)
        problems += invariance.problems(source, self.program.placement, draws=self._reads_rewards)
        problems += kv_budget.problems(source, draws=self._reads_rewards)
        if source.lora is not None and source.adapter:
            problems.append(
                "source.lora: must be left out with source.adapter, whose file has the rank, got "
                f"{source.lora}"
            )
        if (source.lora is not None or source.adapter) and self.program.placement.shard != "none":
            problems.append(
                "placement.shard: must be none with adapters (source.lora, source.adapter), got "
                f"{self.program.placement.shard}; leave it out, since adapters are small"
            )
        if source.scorers and not self._reads_rewards:
            problems.append(scored.unread(source))
        problems += curricula.problem(self.program, source, draws=self._reads_rewards)
        if "" in source.stop:
            problems.append(
                f"source.stop: expected texts of at least one letter, got {source.stop!r}"
            )
        return problems

    def policy_problems(self, policy: Policy) -> list[str]:
        place, name, size = (
            self.program.placement,
            type(policy.algorithm).__name__,
            policy.algorithm.group_size,
        )
        problems = []
        if not policy.algorithm.needs_task:
            problems.append(
                f"algorithm: expected one that learns from text, got {name}, which acts in an env"
            )
        if size is not None and place.envs_per_actor != size:
            problems.append(
                f"placement.envs_per_actor: expected the {size} samples of a group "
                f"({'a pair' if policy.algorithm.needs_pairs else 'algorithm.num_generations'}), "
                f"got {place.envs_per_actor}"
            )
        groups = policy.batch // place.envs_per_actor // place.learners
        if policy.algorithm.minibatches > groups:
            problems.append(
                f"algorithm.minibatches: expected at most {groups}, the groups of a learner's "
                "batch, which stay whole, got "
                f"{policy.algorithm.minibatches}"
            )
        if policy.unroll != 1:
            problems.append(
                f"policy.unroll: expected 1, since a row is a whole sample, got {policy.unroll}"
            )
        if len(self.program.policies) > 1:
            problems.append(
                f"policies: expected one with a task, got {', '.join(self.program.policies)}"
            )
        return problems

    def evaluable(self) -> tuple[Program, list[str]]:
        """Drop the evaluations if no reward can grade them and the algorithm needs no rewards."""
        program, wanted = self.program, self.program.evaluation
        if self.settings.reward or not wanted.episodes or self._reads_rewards:
            return program, []
        asked = wanted.every is not None or wanted.stop_at is not None
        task = None if asked else self.text().task
        if task is None or task.reward or task.partner:
            return program, []
        said = (
            f"no evaluations: {program.name} has no reward of its own; --reward module:function "
            "grades held-out prompts"
        )
        return replace(program, evaluation=replace(wanted, episodes=0)), [said]

    def spec(self, dataset: Dataset | None) -> RunSpec:
        """Read the task."""
        source, program, reads = self.settings, self.program, self._reads_rewards
        phases.say(f"reading the task {program.name}")
        text = self.text()
        invariance.check(source, text.config)
        kv_budget.check(source, text.spec)
        if text.task.ready is not None:
            text.task.ready(self._holders)
        if reads:
            engines.check(source, program.placement, text.spec.prompt + text.spec.completion)
        named = source.reward or text.task.reward
        if not (named or text.task.partner) and (reads or program.evaluation.episodes):
            less = "" if reads else ", or --evaluate-episodes 0"
            raise ValueError(
                f"reward: expected module:function[,...]{less}, since {source.task} has none of "
                "its own, got none"
            )
        wanted = functions(named, source.reward_weights) if named else []
        if named and program.evaluation.episodes:
            wanted += functions(self.gold(text)) if self.gold(text) else []
        for one in wanted if reads or program.evaluation.episodes else ():
            # refuse before the run's directory exists
            if one.name in source.reward_models:
                reward_models.check(
                    one.name, text.tokenizer, text.spec.prompt + text.spec.completion
                )
                continue
            check_columns(one.name, load(one.name), text.train.examples[0].columns)
        if not reads:
            self.reciter(text)
        return RunSpec(env=text.spec, policies=dict.fromkeys(program.policies, text.spec))

    @property
    def _reads_rewards(self) -> bool:
        return all(policy.algorithm.reads_rewards for policy in learning(self.program).values())

    @property
    def _holders(self) -> int:
        """The processes that talk to partners: generators and the evaluator."""
        return max(self.program.actors, 1) + (self.program.evaluation.episodes > 0)

    def row(self, learns: Policy, net: Any, spec: TextSpec) -> tuple[RowSpec, Noise]:
        chosen = self.settings.curriculum != "none"
        refills = int(foreign.attribute(learns.algorithm, "refills", 0)) if chosen else 0
        row = sample_row(spec, dropped=refills, kv=self.settings.kv_tokens != 0)
        return replace(row, issues=1 + refills if chosen else 0), Noise(0)

    # -------------------------------------------------------------------------------------- records

    def spec_json(self, spec: TextSpec, where: str) -> dict[str, object]:
        return {"text": asdict(spec)}

    def described(self, dataset: Dataset | None, spec: RunSpec) -> dict[str, object]:
        decoder = architectures.decoder_of(architectures.config_of(spec.env.model))
        return {"task": {"sha256": spec.env.sha256}, "decoder": decoder}

    def check_same(self, run: Mapping[str, Any], dataset: Dataset | None, spec: RunSpec) -> None:
        if (got := spec.env.sha256) != (began := run["task"]["sha256"]):
            raise ValueError(
                "source.task: expected the prompts that the run began with (sha256 "
                f"{began[:12]}...), got others "
                f"({got[:12]}...)"
            )

    def notes(self, dataset: Dataset | None, spec: RunSpec) -> list[str]:
        return [*spec.env.notes]

    def keep(self, directory: Path) -> None:
        """Write the tokenizer into a run's directory, for ``voice``."""
        if not (place := directory / KEPT).is_dir() and not (text := self.text()).spec.alphabet:
            place.mkdir()
            text.tokenizer.save(place)

    # ----------------------------------------------------------------------- evaluations and alarms

    def acting(self, algorithm: Algorithm, net: Any, noise: Noise) -> Writer:
        return Writer(net)

    def exam(
        self,
        policies: Mapping[str, Any],
        *,
        episodes: int,
        version: int = 0,
        again: bool = False,
        failures: Failures | None = None,
    ) -> Exam:
        """Held-out prompts, or if there are none the training prompts, answered greedily."""
        text = self.text()
        prompts = text.held_out if len(text.held_out) else text.train
        # greedy answers do not change, so ask for all
        asked = len(prompts) if again else episodes
        numbers = spread(asked, len(prompts)).tolist()
        (name, policy), *_ = learning(self.program).items()
        engine, grader = self.graded_engine(
            self.engine(
                text,
                policy.algorithm,
                policies[name].net,
                greedy=True,
                rows=min(len(numbers), AT_ONCE),
            ),
            text,
            prompts,
            row=lambda number: number,
        )
        graders, gold = [grader], self.gold(text)
        named = self.settings.reward or text.task.reward
        rewards = functions(named, self.settings.reward_weights) if named else []
        if gold:
            rewards = functions(gold)
            graders.insert(0, self.grader(text, prompts, None, gold=gold))
        # the reward of a perfect answer, which is 1 from a partner
        full = sum(one.weight for one in rewards) + bool(text.task.partner and not gold)
        return Examiner(
            engine,
            prompts,
            numbers,
            graders,
            policy=name,
            limit=text.spec.completion,
            full=full,
            decode=text.tokenizer.decode,
        )

    def least_entropy(self, spec: TextSpec) -> float | None:
        return LITTLE * math.log(int(spec.model["vocab_size"]))

    def play_command(self) -> str:
        return (
            super().play_command()
            if self.settings.reward or self.program.evaluation.episodes
            else ""
        )

    # -------------------------------------------------------------------------- parts of generators

    def at_once(self) -> int:
        """The most samples written side by side: ``samples_at_once``, or all that are open."""
        place, lag, most = (
            self.program.placement,
            self.program.placement.max_lag,
            self.settings.samples_at_once,
        )
        batch = max(policy.batch for policy in learning(self.program).values())
        if lag is not None and engines.is_served(self.settings.engine):
            most = (lag + 1) * batch  # a server has a queue of its own
        return max(most if lag is None else min(most, (lag + 1) * batch), place.group_envs)

    def room(self) -> int | None:
        if not self._reads_rewards:  # they recite given samples
            return None
        place, most = self.program.placement, self.at_once()
        if place.max_lag is None:
            return most
        batch = max(policy.batch for policy in learning(self.program).values())
        # generators share the samples that the lag allows; a learner writes few of them
        sharing = place.actors if place.text == "elastic" else self.program.actors
        shared = -(-(place.max_lag + 1) * batch // sharing)
        return max(min(most, shared), place.group_envs)

    def engine(
        self,
        text: Text | Voice,
        algorithm: Learns,
        net: Any,
        *,
        greedy: bool = False,
        rows: int = 0,
        length: int = 0,
        device: str = "cpu",
        kv_tokens: int = 0,
    ) -> TorchEngine:
        """An engine for a policy's network, which it owns from now on.

        ``rows``: samples at once; ``length``: the most tokens of prompt and completion; 0: the
        run's. ``kv_tokens``: of all samples together; 0: each has room for the longest.
        """
        made = partial(PagedEngine, kv_tokens=kv_tokens) if kv_tokens else TorchEngine
        return made(
            rounded(net.to(device), self.program.placement.precision),
            rows=rows or self.at_once(),
            length=length or text.spec.prompt + text.spec.completion,
            ends=Ends(text.spec.eos, self.settings.stop, text.tokenizer.decode),
            seed=derive_seed(self.program.schedule.seed, "tokens"),
            temperature=foreign.attribute(algorithm, "temperature", 1.0),
            greedy=greedy,
            on_update=self.settings.on_update,
        )

    def writing_engine(
        self,
        text: Text,
        algorithm: Learns,
        net: nn.Module,
        *,
        device: str,
        index: int = 0,
        note: Callable[[str], object] = lambda words: None,
        kv_tokens: int = 0,
    ) -> Continuing:
        """Return the engine of generator ``index``, by the setting ``engine``; ``note``: for words
        about its servers. ``kv_tokens``: as for ``engine``.
        """
        place, named = self.program.placement, self.settings.engine
        if engines.is_served(named):
            return engines.served(
                self.settings,
                place,
                cast("Decoder", net),
                Drawing(
                    seed=derive_seed(self.program.schedule.seed, "tokens"),
                    eos=text.spec.eos,
                    length=text.spec.prompt + text.spec.completion,
                    stop=self.settings.stop,
                    temperature=foreign.attribute(algorithm, "temperature", 1.0),
                ),
                index=index,
                note=note,
            )
        if named != "torch":
            return SimEngine(
                latency(named),
                rows=self.at_once(),
                vocabulary=int(text.spec.model["vocab_size"]),
                eos=text.spec.eos[0],
                seed=derive_seed(self.program.schedule.seed, "tokens"),
            )
        engine = self.engine(text, algorithm, net, device=device, kv_tokens=kv_tokens)
        if place.max_lag != 0 and device == "cpu":
            # in lockstep no sample is under way when weights come; on a GPU a copy takes no time
            engine.make_room()
        return engine

    def graded_engine(
        self,
        engine: Continuing,
        text: Text,
        prompts: Prompts,
        *,
        row: Callable[[int], int],
        capsules: str | None = None,
        scorers: Scorers | None = None,
    ) -> tuple[Engine, generator.Grader]:
        """Return the engine with its grader; for a task with a partner, an engine of conversations.

        ``row`` returns the number of a group's prompt. ``scorers``: workers that call the rewards;
        None calls them here.
        """
        if not text.task.partner:
            return engine, self.grader(text, prompts, capsules, scorers=scorers)
        source = self.settings
        talking = Conversing(
            engine,
            ConversationSettings(
                make=partner.maker(text.task.partner, text.task.make),
                tokenizer=text.tokenizer,
                template=tasks.arguments(source.chat_template_kwargs, "chat_template_kwargs"),
                bounds=Bounds(
                    turns=text.spec.turns,
                    turn_tokens=source.turn_tokens or text.task.turn_tokens or text.spec.completion,
                    answer_bytes=source.answer_bytes,
                    step_s=source.step_deadline_s,
                ),
                row=lambda group: prompts.examples[row(group)],
                quick=text.task.quick,
                lockstep=self.program.placement.max_lag == 0,
                seats=text.task.seats and max(1, text.task.seats // self._holders),
                keep=None
                if capsules is None
                else turn_capsules.keeper(
                    Path(capsules),
                    text.task.partner,
                    tasks.arguments(source.arguments),
                    (source.step_deadline_s, source.answer_bytes),
                ),
                history=(lambda group: prompts.begun[row(group)]) if text.spec.parts else None,
            ),
        )
        named = source.reward or text.task.reward
        return talking, ConversationGrader(
            talking,
            self.grader(text, prompts, capsules, scorers=scorers) if named else Ungraded(),
        )

    def reciter(self, text: Text) -> Reciter:
        """An engine of the task's own completions; ValueError if a completion is missing or too
        long.
        """
        if text.task.partner:
            raise ValueError(
                f"source.task={text.task.name}: must be a task of completions, since the algorithm "
                "imitates them, got one of conversations; try --algorithm grpo"
            )
        recited = list[Recited]()
        for number, example in enumerate(text.train.examples):
            where = example.at or f"source.task={text.task.name}, prompt {number}"
            try:
                one = self._recited(text, example)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
            if (length := len(one.token)) > text.spec.completion:
                raise ValueError(
                    f"{where}: expected a completion of at most {text.spec.completion} tokens, the "
                    f"end included, got {length}; --max-completion-length {length} has room for it"
                )
            recited.append(one)
        order = text.order(self.program.schedule.seed)
        return Reciter(lambda group, index: recited[order(group, 0)])

    def _recited(self, text: Text, example: Example) -> Recited:
        """The completion of an example, or the messages of a conversation, as tokens."""
        if example.turns:
            answers = [one for one in example.turns if one["role"] == "assistant"]
            for number, one in enumerate(answers):
                if not (str(one["content"]).strip() or one.get("tool_calls")):
                    raise ValueError(
                        f"answer {number + 1} of {len(answers)} of the assistant: must have a text "
                        "or a call of a tool, got an empty one; remove the row"
                    )
            arguments = tasks.arguments(self.settings.chat_template_kwargs, "chat_template_kwargs")
            tokens, own = text.tokenizer.conversation(
                example.prompt, example.turns, {**arguments, **example.template}
            )
            chosen = np.asarray(own, bool)
        elif example.completion.strip():
            tokens = [*text.tokenizer.encode(example.completion), text.spec.eos[0]]
            chosen = None
        else:
            got = "none" if not example.completion else "white space alone"
            raise ValueError(f"expected a completion to imitate (a column of that name), got {got}")
        return Recited(np.asarray(tokens, np.int64), np.zeros(len(tokens), np.float32), chosen)

    def ungraded(self, text: Text) -> generator.Grader:
        """The grader of samples that are recited."""
        return Ungraded()

    def gold(self, text: Text) -> str:
        """Return the true rewards, which only evaluations read, or "" if there are none."""
        source = self.settings
        named = functions(source.reward) if source.reward else []
        learned = any(one.name.startswith(MODELS) for one in named)
        own = text.task.reward if learned else ""
        return "" if source.gold == "none" else source.gold or own

    def scoring(self) -> Scoring | None:
        return scored.scoring(self.settings, self.text()) if self.settings.scorers else None

    def grader(
        self,
        text: Text,
        prompts: Prompts,
        capsules: str | None,
        *,
        gold: str = "",
        scorers: Scorers | None = None,
    ) -> Grader:
        """Return a grader by ``gold``, or by the rewards that are learned from."""
        source = self.settings
        if not (names := gold or source.reward or text.task.reward):
            raise ValueError(
                "reward: expected a run with a reward, or a task that has one, got none; "
                f"{self.program.name} has none "
                "of its own"
            )
        named = functions(names, () if gold else source.reward_weights)
        where = None if capsules is None else Path(capsules)
        if scorers is not None:
            remote = scored.remote(source, named, scorers, where)
            return Grader(remote, prompts, text.tokenizer)
        if text.task.quick and names == text.task.reward:
            return Grader(HereScorer(named, capsules=where), prompts, text.tokenizer)
        return Grader(
            ProcessScorer(
                named,
                deadline_s=source.reward_deadline_s,
                capsules=where,
                caution=0.0 if gold else source.caution,
            ),
            prompts,
            text.tokenizer,
        )


def texts_of(program: Program) -> Texts:
    """The source of a run on text; TypeError for one of another kind."""
    source = source_of(program)
    if not isinstance(source, Texts):
        raise TypeError(f"source: must be one of text, got {type(source).__name__}")
    return source


def sample_row(spec: TextSpec, *, dropped: int = 0, kv: bool = False) -> RowSpec:
    """The row of a policy that writes: a sample (see ``nets/packing.py``).

    ``dropped``: groups that may be dropped in its place, if their prompts and rewards are noted.
    ``kv``: do samples share a memory of keys and values?
    """
    number, tokens = ArraySpec((), "int64"), spec.completion
    return RowSpec(
        obs={},
        state={},
        action={"token": ArraySpec((tokens,), "int64")},
        behaviour={
            "logp": ArraySpec((tokens,), "float32"),
            "version": ArraySpec((tokens,), "int64"),
            "chosen": ArraySpec((tokens,), "bool"),
            "length": number,
            "stop": number,
        }
        | ({"part": ArraySpec((tokens,), "int64")} if spec.parts else {}),
        context={
            "stream": number,
            "start": number,
            "task": number,
            "group": number,
            "refills": number,
            "prompt_length": number,
            "prompt": ArraySpec((spec.prompt,), "int64"),
        }
        | ({"retokenized": number} if spec.turns else {})
        | ({"given_back": number, "kv_load": ArraySpec((), "float32")} if kv else {})
        | (
            {
                "dropped": ArraySpec((dropped,), "int64"),
                "dropped_reward": ArraySpec((dropped,), "float32"),
            }
            if dropped
            else {}
        ),
    )
