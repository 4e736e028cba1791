"""A run on text from without: asked and given away where its prompts, reward and model are gone,
and what its files say.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from equipoise import api, cli
from equipoise.algorithms.sft import SFT
from equipoise.language import files, models
from equipoise.language.task_files import read
from equipoise.language.tokenizers import HubTokenizer
from equipoise.nets.decoder import Decoder
from equipoise.sources.text import Texts
from tests.language.test_messages import CHAT
from tests.language.test_tokenizers import ASKED, SAID, TURNS, words

SHAPE = "llama:hidden_size=16,num_hidden_layers=1,num_attention_heads=2,max_position_embeddings=64"
REWARD = """
def ends(completions, **_):
    return [float(len(str(one)) % 3) for one in completions]
def some(completions, **_):
    return [None if i % 2 else float(i) for i, _ in enumerate(completions)]
def no(completions, prompts, **_):
    raise RuntimeError("judge \\udd28 down")
def none(completions, **_):
    return [None for _ in completions]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"rw_{tmp_path.name}.py").write_text(REWARD)
    return tmp_path


def rows(name: str, *made: Any) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in made))
    return name


def trained(task: str, **options: Any) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "algorithm": "grpo",
        "batch": 16,
        "steps": 32,
        "actors": 1,
        "max_lag": 0,
        "max_completion_length": 3,
        "on": "serial",
        "tensorboard": False,
        "evaluate_episodes": 0,
        "out": "run",
    }
    with api.start(task, **wanted | options) as run:
        for _ in run:
            pass
    assert run.summary is not None
    return run.summary


def rw(name: str) -> str:
    return f"rw_{Path.cwd().name}:{name}"


def invoked(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, list(args))
    return result.exit_code, result.output


def test_a_chat_model_is_asked_in_chat_and_given_away_without_its_files(here: Path) -> None:
    torch.manual_seed(1)
    model = words(here / "model", template=CHAT)
    config = models.from_scratch(SHAPE, 8)
    files.write(model, config, dict(Decoder(config).named_parameters()), eos=(0,))
    (model / "generation_config.json").write_text('{"eos_token_id": [0, 4], "top_p": 0.9}')
    ask = [{"role": "user", "content": "a b"}]
    task = rows(
        "chat.jsonl",
        *(
            {"prompt": [{"role": "user", "content": f"a {'b ' * i}"}], "answer": "b"}
            for i in range(12)
        ),
    )
    trained(
        task,
        model="model",
        reward=rw("some"),
        settings=["source.chat_template_kwargs=enable_thinking=true"],
    )
    shutil.rmtree("model")
    Path(task).unlink()
    Path(f"rw_{here.name}.py").unlink()
    os.chdir("/")
    run = here / "run"
    one, two, three = (
        api.generate(run, [prompt], greedy=True)[0] for prompt in ("a b", json.dumps(ask), ask)
    )
    assert (
        one.text == two.text == three.text
        and one.chat
        and (one.prompt, three.prompt) == ("a b", ask)
    )
    code, said = invoked("generate", str(run), "--prompt", "a b", "--greedy")
    assert (code, said.splitlines()[:2]) == (0, ["a b", one.text + ("" if one.ended else "...")]), (
        said
    )
    for same in (json.dumps(ask, indent=1), json.dumps(ask[0]), json.dumps({"messages": ask})):
        assert api.generate(run, [same], greedy=True)[0].text == one.text
    for prompt, wrong in (
        ('[{"role": "user"}]', "prompt, message 1: expected texts 'role' and 'content'"),
        ('[{"role"', "prompt, line 1: expected JSON"),
        ("half \ud83e", "prompt: expected whole characters"),
        ([{"role": "user", "content": "\ud83e"}], "prompt: expected whole characters"),
        ([], "prompt: expected a text or messages, got an empty one"),
    ):
        with pytest.raises(ValueError, match=wrong):
            api.generate(run, [prompt])
    with pytest.raises(ValueError, match="prompts: expected a list of prompts, got one text"):
        api.generate(run, "a b")
    exported = api.export(run, here / "exported").path
    assert json.loads((exported / "generation_config.json").read_text())["top_p"] == 0.9
    said_config = json.loads((exported / "config.json").read_text())
    assert (said_config["eos_token_id"], said_config["pad_token_id"]) == ([0, 4], 0)
    # it is the template with its flag
    assert HubTokenizer(exported).prompt(ask, {"enable_thinking": True})[-1] == 7
    # The same prompt in training was made by the same template: with the flag.
    assert (
        len(HubTokenizer(exported).prompt(ask))
        == len(HubTokenizer(exported).prompt(ask, {"enable_thinking": True})) - 1
    )


def test_imitation_needs_no_reward_and_tells_of_none(here: Path) -> None:
    task = rows(
        "sft.jsonl",
        *({"prompt": f"{a}+{b}=", "completion": f"{a + b}"} for a in range(5) for b in range(4)),
    )
    summary = trained(task, algorithm="sft", evaluate_episodes=100)
    assert (
        summary["return_mean"] is None
        and summary["episodes"] == 32
        and summary["evaluation"] is None
    )
    assert any(
        note.startswith("no evaluations: sft.jsonl has no reward") for note in summary["notes"]
    )
    from equipoise.console.terminal import summary_rows

    assert "return" not in summary_rows(summary)
    os.rename(task, "elsewhere.jsonl")
    assert (
        api.generate("run", ["1+2="])[0].prompt == "1+2="
        and not api.generate("run", ["1+2="])[0].chat
    )
    assert (api.export("run", "model").path / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a", "completion": " "}, "line 2: .*got white space alone"),
        ({"prompt": "a", "completion": ""}, "line 2: .*got none"),
    ],
)
def test_an_empty_answer_is_not_imitated(here: Path, row: dict[str, Any], said: str) -> None:
    task = rows("sft.jsonl", {"prompt": "1", "completion": "2"}, row)
    with pytest.raises(ValueError, match=said):
        trained(task, algorithm="sft")


def test_where_no_prompt_fits_the_way_out_is_said(here: Path) -> None:
    task = rows("a.jsonl", *({"prompt": "1" * (600 + i)} for i in range(20)))
    with pytest.raises(
        ValueError,
        match=r"at most 509 tokens, got none among 18; source.prompt_tokens, or .* 512 positions",
    ):
        trained(task, reward=rw("none"), steps=16)


def test_rows_that_are_left_out_are_said(here: Path) -> None:
    made = [{"prompt": f"{i}"} for i in range(20)]
    task = rows("a.jsonl", *made, *made, {"prompt": "1" * 600})
    summary = trained(task, reward=rw("none"), steps=16)
    said = "\n".join(summary["notes"])
    assert (
        "have more than 509 tokens and are left out, the first " in said
        and "/a.jsonl, line 41 of 600 tokens" in said
    )
    assert "a.jsonl: 41 rows ask 21 different prompts" in said
    assert (
        "no reward function gave any sample of a group a number" in said
        and summary["return_mean"] is None
    )


@pytest.mark.parametrize("on", ["serial", pytest.param("process", marks=pytest.mark.thorough)])
def test_a_reward_that_raises_ends_the_run_in_a_sentence_and_is_reproduced(
    here: Path, on: str
) -> None:
    task = rows("a.jsonl", *({"prompt": f"{i}"} for i in range(20)))
    name = rw("no")
    code, said = invoked(
        "train",
        task,
        "--algorithm",
        "grpo",
        "--model",
        "tiny",
        "--reward",
        name,
        "--batch",
        "16",
        "--steps",
        "64",
        "--actors",
        "1",
        "--max-completion-length",
        "3",
        "--on",
        on,
        "--evaluate-episodes",
        "0",
        "--out",
        "run",
        "--quiet",
    )
    assert code == 1 and "Traceback" not in said, said
    last = said.strip().splitlines()[-1]
    assert (
        f"equipoise train: reward '{name}' failed, as the 2 groups before did: RuntimeError: judge"
        in last
    )
    assert "line 7" in last
    for place in ("run", "run/capsules", str(next(Path("run/capsules").iterdir()))):
        code, said = invoked("reproduce", place)
        assert code == 1 and "\nreproduced: RuntimeError: judge" in said, said
    Path(f"rw_{here.name}.py").unlink()
    code, said = invoked("reproduce", "run", "--trust", name)
    assert code == 2 and "reward" in said and "Traceback" not in said
    assert invoked("reproduce", "run/logs")[0] == 2


def test_what_is_wrong_with_a_model_or_a_reward_is_known_before_the_run(here: Path) -> None:
    chat = rows(
        "chat.jsonl", *({"prompt": [{"role": "user", "content": f"{i}"}]} for i in range(5))
    )
    with pytest.raises(
        ValueError,
        match="--model tiny: expected a model with a tokenizer and a chat template, since",
    ):
        trained(chat, reward=rw("ends"))
    plain = rows("plain.jsonl", *({"prompt": f"{i}"} for i in range(20)))
    with pytest.raises(
        ValueError,
        match="batch: expected a multiple of algorithm.num_generations=8, .* got 20; the nearest",
    ):
        trained(plain, reward=rw("ends"), batch=20)
    Path("needy.py").write_text("def f(completions, label): return []")
    with pytest.raises(
        ValueError, match="reward 'needy:f': expected a column 'label' in the task, got none"
    ):
        trained(plain, reward="needy:f")
    half = rows("half.jsonl", *({"prompt": f"\ud83e {i}"} for i in range(20)))
    with pytest.raises(ValueError, match="half.jsonl, line 1: prompt: expected whole characters"):
        trained(half, reward=rw("ends"))
    assert not Path("run").exists()


def test_a_model_with_nan_is_refused_in_a_sentence(here: Path) -> None:
    task = rows("a.jsonl", *({"prompt": f"{i}"} for i in range(20)))
    trained(task, reward=rw("ends"), steps=16)
    model = api.export("run", "model").path
    config = files.read_config(model)
    files.write(
        model,
        config,
        {name: p * torch.nan for name, p in Decoder(config).named_parameters()},
        eos=(10,),
    )
    code, said = invoked(
        "train",
        task,
        "--algorithm",
        "grpo",
        "--model",
        "model",
        "--reward",
        rw("ends"),
        "--batch",
        "16",
        "--steps",
        "16",
        "--actors",
        "1",
        "--on",
        "serial",
        "--evaluate-episodes",
        "0",
        "--out",
        "other",
        "--quiet",
    )
    assert code == 2, said
    assert "model.safetensors: model.embed_tokens.weight: must be finite numbers, got nan" in said
    assert "Traceback" not in said


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("lag", "at_once", "rows"),
    [(0, 256, 16), (1, 256, 32), (3, 40, 40), (None, 256, 256), (0, 4, 8)],
)
def test_a_generator_has_room_for_what_can_be_open(
    lag: int | None, at_once: int, rows: int
) -> None:
    settings = [
        f"source.samples_at_once={at_once}",
        f"placement.max_lag={'none' if lag is None else lag}",
    ]
    program = api.program(
        "sort", algorithm="grpo", batch=16, actors=1, settings=settings, recipe=False
    )
    assert Texts(program).at_once() == rows


def test_a_divergence_alone_has_the_first_policy_for_its_reference(here: Path) -> None:
    assert trained("sort", settings=["algorithm.beta=0.1"])["updates"] == 2
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert any(line["metrics"].get("kl") is not None for line in lines)


def test_reading_is_of_a_file_that_windows_wrote(here: Path) -> None:
    Path("a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert [one.at for one in read(Path("a.jsonl"))] == ["a.jsonl, line 1", "a.jsonl, line 2"]


def test_a_spec_that_is_damaged_is_named(here: Path) -> None:
    trained("sort", steps=16)
    (step,) = Path("run/checkpoints").glob("step_*")
    whole = json.loads((step / "spec.json").read_text())
    for change, said in (
        ({"model": {"hidden": 5}}, "policies.policy.text.model: expected a model's fields"),
        ({"eos": "x"}, "policies.policy.text.eos: expected a list"),
        ({"alphabet": 5}, "policies.policy.text.alphabet: expected a text"),
    ):
        (name,) = whole["policies"]
        text = whole["policies"][name]["text"] | change
        damaged = whole | {"policies": {name: whole["policies"][name] | {"text": text}}}
        from equipoise.record import playable

        with pytest.raises(ValueError, match=said.replace("policies.policy", f"policies.{name}")):
            playable.text_spec(damaged, name, "spec.json")


def test_the_assistant_s_messages_of_a_conversation_are_imitated(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are read, and their gradient is 0."""
    model = words(here / "model", template=TURNS)
    config = models.from_scratch(SHAPE, 8)
    files.write(model, config, dict(Decoder(config).named_parameters()), eos=(0,))
    said = [[*ASKED, *SAID], [*ASKED, SAID[0]]] + [
        [{"role": "user", "content": f"a {'b ' * i}"}, *SAID] for i in range(10)
    ]
    task = rows("chat.jsonl", *({"messages": one} for one in said))
    options: dict[str, Any] = {"algorithm": "sft", "model": "model", "on": "serial"}
    seen, loss = list[tuple[list[int], list[bool]]](), SFT.loss

    def looked(self: SFT, net: Any, target: Any, batch: Any, **more: Any) -> Any:
        data = batch.data
        seen.extend(
            (data.token[data.sample == n].tolist(), data.chosen[data.sample == n].tolist())
            for n in range(len(data.prompt))
        )
        return loss(self, net, target, batch, **more)

    monkeypatch.setattr(SFT, "loss", looked)
    summary = trained(task, **options | {"max_completion_length": 10, "out": "sft"})
    assert summary["updates"] == 2
    end, user, assistant, a, b, c = HubTokenizer(model).encode("<end> <user> <model> a b c")
    one = [b, b, end], [True] * 3
    both = [*one[0], user, c, assistant, a, end], [*one[1], False, False, False, True, True]
    assert one in seen and both in seen and all(found in (one, both) for found in seen)
    empty = {
        "messages": [*ASKED, *SAID, {"role": "user", "content": "c"}, {**SAID[0], "content": ""}]
    }
    task = rows("empty.jsonl", *({"messages": one} for one in said), empty, empty | {"a": 1})
    wrong = r"empty.jsonl, line 1[34]: answer \d of \d of the assistant: must have a text or a call"
    with pytest.raises(ValueError, match=wrong):
        trained(task, **options | {"out": "empty", "max_completion_length": 20})
    task = "chat.jsonl"
    with pytest.raises(ValueError, match="chat.jsonl, line .*: expected a completion of at most 4"):
        trained(task, **options | {"max_completion_length": 4, "out": "short"})
