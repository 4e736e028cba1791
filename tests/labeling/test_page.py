"""The page's server on a real port: questions, answers that count once, undo, links, and clips."""

from __future__ import annotations

import gzip
import json
import re
import socket
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.feedback import DiskFull, Store
from equipoise.labeling import page
from equipoise.labeling.clips import MOST_CURVES, packed
from equipoise.labeling.links import lines
from equipoise.pages import responses
from tests.labeling.made import TOKEN, Client, dot, opened, store, waves

STATIC = Path(page.__file__).parent / "static"
SHARED = Path(responses.__file__).parent / "static"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Store]:
    with store(tmp_path / "store", clips=3, curves=1, texts=4) as one:
        yield one


@pytest.fixture
def port(made: Store) -> Iterator[int]:
    with opened(made) as one:
        yield one


@pytest.fixture
def ann(made: Store, port: int) -> Client:
    return Client(port, made.add_annotator("ann"))


# ------------------------------------------------------------------------------------------ answers


def test_an_answer_is_in_the_store_when_it_is_acknowledged(made: Store, ann: Client) -> None:
    told = ann.question()
    lease = told["question"]["lease"]
    status, said = ann.answer(lease, "right")
    assert status == 200
    with Store.open(made.path) as other:
        (one,) = other.answers()
    assert (one.row, one.annotator, one.latency_s) == (said["row"], "ann", 1.5)
    swapped = made.query(one.query).left != told["question"]["left"]["clip"]
    assert one.choice == ("left" if swapped else "right") and one.swapped == swapped


def test_the_same_answer_again_counts_once(made: Store, ann: Client) -> None:
    for number in range(1, 8):
        lease = ann.question()["question"]["lease"]
        first = ann.answer(lease)
        assert first[0] == 200 and ann.answer(lease) == first
        status, said = ann.answer(lease, "right")
        assert status == 409 and "another answer" in said["error"]
        assert len(made.answers()) == ann.question()["answered"] == number
    assert {one.swapped for one in made.answers()} == {True, False}, "with either item on the left"


def test_the_same_answer_from_many_tabs_at_once_counts_once(made: Store, ann: Client) -> None:
    lease = ann.question()["question"]["lease"]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ann.answer(lease), range(24)))
    assert {status for status, _ in found} == {200} and len(made.answers()) == 1


def test_an_answer_that_arrives_after_its_undo_stays_undone(made: Store, ann: Client) -> None:
    lease = ann.question()["question"]["lease"]
    row = ann.answer(lease)[1]["row"]
    assert ann.ask("/api/undo", {"row": row})[0] == 200
    again = ann.question()["question"]["lease"]
    assert again != lease and ann.answer(lease)[0] == 200, "it was stored, as it says"
    assert made.answers() == []
    assert ann.answer(again, "equal")[0] == 200
    assert [one.choice for one in made.answers()] == ["equal"]


def test_an_older_lease_of_the_same_question_is_refused(tmp_path: Path) -> None:
    with store(tmp_path / "store", texts=1) as made, opened(made) as port:
        ann = Client(port, made.add_annotator("ann"))
        lease = ann.question()["question"]["lease"]
        with sqlite3.connect(made.path / "feedback.sqlite") as db:  # as after a lease that ended
            db.execute(
                "INSERT INTO leases (query, annotator, swapped, reason, until) SELECT query, "
                "annotator, 1 - swapped, reason, until + 9 FROM leases"
            )
        status, said = ann.answer(lease)
        assert status == 409 and "asked again" in said["error"] and made.answers() == []
        assert ann.question()["question"]["lease"] == lease + 1


def test_undo_takes_back_the_newest_answer_once(made: Store, ann: Client) -> None:
    shown, rows = [], []
    for _ in range(2):
        shown.append(ann.question()["question"])
        rows.append(ann.answer(shown[-1]["lease"])[1]["row"])
    assert ann.question()["last"] == rows[1]
    status, said, _ = ann.ask("/api/undo", {"row": rows[0]})
    assert status == 409 and "newest" in said["error"]
    for _ in range(2):  # a repeated request takes nothing more back
        assert ann.ask("/api/undo", {"row": rows[1]})[0] == 200
    told = ann.question()
    assert told["last"] == rows[0] and [one.row for one in made.answers()] == [rows[0]]
    assert told["question"] | {"lease": 0} == shown[1] | {"lease": 0}, "the same sides as before"


def test_a_full_disk_is_not_acknowledged(
    made: Store, ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = ann.question()["question"]["lease"]

    def full(*_: Any, **__: Any) -> int:
        raise DiskFull("feedback.sqlite: nothing was stored, since the disk is full; make room")

    with monkeypatch.context() as patch:
        patch.setattr(made, "answer", full)
        status, said = ann.answer(lease)
        assert status == 507 and "nothing was stored" in said["error"]
    assert made.answers() == [] and ann.answer(lease)[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"lease": 1, "choice": "both", "latency_s": 1.0},
        {"lease": 0, "choice": "left", "latency_s": 1.0},
        {"lease": 1, "choice": "left", "latency_s": -1.0},
        {"lease": 1, "choice": "left", "latency_s": 1e9},
        {"lease": "1", "choice": "left", "latency_s": 1.0},
        {"lease": 1, "choice": "left", "latency_s": 1.0, "name": "ben"},
    ],
)
def test_an_answer_of_another_form_is_refused(made: Store, ann: Client, body: Any) -> None:
    ann.question()
    status, said, _ = ann.ask("/api/answer", body)
    assert status == 400 and said["error"].startswith("body") and made.answers() == []


# --------------------------------------------------------------------------------------- annotators


def test_a_question_is_held_by_one_annotator(made: Store, port: int, ann: Client) -> None:
    ben = Client(port, made.add_annotator("ben"))
    first, second = ann.question()["question"], ben.question()["question"]
    assert first["left"] != second["left"] and ann.question()["question"] == first
    status, said = ben.answer(first["lease"])
    assert status == 409 and "ben" in said["error"] and made.answers() == []
    assert ann.answer(first["lease"])[0] == 200 and ben.answer(second["lease"])[0] == 200
    assert sorted(one.annotator for one in made.answers()) == ["ann", "ben"]


def test_a_lease_that_ended_is_refused_once_another_has_the_question(tmp_path: Path) -> None:
    with store(tmp_path / "store", texts=1, lease_s=1.0) as made, opened(made) as port:
        ann, ben = (Client(port, made.add_annotator(name)) for name in ("ann", "ben"))
        lease = ann.question()["question"]["lease"]
        assert ben.question()["question"] is None
        while (found := ben.question()["question"]) is None:
            pass
        status, said = ann.answer(lease)
        assert status == 409 and "somebody else" in said["error"]
        assert ben.answer(found["lease"])[0] == 200 and len(made.answers()) == 1


def test_a_link_sets_a_cookie_and_a_wrong_or_revoked_one_is_one_sentence(
    made: Store, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "WRONG_S", 0.0)
    stranger, token = Client(port), made.add_annotator("ann")
    assert stranger.ask("/api/question")[:2] == (401, {"error": page.NO_LINK})
    assert stranger.ask("/api/enter", {"token": token + "x"})[0] == 401
    status, _, headers = stranger.ask("/api/enter", {"token": token})
    cookie = headers["set-cookie"]
    assert status == 200 and "HttpOnly" in cookie and "SameSite=strict" in cookie
    stranger.cookie = cookie.partition(";")[0]
    assert stranger.question()["name"] == "ann"
    with Store.open(made.path) as other:
        other.revoke("ann")
    for path, body in (("question", None), ("answer", {"lease": 1}), ("enter", {"token": token})):
        status, said, _ = stranger.ask(f"/api/{path}", body)
        assert (status, said) == (401, {"error": page.NO_LINK}) or path == "answer"
    assert stranger.answer(1)[0] == 401


def test_a_new_annotator_gets_a_link_and_a_known_one_keeps_it(made: Store) -> None:
    ann, ben = lines(made, "http://h/", ["ann", "ben"])
    assert made.annotator_of(ann.removeprefix("ann: http://h/#token=")) == "ann"
    assert ben.startswith("ben: http://h/#token=")
    known = list(lines(made, "http://h/", []))
    assert [one.partition(":")[0] for one in known] == ["ann", "ben"]
    assert all("keeps the link" in one and "token=" not in one for one in known)


def test_a_taken_port_gives_no_link(made: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["label", str(made.path), "--port", port, "--annotator", "ann"]
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "are free here" in done.output and made.annotators() == []


def test_progress_is_for_the_owner_alone(made: Store, port: int, ann: Client) -> None:
    assert ann.ask("/api/progress")[0] == 401 == Client(port).ask("/api/progress")[0]
    assert Client(port, TOKEN).ask("/api/question")[0] == 401
    for choice in ("left", "right"):
        ann.answer(ann.question()["question"]["lease"], choice)
    owner = Client(port, TOKEN, "equipoise_label_owner")
    status, told, _ = owner.ask("/api/progress")
    assert status == 200 and told["counts"]["answers"] == 2 and told["each"]["ann"]["answers"] == 2
    ann.ask("/api/undo", {"row": ann.question()["last"]})
    assert owner.ask("/api/progress")[1]["counts"] | {"queries": 0} == {
        "queries": 0,
        "open": 7,
        "answers": 1,
        "undone": 1,
    }


# -------------------------------------------------------------------------------------------- items


def test_a_question_tells_nothing_about_the_policies(made: Store, ann: Client) -> None:
    question = ann.question()["question"]
    assert set(question) == {"lease", "kind", "prompt", "left", "right"}


def test_texts_come_with_the_question(tmp_path: Path) -> None:
    with store(tmp_path / "store", texts=1) as made, opened(made) as port:
        question = Client(port, made.add_annotator("ann")).question()["question"]
        assert question["prompt"] == {"text": "prompt 0"}
        texts = {question[side]["text"] for side in ("left", "right")}
        assert texts == {"answer 0 one", "answer 0 two"}


def test_a_clip_comes_with_its_frames(made: Store, ann: Client) -> None:
    question = ann.question()["question"]
    hash_ = question["left"]["clip"]
    status, plain, headers = ann.ask(f"/api/clip/{hash_}")
    assert status == 200 and "immutable" in headers["cache-control"]
    _, zipped, headers = ann.ask(f"/api/clip/{hash_}", Accept_Encoding="gzip, br")
    assert headers["content-encoding"] == "gzip" and gzip.decompress(zipped) == plain
    head, data = parts(plain)
    frames = made.segment(hash_)["frames"]
    assert head["frames"] == [12, 32, 32, 3] and head["fps"] == 30 and data == frames.tobytes()
    assert Client(ann.port).ask(f"/api/clip/{hash_}")[0] == 401


@pytest.mark.parametrize("hash_", ["0" * 64, "..", "%2e%2e%2ffeedback.sqlite", "0" * 63])
def test_no_other_file_is_served(ann: Client, hash_: str) -> None:
    assert ann.ask(f"/api/clip/{hash_}")[0] in (404, 422)


def test_a_damaged_clip_is_one_sentence_and_the_owner_reads_why(
    made: Store, ann: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    hash_ = ann.question()["question"]["left"]["clip"]
    (made.path / "segments" / f"{hash_}.safetensors").write_bytes(b"x")
    for _ in range(2):
        status, said, _ = ann.ask(f"/api/clip/{hash_}")
        assert status == 422
        assert said["error"] == "This clip is damaged or has nothing to show; answer Cannot tell."
    printed = capfd.readouterr().err
    assert printed.count(f"{hash_}.safetensors: must have the SHA-256 of its name") == 1


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:4], "little")
    return json.loads(data[4 : 4 + length]), data[4 + length :]


@pytest.mark.parametrize(
    "shape", [(5, 8, 9), (5, 8, 9, 1), (5, 8, 9, 3), (5, 4, 8, 9), (5, 4, 8, 9, 3)]
)
def test_observations_that_are_images_are_shown_as_frames(shape: tuple[int, ...]) -> None:
    seen = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)
    head, data = parts(packed({"observations": seen, "actions": np.zeros(5)}))
    assert (head["frames"], head["steps"], head["curves"]) == ([5, 8, 9, 3], 5, [])
    shown = np.frombuffer(data, np.uint8).reshape(5, 8, 9, 3)
    newest = seen[:, 3] if shape[1] == 4 else seen
    assert (shown[..., 0] == newest.reshape(5, 8, 9, -1)[..., 0]).all()


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 3), (5, 2, 2, 3), (5, 2, 8, 9, 2)])
def test_small_arrays_of_bytes_are_curves(shape: tuple[int, ...]) -> None:
    head, data = parts(packed({"observations": np.zeros(shape, np.uint8)}))
    assert head["frames"] is None and head["curves"] and not data


def test_numbers_without_frames_become_curves() -> None:
    head, data = parts(packed(waves(0)))
    assert [one["name"] for one in head["curves"]] == ["observations[0]", "observations[1]"]
    assert head["steps"] == 40 and head["curves"][1]["points"][0] == [0, 1.0] and not data
    many = {"observations": np.full((5000, 40), np.nan), "actions": np.zeros(5000)}
    head, _ = parts(packed(many))
    assert len(head["curves"]) == MOST_CURVES and head["more"] == 40 - MOST_CURVES
    points = head["curves"][0]["points"]
    assert len(points) == 1000 and points[-1] == [4999, None], "nan is a gap"
    head, _ = parts(packed({"rewards": np.arange(3), "actions": np.zeros(3), "seed": np.array(1)}))
    assert [one["name"] for one in head["curves"]] == ["actions", "rewards"]


@pytest.mark.parametrize(
    "arrays",
    [
        {"seed": np.array(1)},
        {"frames": np.zeros((2, 4, 4), np.uint8)},
        {"frames": np.zeros((2, 4, 4, 3), np.float32)},
        {"frames": np.zeros((0, 4, 4, 3), np.uint8)},
    ],
)
def test_a_segment_without_anything_to_show_is_refused(arrays: Any) -> None:
    with pytest.raises(ValueError, match=r"^segment"):
        packed(arrays)


def test_a_strange_fps_is_not_followed() -> None:
    for fps in (np.nan, 0.0, -1.0, 1e9):
        assert parts(packed(dot(1) | {"fps": np.array(fps)}))[0]["fps"] == 30


# --------------------------------------------------------------------------------------------- page


def test_every_file_is_served_and_names_no_other_host(port: int) -> None:
    for path in ("/", "/owner"):
        status, body, headers = Client(port).ask(path)
        assert status == 200 and "require-trusted-types-for" in headers["content-security-policy"]
        names = set(re.findall(r'"static/([^"]+)"', body.decode()))
        assert names >= {"style.css", "palette.css", "icon.svg"}
    for file in [*STATIC.iterdir(), *SHARED.iterdir()]:
        status, body, _ = Client(port).ask(f"/static/{file.name}")
        assert status == 200 and body == file.read_bytes()
        assert set(re.findall(rb"https?://[^\"'\s)]+", body)) <= {b"http://www.w3.org/2000/svg"}
        assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|eval\(", body)
        for name in re.findall(r'from "\./([\w.]+)"', body.decode()):
            assert (STATIC / name).is_file() or (SHARED / name).is_file()
        assert not re.search(r'["`]/(?:api|static)', body.decode()), "it works below any path"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Content_Type": "text/plain"}, 415),
    ],
)
def test_other_pages_cannot_answer(
    made: Store, ann: Client, headers: dict[str, str], status: int
) -> None:
    body = {"lease": ann.question()["question"]["lease"], "choice": "left", "latency_s": 1.0}
    assert ann.ask("/api/answer", body, **headers)[0] == status and made.answers() == []


@pytest.mark.thorough
def test_equal_sides_are_shown_on_either_side(tmp_path: Path) -> None:
    with store(tmp_path / "store", texts=400) as made, opened(made) as port:
        ann = Client(port, made.add_annotator("ann"))
        firsts = 0
        for _ in range(400):
            question = ann.question()["question"]
            firsts += question["left"]["text"].endswith("one")
            ann.answer(question["lease"])
        # 4.5 standard deviations of a fair coin
        assert abs(firsts - 200) < 45
        assert {one.swapped for one in made.answers()} == {True, False}


def test_a_body_without_a_length_is_refused_before_it_is_read(port: int) -> None:
    """With both headers the parts count, so the length bounds nothing."""
    head = f"POST /api/enter HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 3\r\n"
    parts = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as caller:
        caller.sendall(f"{head}{parts}".encode())
        assert caller.recv(12) == b"HTTP/1.1 411"
