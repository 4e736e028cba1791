"""What every engine promises: a sample is whole, stamped, the same again, and drawn by the weights
that it was given. Ours, ours below conversations, the simulated one, and ours behind a server that
speaks vLLM's interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch

from equipoise.actors.engine.conversing import Bounds, ConversationSettings, Conversing
from equipoise.actors.engine.engine import Continuation, Continuing, Engine, OnUpdate, Sampled
from equipoise.actors.engine.server_engine import Drawing, ServerEngine
from equipoise.actors.engine.sim_engine import Latency, SimEngine
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.language.tokenizers import CharTokenizer
from equipoise.nets.decoder import Decoder
from equipoise.nets.packing import packed_texts
from equipoise.nets.token_logp import token_logp
from equipoise.types import Example
from equipoise.types.packed import Stop
from tests.actors.decoders import small_decoder
from tests.actors.vllm_process import VERSIONS, Process, served

WORDS, LENGTH, EOS, SEED = 12, 48, 3, 21
Params = dict[str, torch.Tensor]
Samples = dict[tuple[int, int], Sampled]
Make = Callable[..., Engine]
DRAWING = ("ours", "server", "server of 0.32")  # engines that draw from weights
NAMES = (*DRAWING, "conversing", "sim")


class OneTurn:
    """A partner that ends each conversation."""

    def reset(self, row: Mapping[str, object]) -> str:
        return ""

    def step(self, text: str) -> tuple[None, float]:
        return None, 1.0


@pytest.fixture(scope="module")
def net() -> Decoder:
    torch.set_num_threads(1)
    return small_decoder(words=WORDS, length=LENGTH)


@pytest.fixture(scope="module")
def processes(
    net: Decoder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Process]]:
    place = tmp_path_factory.mktemp("servers")
    both = ("--length", str(LENGTH), "--rows", "16", "--vllm")
    with (
        served(place, net.config, (EOS,), *both, "0.33.0") as new,
        served(place, net.config, (EOS,), *both, "0.32.0") as old,
    ):
        yield {"server": new[0], "server of 0.32": old[0]}


@pytest.fixture
def make(net: Decoder, processes: dict[str, Process]) -> Iterator[Make]:
    """Return a function that makes an engine of a name, which holds version 0: ``net``."""
    made = list[Engine]()

    def ours(name: str, *, on_update: OnUpdate = "finish", temperature: float = 1.0) -> Engine:
        own = small_decoder(words=WORDS, length=LENGTH)
        engine: Continuing
        if name == "sim":
            model = Latency(median=8, step_s=0.0, sample_s=0.0)
            engine = SimEngine(model, rows=16, vocabulary=WORDS, eos=EOS, seed=SEED)
        elif name in processes:
            how = Drawing(
                seed=SEED,
                eos=[EOS],
                length=LENGTH,
                on_update=on_update,
                temperature=temperature,
                versions=VERSIONS,
            )
            engine = ServerEngine([processes[name].server()], own, how)
        else:
            engine = TorchEngine(
                own,
                rows=16,
                length=LENGTH,
                ends=Ends([EOS]),
                seed=SEED,
                on_update=on_update,
                temperature=temperature,
            )
        one: Engine = engine
        if name == "conversing":
            settings = ConversationSettings(
                make=OneTurn,
                tokenizer=CharTokenizer("abcdefghi"),
                template={},
                bounds=Bounds(turns=1, turn_tokens=LENGTH, answer_bytes=100, step_s=5),
                row=lambda group: Example(prompt="a", columns={}),
                quick=True,
            )
            one = Conversing(engine, settings)
        made.append(one)
        update(one, 0, dict(net.named_parameters()))
        return one

    yield ours
    for one in made:
        one.close()


def update(engine: Engine, version: int, params: Params) -> None:
    for _ in engine.take(version, params, lambda: True):
        pass


def moved(net: Decoder, seed: int, far: float = 0.1) -> Params:
    draw = torch.Generator().manual_seed(seed)
    return {
        name: x.detach() + far * torch.randn(x.shape, generator=draw)
        for name, x in net.named_parameters()
    }


def prompt(group: int) -> list[int]:
    return [4 + group % 5, 4 + group % 3, 5][: 1 + group % 3]


def drawn(engine: Engine, groups: range, samples: int = 4, limit: int = 20) -> Samples:
    for group in groups:
        engine.submit(group, prompt(group), samples, limit=limit)
    return collected(engine)


def collected(engine: Engine) -> Samples:
    found: Samples = {}
    while engine.live or engine.waiting:
        found |= {(one.group, one.index): one for one in engine.step()}
    return found


def wrong_logps(
    net: Decoder, params: Mapping[str, torch.Tensor], samples: Samples, temperature: float = 1.0
) -> float:
    """The largest difference of a log-probability from that of a forward under ``params``."""
    own = small_decoder(words=WORDS, length=LENGTH)
    worst = 0.0
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            parameter.copy_(params[name])
        for one in samples.values():
            data = packed_texts([(prompt(one.group), [one.token.tolist()])])
            logp, _ = token_logp(own, data, temperature=temperature, entropy=False)
            worst = max(worst, float(np.abs(logp[data.chosen].numpy() - one.logp).max()))
    return worst


def same(one: Samples, other: Samples) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[key].token, other[key].token)
        and np.allclose(one[key].logp, other[key].logp, atol=1e-5)
        and one[key].stop == other[key].stop
        for key in one
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_sample_comes_once_whole_and_stamped(make: Make, name: str) -> None:
    engine = make(name)
    assert (engine.version, engine.live, engine.waiting, engine.away) == (0, 0, 0, 0)
    found = drawn(engine, range(6))
    assert set(found) == {(group, index) for group in range(6) for index in range(4)}
    for one in found.values():
        assert len(one.token) == len(one.logp) == len(one.version) <= 20
        assert (one.version == 0).all() and (one.logp <= 0).all()
        assert EOS not in one.token[:-1]
        assert (one.stop == Stop.LENGTH) == (one.token[-1] != EOS) or name == "conversing"
    assert (engine.live, engine.waiting) == (0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_samples_come_again_in_any_company(make: Make, name: str) -> None:
    found = drawn(make(name), range(8))
    again = drawn(make(name), range(5, 8))
    assert same({key: one for key, one in found.items() if key[0] >= 5}, again)
    assert len({tuple(one.token.tolist()) for one in found.values()}) > 8


@pytest.mark.parametrize("name", DRAWING)
def test_log_probabilities_are_those_of_the_newest_weights(
    make: Make, net: Decoder, name: str
) -> None:
    engine = make(name, temperature=0.7)
    assert wrong_logps(net, dict(net.named_parameters()), drawn(engine, range(4)), 0.7) < 1e-5
    found: Samples = {}
    for version in (1, 2):
        params = moved(net, version)
        update(engine, version, params)
        assert engine.version == version
        found = drawn(engine, range(4 * version, 4 * version + 4))
        assert wrong_logps(net, params, found, 0.7) < 1e-5
        assert all((one.version == version).all() for one in found.values())
    assert wrong_logps(net, dict(net.named_parameters()), found, 0.7) > 0.01


@pytest.mark.parametrize("name", DRAWING)
def test_weights_that_are_not_whole_are_not_taken(make: Make, net: Decoder, name: str) -> None:
    engine = make(name)
    engine.submit(0, prompt(0), 4, limit=20)
    for _ in engine.take(5, moved(net, 5), lambda: False):
        pass
    found = collected(engine)
    assert engine.version == 0 and len(found) == 4
    assert wrong_logps(net, dict(net.named_parameters()), found) < 1e-5


@pytest.mark.parametrize("name", [*DRAWING, "sim"])
def test_a_sample_that_continues_is_drawn_from_its_text(
    make: Make, net: Decoder, name: str
) -> None:
    engine = make(name)
    assert isinstance(engine, ServerEngine | TorchEngine | SimEngine)
    whole = {key: one for key, one in drawn(engine, range(3)).items() if len(one.token) > 8}
    assert whole
    for (group, index), one in whole.items():
        text = [*prompt(group), *one.token[:5].tolist()]
        engine.go_on(Continuation(group, index, text, len(prompt(group)), 15))
    found = collected(engine)
    assert found.keys() == whole.keys()
    for key, rest in found.items():
        if name != "sim":  # it draws as if it had never ended
            assert rest.token.tolist() == whole[key].token[5:].tolist()
            np.testing.assert_allclose(rest.logp, whole[key].logp[5:], atol=1e-5)


@pytest.mark.parametrize("on_update", ["keep", "recompute", "finish"])
@pytest.mark.parametrize("name", ["ours", "server"])
def test_tokens_have_the_version_that_drew_them(
    make: Make, net: Decoder, name: str, on_update: OnUpdate
) -> None:
    """Weights that come while samples are drawn; with ``finish`` each has one version."""
    engine, found, versions = make(name, on_update=on_update), Samples(), {0: moved(net, 0, 0.0)}
    for group in range(8):
        engine.submit(group, prompt(group), 4, limit=40)
    for version in (1, 2, 3):
        versions[version] = moved(net, version)
        for _ in engine.take(version, versions[version], lambda: True):
            found |= {(one.group, one.index): one for one in engine.step()}
        found |= {(one.group, one.index): one for one in engine.step()}
    found |= collected(engine)
    assert len(found) == 32 and engine.version == 3
    stamps = [one.version for one in found.values()]
    assert all((np.diff(one) >= 0).all() for one in stamps)
    if on_update == "finish":
        assert all(len(set(one.tolist())) == 1 for one in stamps)
    for version, params in versions.items():
        begun = {key: one for key, one in found.items() if (one.version == version).all()}
        assert wrong_logps(net, params, begun) < 1e-5
