"""Models by name: directories, ids of the hub, shapes; and names of none."""

import pytest

import equipoise as eq
from equipoise.api.pinning import pinned_like, with_commit, with_whole_paths
from equipoise.language import files, models
from equipoise.nets.decoder import Decoder


def test_tiny_has_as_many_parameters_as_is_said():
    found = models.find("tiny", 32)
    assert found.directory is None and found.config.vocab_size == 32
    assert 0.085e6 < sum(p.numel() for p in Decoder(found.config).parameters()) < 0.1e6


def test_a_shape_from_scratch_says_what_the_rest_follows_from():
    config = models.find(
        "qwen2:hidden_size=128,num_hidden_layers=2,tie_word_embeddings=false,rope_theta=1e6", 100
    ).config
    assert (
        config.num_attention_heads,
        config.head_dim,
        config.num_key_value_heads,
        config.intermediate_size,
    ) == (
        2,
        64,
        2,
        352,
    )
    assert config.attention_bias and not config.tie_word_embeddings and config.rope_theta == 1e6


def test_a_directory_is_read(tmp_path):
    net = Decoder(models.find("tiny", 20).config)
    files.write(tmp_path, net.config, dict(net.named_parameters()))
    assert models.find(str(tmp_path), 20) == models.Model(net.config, tmp_path)
    with pytest.raises(
        ValueError, match="expected a vocab_size of at least the tokenizer's 21 tokens, got 20"
    ):
        models.find(str(tmp_path), 21)


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "tinny",
            r"expected a directory with config.json, a hub id .* got 'tinny'; did you mean 'tiny'",
        ),
        ("lama:hidden_size=48", r"expected a family before ':', got 'lama'; did you mean 'llama'"),
        (
            "llama:hidden=48",
            r"expected a field of the model, got 'hidden'; did you mean 'hidden_size'",
        ),
        (
            "llama:hidden_size=48",
            r"expected num_hidden_layers, got none; for example num_hidden_layers=3",
        ),
        ("llama:hidden_size=big", r"hidden_size: expected a whole number, got 'big'"),
        (
            "llama:hidden_size=48,num_hidden_layers=3,tie_word_embeddings=2",
            r"tie_word_embeddings: expected true or false, got '2'",
        ),
        (
            "llama:hidden_size=48,num_hidden_layers=3",
            r"must have vocab_size if it has no tokenizer",
        ),
        (
            "llama:hidden_size=48,num_hidden_layers=3,num_attention_heads=0,vocab_size=9",
            r"num_attention_heads: expected more than 0",
        ),
    ],
)
def test_what_is_wrong_with_a_name_is_said_in_a_line(name, said):
    with pytest.raises(ValueError, match=said):
        models.find(name)


def test_a_hub_id_without_network_is_said_in_a_line(monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError,
        match=r"--model some/model: expected a model of the hub .* without network, name a "
        r"directory",
    ):
        models.find("some/model")


def test_a_hub_id_without_the_extra_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(
        ValueError, match=r"expected huggingface_hub, got none; .*language|transformers"
    ):
        models.find("some/model")


def test_a_run_keeps_the_whole_path_of_a_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    relative = eq.program("sort", "grpo", model="models/mine")
    kept = with_commit(relative)
    assert kept.source.model == str(tmp_path / "models" / "mine")
    (tmp_path / "models" / "mine").rmdir()  # the name now looks like an id of the hub
    assert pinned_like(relative, kept) == kept
    with pytest.raises(ValueError, match="expected a directory with config.json"):
        models.find(kept.source.model)


def test_a_run_keeps_the_whole_paths_of_its_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("rows.jsonl", "held.jsonl"):
        (tmp_path / name).write_text('{"prompt": "a", "completion": "b"}\n')
    settings = [
        "source.arguments=held_out=held.jsonl",
        "source.adapter=mine/adapter",
        "source.engine_token_file=token",
    ]
    relative = eq.program("rows.jsonl", "grpo", settings=settings)
    kept = with_whole_paths(relative)
    assert kept.source.task == str(tmp_path / "rows.jsonl")
    assert kept.source.arguments == (f"held_out={tmp_path / 'held.jsonl'}",)
    assert kept.source.adapter == str(tmp_path / "mine" / "adapter")
    assert kept.source.engine_token_file == str(tmp_path / "token")
    assert kept.name == "rows.jsonl"  # in the name of the run's folder
    assert with_whole_paths(kept) == kept
    for one in tmp_path.glob("*.jsonl"):
        one.unlink()
    assert pinned_like(relative, kept) == kept  # the command again, in the same folder
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert pinned_like(relative, kept) != kept
    ours = eq.program("sort", "grpo")
    assert with_whole_paths(ours) == ours


COMMITS = ("a" * 40, "b" * 40)


def test_a_run_keeps_the_commit_of_a_model_of_the_hub(monkeypatch, tmp_path):
    asked = []

    def fetched(name):
        asked.append(name)
        return tmp_path / "snapshots" / COMMITS[0]

    monkeypatch.setattr(models, "from_hub", fetched)

    def named(model):
        return eq.program("sort", "grpo", model=model)

    def model_of(program):
        return program.source.model

    for name in ("some/model", "some/model@main"):
        assert model_of(with_commit(named(name))) == f"some/model@{COMMITS[0]}"
    kept = [f"some/model@{COMMITS[1]}", "tiny", str(tmp_path), "llama:hidden_size=8"]
    assert [model_of(with_commit(named(name))) for name in kept] == kept
    assert asked == ["some/model", "some/model@main"]
    was = named(f"some/model@{COMMITS[0]}")
    again = ["some/model", "some/model@main", f"some/model@{COMMITS[1]}", "some/modelling", "tiny"]
    found = [model_of(pinned_like(named(name), was)) for name in again]
    assert found == [model_of(was), model_of(was), *again[2:]]
