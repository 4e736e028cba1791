"""Calls of agents as a source: a chat endpoint, whose conversations a run learns from."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from equipoise import foreign
from equipoise.access import is_address, need_token, read_token
from equipoise.actors.calls.records import Conversation
from equipoise.actors.calls.worker import CallWorker
from equipoise.actors.engine.call_engine import CallEngine
from equipoise.envs.failures.capsule import Failures
from equipoise.experience.recorded.dataset import Dataset
from equipoise.hints import install
from equipoise.language import adapters, tasks
from equipoise.language.scoring.functions import Samples, functions
from equipoise.language.scoring.pool import ProcessScorer
from equipoise.language.text_task import TextTask
from equipoise.language.tokenizers import CharTokenizer, HubTokenizer, fingerprint
from equipoise.listening import listen
from equipoise.nets.decoder import Decoder
from equipoise.seeds import derive_seed
from equipoise.sources.prompts import COMPLETION, Prompts, Text, model_of, room
from equipoise.sources.source import Exam
from equipoise.sources.text import Texts
from equipoise.types import PROXY, CallSource, Learns, Policy, Program, RunSpec, Stop, TextSpec
from equipoise.types.packed import Prompt

TOKEN = "EQUIPOISE_PROXY_TOKEN"
TURNS = 64  # answers of a conversation, if no setting gives the number
ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]:|([\w.-]+):)?(\d{1,5})")
NEEDED = ("starlette", "uvicorn", "msgspec")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a run listens for calls."""

    host: str
    port: int

    @classmethod
    def of(cls, task: str) -> Address:
        """Read ``proxy:PORT`` or ``proxy:HOST:PORT``; ValueError for anything else."""
        found = ADDRESS.fullmatch(task.removeprefix(PROXY))
        if found is None or not 1 <= int(found[3]) <= 65_535:
            raise ValueError(
                f"source.task: must be proxy:PORT or proxy:HOST:PORT with a port from 1 to 65535, "
                f"got {task[:80]!r}; try proxy:8000"
            )
        return cls(found[1] or found[2] or "127.0.0.1", int(found[3]))

    def __str__(self) -> str:
        host = f"[{self.host}]" if is_address(self.host) and ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"


class Calls(Texts):
    """Calls to a chat endpoint, answered by the policy that learns from them."""

    settings: CallSource
    sampler = "caller"

    @property
    def address(self) -> Address:
        """Where the run listens."""
        return Address.of(self.settings.task)

    @property
    def template(self) -> Mapping[str, object]:
        """The arguments of the chat template."""
        given = self.settings.chat_template_kwargs
        return tasks.arguments(given, "chat_template_kwargs")

    def problems(self) -> list[str]:
        source, program, problems = self.settings, self.program, super().problems()
        try:
            Address.of(source.task)
        except ValueError as error:
            problems.append(str(error))
        place, wanted = program.placement, program.evaluation
        for name, most, got in (
            ("actors", 1, place.actors),
            ("learners", 1, place.learners),
        ):
            if got != most:
                problems.append(
                    f"placement.{name}: must be {most} with {source.task}, since one worker has "
                    f"all open conversations, got {got}"
                )
        if source.engine != "torch":
            problems.append(
                f"source.engine: must be torch with {source.task}, whose calls it answers, got "
                f"{source.engine}"
            )
        if place.text != "apart" or "text" in place.auto:
            problems.append(
                f"placement.text: must be apart with {source.task}, whose calls come while the "
                f"learner learns, got {'auto' if 'text' in place.auto else place.text}"
            )
        if source.curriculum != "none":
            problems.append(
                f"source.curriculum: must be none with {source.task}, since callers decide what is "
                f"asked, got {source.curriculum}"
            )
        if source.scorers:
            problems.append(
                f"source.scorers: must be 0 with {source.task}, whose worker has a process for "
                f"the reward, got {source.scorers}"
            )
        if source.history != "append":
            problems.append(
                f"source.history: must be append with {source.task}, since calls come with "
                f"their whole history, got {source.history}"
            )
        if source.stop:
            problems.append(
                f"source.stop: must be left out with {source.task}, since calls name their own "
                f"(stop), got {', '.join(source.stop)}"
            )
        if wanted.every is not None or wanted.stop_at is not None:
            problems.append(
                f"evaluation: must be left out with {source.task}, which has no held-out prompts; "
                "the reward of the newest conversations is return_mean"
            )
        return problems

    def policy_problems(self, policy: Policy) -> list[str]:
        problems, algorithm = super().policy_problems(policy), policy.algorithm
        name = type(algorithm).__name__
        if not algorithm.reads_rewards or algorithm.needs_pairs:
            problems.append(
                f"algorithm: must learn from rewards with {self.settings.task}, got {name}; "
                "try grpo"
            )
        if refills := getattr(algorithm, "refills", 0):
            problems.append(
                f"algorithm.refills: must be 0 with {self.settings.task}, since callers decide "
                f"what is asked, got {refills}"
            )
        return problems

    def evaluable(self) -> tuple[Program, list[str]]:
        """Return the program without evaluations: there are no prompts of its own."""
        wanted = self.program.evaluation
        return replace(self.program, evaluation=replace(wanted, episodes=0)), []

    def text(self) -> Text:
        """Read the model and its tokenizer; there are no prompts."""
        source = self.settings
        given = tasks.arguments(source.arguments)
        alphabet = str(given.pop("alphabet", ""))
        if given:
            raise ValueError(
                f"source.arguments: must be alphabet=LETTERS with {source.task}, got "
                f"{next(iter(given))!r}"
            )
        task = TextTask(
            name=source.task,
            train=(),
            held_out=(),
            tokenizer=CharTokenizer(alphabet) if alphabet else None,
        )
        if not alphabet and source.model == "tiny":
            raise ValueError(
                f"--model: must be a model with a tokenizer with {source.task}, got tiny; name a "
                "directory or a hub id, or the letters: --set source.arguments=alphabet=abc"
            )
        model, tokenizer = model_of(source, task)
        completion = source.completion_tokens or COMPLETION
        most = min(source.prompt_tokens, room(model.config, completion))
        if most < 1:
            raise ValueError(
                "source.completion_tokens: must leave room for a prompt in the model's "
                f"{model.config.max_position_embeddings} positions, got {completion}"
            )
        spec = TextSpec(
            model=asdict(model.config),
            weights=str(model.directory or ""),
            lora=adapters.settings_of(source),
            adapter=source.adapter,
            eos=tuple(tokenizer.eos),
            prompt=most,
            completion=completion,
            turns=source.turns or TURNS,
            notes=tuple(model.notes),
            sha256=hashlib.sha256(fingerprint(tokenizer).encode()).hexdigest(),
            alphabet=alphabet,
            chat=isinstance(tokenizer, HubTokenizer) and tokenizer.has_template,
        )
        return Text(task, tokenizer, spec, model.config, Prompts([], []), Prompts([], []))

    def spec(self, dataset: Dataset | None) -> RunSpec:
        """Look at the model and the address, before the run's directory exists."""
        if missing := [one for one in NEEDED if importlib.util.find_spec(one) is None]:
            raise ModuleNotFoundError(
                f"{self.settings.task} needs {missing[0]}, which is not installed: "
                f"{install('serve')}"
            )
        self.token()
        listen(self.address.host, self.address.port).close()  # is it free?
        text = self.text()
        if self.settings.reward:
            functions(self.settings.reward, self.settings.reward_weights)
        return RunSpec(env=text.spec, policies=dict.fromkeys(self.program.policies, text.spec))

    def token(self) -> str | None:
        """Return the token of callers; ValueError if other machines could call without one."""
        token = read_token(TOKEN, None, "")
        need_token(
            self.address.host,
            token,
            self.settings.task,
            f"set {TOKEN}, or use proxy:{self.address.port}",
        )
        return token

    def exam(
        self,
        policies: Mapping[str, object],
        *,
        episodes: int,
        version: int = 0,
        again: bool = False,
        failures: Failures | None = None,
    ) -> Exam:
        """ValueError: there are no prompts to evaluate."""
        raise ValueError(
            f"evaluate: must have prompts, got a run of {self.settings.task}; 'equipoise generate' "
            "or 'equipoise serve' asks its model"
        )

    def play_command(self) -> str:
        return ""  # `generate` is its look, as of all texts

    def call_engine(self, text: Text, algorithm: Learns, net: Decoder) -> CallEngine:
        """Return the engine of calls."""
        device = self.program.placement.device
        engine = CallEngine(
            net.to(device),
            rows=self.settings.samples_at_once,
            length=text.spec.prompt + text.spec.completion,
            eos=text.spec.eos,
            # a process that takes another's place does not draw the same numbers again
            seed=derive_seed(self.program.schedule.seed, f"calls {secrets.token_hex(8)}"),
            temperature=foreign.attribute(algorithm, "temperature", 1.0),
            on_update=self.settings.on_update,
        )
        if device == "cpu":
            engine.make_room()
        return engine

    def call_grader(self, text: Text, capsules: str | None) -> CallGrader | None:
        """Return the grader of conversations by the run's functions; None without a function."""
        source = self.settings
        if not source.reward:
            return None
        scorer = ProcessScorer(
            functions(source.reward, source.reward_weights),
            deadline_s=source.reward_deadline_s,
            capsules=None if capsules is None else Path(capsules),
            caution=source.caution,
        )
        return CallGrader(scorer)

    def start_server(
        self, worker: CallWorker, text: Text, net: Decoder, note: Callable[[str], object]
    ) -> None:
        """Begin to listen for calls."""
        module, _, name = self.settings.server.partition(":")
        started: foreign.Foreign = getattr(importlib.import_module(module), name)
        worker.server = started(self, worker, text, net)
        note(f"calls are answered at {self.address}; waiting for agents")


class CallGrader:
    """Grades conversations one by one: a function gets the prompt, the messages after it, the
    tokens of the newest sample after its prompt, and the call's metadata as columns.
    """

    def __init__(self, scorer: ProcessScorer) -> None:
        self._scorer = scorer

    def submit(self, key: int, one: Conversation) -> None:
        row = one.rows[-1]
        first, messages = row.spans[0][0], row.marks[-1].messages
        texts = isinstance(one.prompt, str)
        said: object = "".join(str(each["content"]) for each in messages) if texts else messages
        self._scorer.submit(
            key,
            Samples(
                prompts=[cast(Prompt, one.prompt)],
                completions=[cast(Prompt, said)],
                completion_ids=[list(row.token[first:])],
                ended=[row.marks[-1].stop in (Stop.EOS, Stop.TEXT)],
                columns={name: [value] for name, value in one.columns.items()},
            ),
        )

    def poll(self) -> dict[int, float | str | None]:
        return {
            one.key: one.error if one.reward is None else one.reward[0]
            for one in self._scorer.poll()
        }

    def fds(self) -> tuple[int, ...]:
        return self._scorer.fds()

    def close(self) -> None:
        self._scorer.close()
