"""The table of `make bench`: that it says what was measured. What was measured is no matter for a test."""

import json

from benchmarks.checkpoints import saves
from benchmarks.dispatching import unheard
from benchmarks.loop_saves import saves_in_a_loop
from benchmarks.size import Saved, Size
from benchmarks.table import Row, as_json, render
from benchmarks.timing import Samples

TINY = Size(
    rounds=2, calls=10, pairs=1, updates=10, logged=1, events=10, saved=(Saved("tiny", 3, (64, 128), rounds=1),)
)


def samples(*rounds):
    collected = Samples()
    for ours, base, again in rounds:
        collected.add({"ours": ours, "base": base, "again": again})
    return collected.comparison()


def test_a_measured_row_has_both_figures_their_ratio_and_the_target():
    (row,) = unheard(TINY)
    what, ours, base, ratio, target, verdict, same = row.cells()
    assert what.startswith("publish to nobody")
    assert ours.endswith(" ns")
    assert base.endswith(" ns")
    assert ratio == f"{row.ratio:.3f}x"
    assert target == "3x"
    assert verdict in ("yes", "NO", "within noise")
    assert "±" in same


def test_every_way_to_save_stands_beside_the_copy_and_the_file():
    first, *rows = saves(TINY)
    assert first.what.startswith("tiny: the first Checkpoints.save")
    assert first.ratio is None
    ways = [row.what.removeprefix("tiny: ").partition(",")[0] for row in rows]
    assert ways[:3] == ["Checkpoints.save"] * 3
    assert sorted(ways[3:]) == sorted(["torch.save + fsync", "dcp.save", "dcp.async_save"] * 2)
    assert [row.target for row in rows] == [1.1, 1.1, 1.6] + [None] * 6
    assert all(row.unit == "ms" and row.ours > 0 and row.ratio > 0 for row in rows)


def test_a_save_in_a_loop_is_told_with_what_of_it_is_no_copy():
    whole, rest = saves_in_a_loop(TINY)
    assert whole.what.startswith("tiny: a save in a Loop")
    assert 0 < rest.ours < whole.ours


def test_a_ratio_is_the_median_over_rounds_of_ours_to_the_mean_of_both_baselines():
    found = samples((20, 9, 11), (300, 100, 100), (40, 10, 10))
    assert found.ratio == 3
    assert found.ours.least == 20
    assert found.ours.median == 40
    assert found.base.least == 9
    assert found.same == 1


def test_a_verdict_is_withheld_inside_the_noise():
    assert Row("x", ratio=1.04, target=1.05).verdict == "yes"
    assert Row("x", ratio=1.06, target=1.05).verdict == "NO"
    assert Row("x", ratio=1.06, target=1.05, noise=0.02).verdict == "within noise"
    assert Row("x", ours=0.0, target=0).verdict == "yes"
    assert Row("x", ours=1.0).verdict == ""
    assert Row("x", note="absent").verdict == "absent"


def test_the_table_and_the_json_hold_every_row():
    rows = [Row("one", 5.0, 2.5, "us", 2.0, 3.0), Row("two: not installed", note="absent")]
    lines = render(rows).splitlines()
    assert lines[2].split() == ["one", "5", "us", "2.50", "us", "2.000x", "3x", "yes"]
    assert lines[3].split() == ["two:", "not", "installed", "absent"]
    kept = json.loads(json.dumps(as_json(rows, {"cpus": 2})))
    assert kept["machine"] == {"cpus": 2}
    assert [row["met"] for row in kept["rows"]] == ["yes", "absent"]
