"""Files from elsewhere run no code: what they name is imported or called only where the user's own
run or word vouches.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise import trust
from equipoise.cli import app
from equipoise.envs.failures import capsule as capsules
from equipoise.envs.making import make
from equipoise.programs.program import from_json, to_json
from equipoise.record.directory import RunDirectory
from equipoise.types import EnvFactory
from tests.runtime.test_resume import program, train

EVIL = """
from pathlib import Path
Path("ran").write_text("by import")

def make(**arguments):
    Path("ran").write_text("by a call")
"""
MINE = """
import gymnasium
import torch

def make():
    return gymnasium.make("CartPole-v1")

class Torso(torch.nn.Module):
    size_out = 4

    def __init__(self, space):
        super().__init__()

    def forward(self, obs):
        return obs
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trust") / "run"
    train(program(), out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run from elsewhere, unpacked where the command is typed, with a module beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def env(target: str, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda p: p["source"].update(
        env={"target": target, "kwargs": kwargs, "action_mask": "auto"}
    )


def algorithm(**fields: Any) -> Callable[[Any], Any]:
    return lambda p: p["policies"]["main"].update(
        algorithm=p["policies"]["main"]["algorithm"] | fields
    )


def torso(name: str) -> Callable[[Any], Any]:
    return lambda p: p["policies"]["main"]["algorithm"]["fields"].update(torso=name)


ATTACKS: dict[str, Callable[[Any], Any]] = {
    "os:system": env("os:system", command="touch ran"),
    "subprocess:run": env("subprocess:run", args=["touch", "ran"]),
    "builtins:exec": env("builtins:exec", source="open('ran', 'w')"),
    "evil:make": env("evil:make"),
    "python:evil:make": env("python:evil:make"),
    "evil:Env-v0": env("evil:Env-v0"),
    "equipoise.envs.hints:modules": env("equipoise.envs.hints:modules", name="evil.x"),
    "equipoise:import_module": env("equipoise:import_module", name="evil"),
    "GymV26Environment-v0": env("GymV26Environment-v0", env_id="evil:Env-v0"),
    "algorithm evil:Algorithm": algorithm(name="evil:Algorithm"),
    "torso evil:Torso": torso("evil:Torso"),
    "reward term evil:Part": lambda p: (
        p["policies"]["main"].get("rewards", {}).update(sum="env+0.5*evil:Part")
    ),
}
COMMANDS: dict[str, Callable[[Path], Any]] = {
    "load": eq.load,
    "evaluate": eq.evaluate,
    "resume": lambda run: eq.start(resume=run, steps=4096),
    "collect": lambda run: eq.collect(run, "data", episodes=1),
}


def attack(run: Path, how: str) -> None:
    """Change what run.json names, and what the spec.json of every checkpoint does, with manifests
    that agree.
    """
    for file in run.rglob("*.json"):
        if file.name not in ("run.json", "spec.json"):
            continue
        data = json.loads(file.read_text())
        program = data["program"] if file.name == "run.json" else data | {"source": {}}
        ATTACKS[how](program)
        program.pop("source") if file.name == "spec.json" else None
        changed = json.dumps(data if file.name == "run.json" else program).encode()
        file.write_bytes(changed)
        if (place := file.parent / "manifest.json").is_file():
            manifest = json.loads(place.read_text())
            manifest["files"]["spec.json"] = {
                "sha256": hashlib.sha256(changed).hexdigest(),
                "size": len(changed),
            }
            place.write_text(json.dumps(manifest))


@pytest.mark.parametrize("how", ATTACKS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_from_elsewhere_runs_no_code(command: str, how: str, run: Path) -> None:
    attack(run, how)
    name, what = (
        how.rpartition(" ")[2].removeprefix("python:"),
        how.rpartition(" ")[0] if " " in how else "env",
    )
    if command == "load" and what in ("env", "reward term"):  # which needs none
        eq.load(run)
    else:
        with pytest.raises(trust.Untrusted) as caught:
            COMMANDS[command](run)
        said = str(caught.value)
        assert f".json: {what} {name!r} would " in said and f"--trust {name}" in said, said
        assert not name.startswith("evil") or f"from {Path('evil.py').resolve()}" in said
    assert not Path("ran").exists() and "evil" not in sys.modules


@pytest.mark.parametrize(
    "how", ["os:system", "evil:make", "algorithm evil:Algorithm", "torso evil:Torso"]
)
def test_weights_alone_ask_for_no_code(how: str, run: Path) -> None:
    attack(run, how)
    assert train(program(), Path("second"), init_from=run)["status"] == "completed"
    assert not Path("ran").exists() and "evil" not in sys.modules


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "run"],
        ["resume", "run"],
        ["collect", "run", "--dataset", "d"],
        ["reproduce", "c"],
    ],
)
def test_every_command_that_opens_a_file_refuses_in_a_line(
    words: list[str], run: Path, capsys: Any
) -> None:
    attack(run, "os:system")
    shutil.copytree(capsule(), "c")
    with pytest.raises(SystemExit) as end:
        app(words, prog_name="equipoise")
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and "--trust os:system" in said, said
    assert not Path("ran").exists()


def capsule() -> Path:
    """One that names os:system, as an attacker writes it: signed by nobody."""
    said = capsules.Capsule(
        env=EnvFactory(target="os:system", kwargs={"command": "touch ran"}),
        streams=(0,),
        stream=0,
        seed=0,
        start=capsules.Start(kind="birth"),
        kind="exception",
        error="ValueError",
        message="",
        key=None,
        step=0,
        wrappers="",
        traceback="",
        versions={},
        actions=np.zeros(0),
        observations={},
        state={},
    )
    place = capsules.write(Path("capsules"), said, ValueError())
    assert place is not None
    data = json.loads((place / "capsule.json").read_text())
    (place / "capsule.json").write_text(json.dumps(data | {"signature": "0" * 64}))
    return place


def test_a_capsule_runs_where_the_user_vouches(run: Path) -> None:
    place = capsule()
    with pytest.raises(
        trust.Untrusted, match=r"capsule.json: env 'os:system' would be imported from"
    ):
        capsules.read(place)
    assert capsules.read(place, ["os:system"]).env.target == "os:system"
    assert capsules.read(place, ["os"]).env.target == "os:system"
    for other in ("os:popen", "o", "os:", "system", ""):
        with pytest.raises(trust.Untrusted):
            capsules.read(place, [other])


@pytest.mark.thorough
def test_ones_own_runs_and_capsules_need_no_word(run: Path) -> None:
    made = program(env="mine:make", settings=["algorithm.torso=mine:Torso"])
    train(made, Path("own"))
    assert eq.evaluate("own", episodes=1).episodes == 1
    done = [sys.executable, "-c", "import equipoise as eq, sys; eq.load(sys.argv[1])", "own"]
    # another process of the same user
    assert subprocess.run(done, check=False, timeout=120).returncode == 0
    shutil.copytree("own", "copy")
    eq.load("copy")  # the run may move, its modules may not
    for change in (env("mine:make", size=9), torso("evil:Torso"), env("evil:make")):
        data = json.loads(Path("own/run.json").read_text())
        change(data["program"])
        Path("copy/run.json").write_text(json.dumps(data))
        with pytest.raises(trust.Untrusted):
            eq.evaluate("copy", episodes=1)
    eq.start(resume="own", steps=4096).close()
    assert train(made, Path("third"), init_from="own")["status"] == "completed"


def test_a_module_of_the_same_name_elsewhere_is_another_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(program(env="mine:make"), Path("own"))
    elsewhere = Path("elsewhere").resolve()
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text(EVIL)
    shutil.move("own", elsewhere / "own")
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend(str(elsewhere))
    monkeypatch.delitem(sys.modules, "mine")
    with pytest.raises(
        trust.Untrusted, match=rf"'mine:make' would be imported from {elsewhere / 'mine.py'}"
    ):
        eq.evaluate("own", episodes=1)
    assert not Path("ran").exists()


@pytest.mark.parametrize("home", ["none", "file", "open"])
def test_without_a_key_a_run_works_and_later_asks(
    home: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    key = Path("state/equipoise/key")
    if home == "none":
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    else:
        monkeypatch.setenv("XDG_STATE_HOME", str(Path("state").resolve()))
        Path("state").write_text("a file") if home == "file" else key.parent.mkdir(parents=True)
    if home == "open":
        key.write_bytes(bytes(32))
        key.chmod(0o644)
        with pytest.warns(RuntimeWarning, match="that only you can read"):
            assert trust.sign([], None) is None
        key.unlink()
        return
    train(program(env="mine:make"), Path("own"))
    assert json.loads(Path("own/run.json").read_text())["signature"] is None
    with pytest.raises(trust.Untrusted, match="--trust mine:make"):
        eq.evaluate("own", episodes=1)
    assert eq.evaluate("own", episodes=1, trust=["mine"]).episodes == 1


def test_a_key_is_made_once_and_for_this_user_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("state").resolve()))
    train(program(), Path("plain"))
    assert not Path("state").exists()  # an ordinary run names no code, so it needs no key
    first = trust.sign([], {"a": 1}, make=True)
    key = Path("state/equipoise/key")
    assert (
        key.stat().st_mode & 0o777 == 0o600
        and key.stat().st_size == 32
        and os.listdir(key.parent) == ["key"]
    )
    assert first is not None and trust.sign([], {"a": 1}, make=True) == first != trust.sign(
        [], {"a": 2}
    )


@pytest.mark.parametrize(
    "target", ["equipoise.envs:Catch", "equipoise/Catch-v0", "python:CartPole-v1", "CartPole-v1"]
)
def test_what_is_ours_or_an_id_needs_no_word(target: str, run: Path) -> None:
    make(EnvFactory(target=target), streams=np.arange(1), seed=0).close()
    assert trust.of_env({"target": target, "kwargs": {}})[0] == []
    attack_program = RunDirectory.open(run).run["program"]
    assert trust.of_program(attack_program)[0] == []


def test_a_module_that_is_not_there_is_said_with_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "renamed_env.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    program = {"source": {"env": {"target": "rename_env:O", "kwargs": {}}}, "policies": {}}
    with pytest.raises(trust.Untrusted) as refused:
        trust.check(*trust.of_program(program), None, (), "run.json")
    said = str(refused.value)
    assert (
        "module 'rename_env' of env 'rename_env:O' is not there; did you mean 'renamed_env'?"
        in said
        and "?." not in said
    )
    assert "Modules are looked for in " in said
    option = said.partition("--trust ")[2].split()[0]
    assert option == "rename_env=renamed_env"
    there = trust.renamed(program, [option])
    assert there["source"]["env"]["target"] == "renamed_env:O"
    trust.check(*trust.of_program(there), None, [option], "run.json")
    with pytest.raises(trust.Untrusted):
        trust.check(*trust.of_program(program), None, [option], "run.json")


def test_no_module_of_python_itself_is_meant() -> None:
    program = {"source": {"env": {"target": "lsprof:O", "kwargs": {}}}, "policies": {}}
    with pytest.raises(trust.Untrusted, match="is not there. Modules .* --trust lsprof=NEW "):
        trust.check(*trust.of_program(program), None, (), "run.json")


@pytest.mark.parametrize("signature", ["é" * 32, "\ud800", "", None, 3, "0" * 64])
def test_a_signature_that_is_none_is_none(
    signature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    names, signed = trust.of_env({"target": "mine:make", "kwargs": {}})
    trust.check(names, signed, trust.sign(names, signed, make=True), (), "run.json")
    with pytest.raises(trust.Untrusted):
        trust.check(names, signed, signature, (), "run.json")


def test_a_resume_keeps_the_new_name_of_a_module(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("first_env.py").write_text(MINE)
    train(program(env="first_env:make", steps=64), Path("own"))
    Path("first_env.py").rename("second_env.py")
    sys.modules.pop("first_env")
    with pytest.raises(trust.Untrusted, match="--trust first_env="):
        eq.start(resume="own", steps=128)
    assert eq.evaluate("own", episodes=1, trust=["first_env=second_env"]).episodes == 1
    assert (
        json.loads(Path("own/run.json").read_text())["program"]["source"]["env"]["target"]
        == "first_env:make"
    )
    list(eq.start(resume="own", steps=128, trust=["first_env=second_env"]))
    assert (
        json.loads(Path("own/run.json").read_text())["program"]["source"]["env"]["target"]
        == "second_env:make"
    )
    list(eq.start(resume="own", steps=192))  # without a word: the run is this user's
    assert eq.evaluate("own", episodes=1).step == 192


@pytest.mark.parametrize("option", ["data=x.jsonl", "a b=c", "=x", "x=", "other=new"])
def test_what_renames_nothing_renames_nothing(option: str) -> None:
    program = {
        "source": {"env": {"target": "python:old:O", "kwargs": {"x": "old"}}},
        "policies": {"main": ["older:X"]},
    }
    assert trust.renamed(program, [option]) == program


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", [7, {"a": 1}, "", "x" * 3000, "os:system\n", "os:system; x"])
def test_a_kind_of_source_that_is_no_class_name_is_refused_and_not_imported(kind: Any) -> None:
    data = to_json(eq.program("CartPole-v1", "ppo", steps=2048))
    data["source"]["kind"] = kind
    with pytest.raises(ValueError, match="source.kind: expected the module:Class") as refused:
        from_json(data)
    assert len(str(refused.value)) < 200


def test_code_of_python_c_and_of_notebooks_is_named_without_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    named = {"source": {"env": {"target": "__main__:Env"}}, "policies": {}}
    assert trust.of_program(named)[0] and trust.signature(named)


def test_the_cluster_of_a_run_from_elsewhere_is_connected_to_after_trust_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run / "run.json"
    data, asked = json.loads(file.read_text()), list[object]()

    def connected(on: str, cluster: dict[str, object]) -> None:
        asked.append(cluster.get("address"))
        raise ConnectionError("it would be connected to")

    monkeypatch.setattr("equipoise.api.training.connected", connected)

    def resume(settings: dict[str, object], **options: Any) -> None:
        file.write_text(json.dumps({**data, "on": "ray", **settings}))
        eq.start(resume=run, steps=8192, **options).close()

    there: dict[str, object] = {"address": "there:6379"}
    proof = trust.sign(trust.of_cluster(there), there, make=True)
    signed: dict[str, object] = {"cluster": there, "cluster_signature": proof}
    moved = signed | {"cluster": {"address": "else:6379"}}
    bare: dict[str, object] = {"cluster": there}
    for settings in (bare, moved, signed | {"cluster_signature": "0" * 64}):
        with pytest.raises(trust.Untrusted, match="6379' would be connected to"):
            resume(settings)
    assert asked == []
    allowed: list[tuple[dict[str, object], dict[str, Any]]] = [
        (bare, {"trust": ["there:6379"]}),
        (bare, {"cluster": {"address": "mine:1"}}),
        (signed, {}),
        ({"cluster": {"address": "auto"}}, {}),
        ({}, {}),
    ]
    for settings, options in allowed:
        with pytest.raises(ConnectionError):
            resume(settings, **options)
    assert asked == ["there:6379", "mine:1", "there:6379", "auto", None]


@pytest.mark.parametrize("name", ["a\n\x1b[31mb:c", "x" * 100_000, "e\u202evil:make", "\ud800:a"])
@pytest.mark.parametrize("what", ["env", "address", "reward setting", "model"])
def test_a_name_that_no_terminal_shows_whole_is_refused_in_a_short_line(
    name: str, what: str
) -> None:
    with pytest.raises(trust.Untrusted, match="must be a name of at most") as caught:
        trust.check([("env", "mine:make"), (what, name)], None, None, (), "run.json")
    said = str(caught.value)
    assert len(said) < 300 and said.isprintable()
