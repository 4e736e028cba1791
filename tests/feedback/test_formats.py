"""Files of preferences: what was imported is exported again, and a wrong line stops all of it."""

from __future__ import annotations

import json
import math

import pytest

from equipoise.feedback import Store
from equipoise.feedback.database import FILE
from equipoise.feedback.formats import export_file, import_file
from tests.feedback.made import clips

ASK = [{"role": "user", "content": "What is 2 + 2?"}]
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("4", "5"))
TEXTS = {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}
DEVELOPER = [{"role": "developer", "content": "Be short."}, *ASK]
CHATS = {"prompt": ASK, "chosen": [GOOD], "rejected": [BAD]}
WHOLE = {"chosen": [*ASK, GOOD], "rejected": [*ASK, BAD]}
BY = {"annotator": "ann", "time": "2026-01-31T12:00:00.123456+00:00", "latency_s": 3.25}


def written(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "store") as opened:
        yield opened


@pytest.mark.few(9)
@pytest.mark.parametrize("format_", ["trl", "openrlhf"])
@pytest.mark.parametrize(
    ("given", "trl"),
    [
        (TEXTS, TEXTS),
        ({"chosen": "a b", "rejected": "a c"}, {"chosen": "a b", "rejected": "a c"}),
        (CHATS, CHATS),
        (WHOLE, CHATS),
        ({"prompt": "What is 2 + 2?", **WHOLE}, CHATS),
        ({"prompt": ASK, **WHOLE, "score_chosen": 9}, CHATS),
    ],
    ids=["texts", "no prompt", "chats", "whole chats", "prompt and chats", "prompt twice"],
)
def test_a_pair_comes_out_once_with_annotator_and_time(store, tmp_path, given, trl, format_):
    assert import_file(store, written(tmp_path / "in.jsonl", [given | BY])) == (1, 1)
    assert export_file(store, tmp_path / "out.jsonl", format_) == (1, 0)
    chats = format_ == "openrlhf" and trl is CHATS
    assert lines(tmp_path / "out.jsonl") == [(WHOLE if chats else trl) | BY]
    assert import_file(store, tmp_path / "out.jsonl") == (0, 0), "what is there is not added again"
    with Store.create(tmp_path / "other") as other:
        import_file(other, tmp_path / "out.jsonl")
        export_file(other, tmp_path / "again.jsonl", format_)
    assert lines(tmp_path / "again.jsonl") == lines(tmp_path / "out.jsonl")


def test_sides_of_imported_pairs_do_not_give_the_answer_away(store, tmp_path):
    pairs = [{"chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(60)]
    import_file(store, written(tmp_path / "in.jsonl", pairs))
    left = [one.choice for one in store.answers()].count("left")
    assert 15 <= left <= 45
    turned = {"chosen": "bad 3", "rejected": "good 3", "annotator": "ben"}
    assert import_file(store, written(tmp_path / "turned.jsonl", [turned])) == (0, 1)
    export_file(store, tmp_path / "out.jsonl", "trl")
    found = sorted(one["chosen"] for one in lines(tmp_path / "out.jsonl"))
    assert found == sorted([*(one["chosen"] for one in pairs), "bad 3"])


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"chosen": "a"}, "line 2: must have the key rejected, got {'chosen': 'a'}"),
        ({"chosen": "a", "rejected": "a"}, "rejected must differ from chosen, got 'a' for both"),
        ({"chosen": "a", "rejected": " "}, "line 2: rejected: must be a text"),
        ({"chosen": "a", "rejected": 3}, "line 2: rejected: must be a text or a list of messages"),
        ({"chosen": "a", "rejected": [BAD]}, "must both be texts, or both messages"),
        ({"prompt": "", "chosen": "a", "rejected": "b"}, "line 2: prompt: must be a text"),
        ({"prompt": ASK, "chosen": "a", "rejected": "b"}, "prompt must be a text as chosen is"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "must have a prompt"),
        (
            {"chosen": [*ASK, GOOD], "rejected": [{"role": "user", "content": "3 + 3?"}, BAD]},
            "must answer one prompt, got the messages 'What is 2 . 2.' and '3 . 3.'",
        ),
        (
            {"prompt": [{"role": "user", "content": "3 + 3?"}], **WHOLE},
            "chosen must begin with prompt",
        ),
        ({"prompt": "3 + 3?", **WHOLE}, "chosen must be messages that hold prompt, got '3 . 3.'"),
        ({"chosen": ASK, "rejected": [*ASK, BAD]}, "must answer one prompt"),
        ({**CHATS, "chosen": [{"role": "assistant", "content": ["4"]}]}, "chosen.0.: must be a"),
        (TEXTS | {"annotator": 3}, "line 2: annotator: must be a name, got 3"),
        (TEXTS | {"annotator": "a\nb"}, "line 2: annotator: must be a name"),
        (TEXTS | {"time": "yesterday"}, "line 2: time: must be a time such as"),
        (TEXTS | {"latency_s": -1}, "line 2: latency_s: must be 0 to 604,800 seconds, got -1"),
        (TEXTS | {"chosen": "\ud800"}, "chosen: must be text in UTF-8"),
        ("text", "line 2: must be a JSON object, got 'text'"),
        (TEXTS | {"chosen": "x" * (9 << 20)}, "line 2: must have at most 8,388,608 bytes"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_imported(store, tmp_path, line, words):
    path = written(tmp_path / "in.jsonl", [TEXTS, line])
    with pytest.raises(ValueError, match=words) as error:
        import_file(store, path)
    assert str(error.value).startswith(f"{path}, line 2") and len(str(error.value)) < 400
    assert store.queries() == [] and store.answers() == []
    with store._db.reading() as db:
        assert db.execute("SELECT count(*) FROM texts").fetchone() == (0,)


def test_a_file_that_is_no_json_or_empty_is_refused(store, tmp_path):
    path = tmp_path / "in.jsonl"
    for data, words in ((b'{"chosen": "a"\n', "line 1: expected JSON"), (b"\n \n", "at least one")):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=words):
            import_file(store, path)
    path.write_bytes(json.dumps(TEXTS).encode() + b"\n\xff\n")
    with pytest.raises(ValueError, match="line 2: expected JSON, got the byte 0xff"):
        import_file(store, path)


def annotation(selected, **more):
    result = {"from_name": "pw", "to_name": "text1,text2", "type": "pairwise", "id": "Dx_aB91ISN"}
    result |= {"value": {"selected": selected}}
    return {"id": 1001, "result": [result], "was_cancelled": False, "completed_by": 10} | more


TASK = {
    "id": 1,
    "data": {"text1": "blue", "text2": "green", "prompt": "The sky is"},
    "annotations": [
        annotation("left", created_at="2021-03-09T22:16:08.728353Z", lead_time=4.288),
        annotation("right", completed_by={"id": 3, "email": "ann@example.org"}),
        annotation("left", was_cancelled=True, result=[], completed_by=12),
    ],
    "predictions": [],
}


def test_tasks_of_label_studio_come_out_once(store, tmp_path):
    (tmp_path / "in.json").write_text(json.dumps([TASK]))
    assert import_file(store, tmp_path / "in.json") == (1, 3)
    one, two, three = store.answers()
    assert (one.annotator, one.choice, one.latency_s) == ("label-studio:10", "left", 4.288)
    assert math.isclose(one.time, 1615328168.728353, abs_tol=1e-5)
    assert (two.annotator, two.choice, three.choice) == ("ann@example.org", "right", "cannot_tell")
    assert export_file(store, tmp_path / "out.json", "label-studio") == (3, 0)
    (task,) = json.loads((tmp_path / "out.json").read_text())
    assert task["data"] == TASK["data"]
    first, second, third = task["annotations"]
    assert first["result"][0]["value"] == {"selected": "left"} and first["completed_by"] == 10
    assert first["created_at"] == "2021-03-09T22:16:08.728353+00:00"
    assert second["completed_by"] == {"email": "ann@example.org"}
    assert third["was_cancelled"] is True and third["result"] == []
    assert import_file(store, tmp_path / "out.json") == (0, 0)
    assert export_file(store, tmp_path / "out.jsonl", "trl") == (2, 1)
    assert [line["chosen"] for line in lines(tmp_path / "out.jsonl")] == ["blue", "green"]


def test_tasks_without_an_answer_are_asked(store, tmp_path):
    (tmp_path / "in.json").write_text(json.dumps([TASK | {"annotations": []}]))
    assert import_file(store, tmp_path / "in.json") == (1, 0)
    store.add_annotator("ann")
    question = store.next_query("ann")
    assert {store.text(question.left), store.text(question.right)} == {"blue", "green"}
    store.answer(question.query.id, "ann", "equal", 1)
    assert export_file(store, tmp_path / "out.json", "label-studio") == (1, 0)
    with Store.create(tmp_path / "other") as other:
        import_file(other, tmp_path / "out.json")
        assert other.answers()[0].choice == "equal"
        assert other.answers()[0].time == store.answers()[0].time


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": 3}, "task 2: data: must be a JSON object"),
        ({"data": {"a": "x", "b": "y"}}, "data must have two texts, such as text1 and text2"),
        ({"data": {"text1": "x", "text2": "x"}}, "text2 must differ from text1, got 'x'"),
        ({"data": {"text1": "x", "text2": ""}}, "task 2: text2: must be a text"),
        ({"annotations": 3}, "annotations must be a list"),
        ({"annotations": [annotation("up")]}, "selected must be left or right, got 'up'"),
        ({"annotations": [annotation("left", result=[])]}, "must have a result of the type"),
        ({"annotations": [annotation("left", completed_by=None)]}, "completed_by: must be a name"),
        ({"annotations": [annotation("left", lead_time="1")]}, "lead_time: must be 0 to"),
    ],
)
def test_a_wrong_task_is_named_and_nothing_is_imported(store, tmp_path, change, words):
    path = tmp_path / "in.json"
    path.write_text(json.dumps([TASK, TASK | change]))
    with pytest.raises(ValueError, match=words) as error:
        import_file(store, path)
    assert str(error.value).startswith(f"{path}, task 2") and store.queries() == []


def test_answers_about_clips_are_left_out_of_files_of_texts(store, tmp_path):
    store.add_query("clip", *clips(store, 2))
    store.add_annotator("ann")
    store.answer(store.next_query("ann").query.id, "ann", "left", 1)
    for format_ in ("trl", "label-studio"):
        assert export_file(store, tmp_path / "out", format_) == (0, 1)
    with pytest.raises(ValueError, match="format: must be one of trl, openrlhf, label-studio"):
        export_file(store, tmp_path / "out", "csv")


def test_chats_may_begin_with_a_developer(store, tmp_path):
    """The name of the system role in newer chats."""
    import_file(store, written(tmp_path / "in.jsonl", [CHATS | {"prompt": DEVELOPER} | BY]))
    export_file(store, tmp_path / "out.jsonl", "openrlhf")
    assert import_file(store, tmp_path / "out.jsonl") == (0, 0)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.9999999-14:00"])
def test_a_time_that_could_not_be_exported_is_not_imported(store, tmp_path, time):
    with pytest.raises(ValueError, match="in.jsonl, line 1: time: must be a time such as"):
        import_file(store, written(tmp_path / "in.jsonl", [TEXTS | {"time": time}]))
    assert store.counts().answers == 0


def test_an_export_never_takes_the_place_of_the_store(store, tmp_path):
    import_file(store, written(tmp_path / "in.jsonl", [TEXTS]))
    (tmp_path / "link").symlink_to(store.path)
    before = (store.path / FILE).read_bytes()
    for place, said in {
        store.path / FILE: "outside of the store",
        tmp_path / "link" / FILE: "outside of the store",
        store.path: "a file to write",
        tmp_path / "no" / "out": "a folder that exists",
    }.items():
        with pytest.raises(ValueError, match=said):
            export_file(store, place, "trl")
    assert (store.path / FILE).read_bytes() == before
