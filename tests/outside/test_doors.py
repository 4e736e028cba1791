"""Nothing that comes through a door ends in a traceback, a hang or a wrong outcome; what did once
is tried for ever.
"""

from __future__ import annotations

import json
import mmap

import pytest

from tests.outside.doors import all_doors
from tests.outside.harness import CASES, Door, Fault, Planted, attempt, drive

DOORS, PLANTED = all_doors()
BY_NAME = {door.name: door for door in DOORS}
KEPT = sorted(CASES.glob("*/*.json"))


def test_each_kept_case_and_planted_fault_has_its_door() -> None:
    assert len(BY_NAME) == len(DOORS)
    assert {path.parent.name for path in KEPT} | {fault.door for fault in PLANTED} <= set(BY_NAME)


@pytest.mark.few(14)
@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_kept_case_works_or_is_refused(path) -> None:
    attempt(BY_NAME[path.parent.name], json.loads(path.read_text()))


def drawn(door: Door, examples: int, seed: int) -> None:
    found = drive(door, examples=examples, seed=seed)
    if found is not None:
        pytest.fail(
            f"{found.key}\nexample: {json.dumps(found.example)}\n{found.detail}\nkept as "
            f"{found.keep()}"
        )


@pytest.mark.few(1000)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_drawn_examples_work_or_are_refused(door: Door, seed) -> None:
    drawn(door, door.quick, seed)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_many_drawn_examples_work_or_are_refused(door: Door, seed) -> None:
    drawn(door, door.full, seed + 1)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_the_net_finds_a_planted_fault(fault: Planted, monkeypatch, seed) -> None:
    fault.plant(monkeypatch)
    door, others = BY_NAME[fault.door], set[str]()
    while True:  # within the same examples: what else the fault brings about is passed over
        found = drive(door, examples=door.full, seed=seed, known=others, shrink=False)
        assert found is not None, (
            f"{fault.name} was put back, and {door.full} examples found "
            f"{sorted(others) or 'nothing'}"
        )
        if not fault.kinds or any(part in found.key for part in fault.kinds):
            return
        others.add(found.key)


# ------------------------------------------------------------------------------- the harness itself


def toy(attempt_one, **bounds) -> Door:
    from hypothesis import strategies

    return Door(name="toy", examples=strategies.integers(0, 1000), attempt=attempt_one, **bounds)


def test_the_smallest_failing_example_is_kept(tmp_path) -> None:
    def refuses_small(number: int) -> None:
        if number >= 17:
            raise Fault("large", str(number))

    found = drive(toy(refuses_small), examples=200)
    assert found is not None and (found.key, found.example) == ("large", 17)
    assert json.loads(found.keep(tmp_path).read_text()) == 17
    assert drive(toy(refuses_small), examples=50, known={"large"}) is None


def test_a_hang_slowness_and_growth_are_faults() -> None:
    import time

    def hangs(number: int) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                time.sleep(0.01)
            except Exception:
                continue

    found = drive(toy(hangs, hang_s=0.2), examples=1, shrink=False)
    assert found is not None and found.key == "hang"
    found = drive(
        toy(lambda number: sum(range(2_000_000)) and None, cpu_s=0.001), examples=1, shrink=False
    )
    assert found is not None and found.key == "slow"
    held: list[mmap.mmap] = []

    def grows(number: int) -> None:
        # of the kernel: libc may have freed memory to give again
        held.append(mmap.mmap(-1, 40 * 2**20))
        held[-1].write(b"x" * 40 * 2**20)

    found = drive(toy(grows, growth_mb=4.0), examples=1, shrink=False)
    assert found is not None and found.key == "growth"
    for one in held:
        one.close()


def test_memory_without_end_is_an_error_of_the_attempt() -> None:
    found = drive(toy(lambda number: bytearray(8 << 30) and None), examples=1)
    assert found is not None and found.key.startswith("MemoryError")


def test_a_traceback_is_told_by_its_place() -> None:
    from equipoise import tree

    found = drive(toy(lambda number: tree.map(None, {"a": 1})), examples=1)  # type: ignore[arg-type]
    assert found is not None and found.key.startswith("TypeError in tree.py:")
