"""Which checkpoints stay: the rules of `ModelCheckpoint` and of the service, against a few lines of plain Python."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_runs import numbers
from saved_by_hand import Savings
from small_runs import SCORES, count, on_disk

from callbacks import ModelCheckpoint
from eventloop import Bus, Keep, Save, read_stream
from eventloop.checkpoint import Checkpoints
from eventloop.replay import replay

SCORE = st.sampled_from([0.1, 0.2, 0.2, 0.3, 0.4, math.nan, math.inf])
RULES = st.fixed_dictionaries(
    {
        "monitor": st.sampled_from([None, "score"]),
        "save_top_k": st.integers(-1, 3),
        "every_steps": st.sampled_from([1, 2, 3]),
        "keep_last": st.sampled_from([None, 1, 2, 3]),
        "keep_every": st.sampled_from([None, 3, 4, 7]),
        "make_room": st.booleans(),
    }
)


def saver_of(rules):
    return ModelCheckpoint(**rules, mode="min" if rules["monitor"] else None)


def place(item):
    """The best first: by value, what is not finite last, of equals the earlier."""
    step, score = item
    return (not math.isfinite(score), score if math.isfinite(score) else 0.0, step)


def what_stays(made, rules):
    """Of all the checkpoints that a saver ever made, step to score (None: not judged), those that its rules keep."""
    k, last, every = rules["save_top_k"], rules["keep_last"], rules["keep_every"]
    if k == -1:
        return set(made)
    scored = {step: score for step, score in made.items() if score is not None}
    best = [step for step, _ in sorted(scored.items(), key=place)] if rules["monitor"] else sorted(made)[::-1]
    stays = {*best[:k], *sorted(made)[::-1][: last or 0]}
    multiples = range(every, max(made) + 1, every) if every and made else ()
    return stays | {min(step for step in made if step >= multiple) for multiple in multiples}


def reference(all_rules, scores, steps):
    """What is on the disk after each step, and the best of each saver."""
    made, newest, disk, best = [{} for _ in all_rules], None, {}, {}
    for step in range(1, steps + 1):
        for mine, rules in zip(made, all_rules, strict=True):
            score = scores.get(step) if rules["monitor"] else None
            scored = {s: v for s, v in {**mine, step: score}.items() if v is not None}
            top = [s for s, _ in sorted(scored.items(), key=place)][: rules["save_top_k"]]
            if step % rules["every_steps"] == 0 or (score is not None and (rules["save_top_k"] <= 0 or step in top)):
                mine[step], newest = score, step
        kept = [what_stays(mine, rules) for mine, rules in zip(made, all_rules, strict=True)]
        disk[step] = set().union(*kept, {newest} - {None})
        finite = [
            {s: v for s, v in mine.items() if s in stays and v is not None and math.isfinite(v)}
            for mine, stays in zip(made, kept, strict=True)
        ]
        best[step] = [min(f, key=lambda s: place((s, f[s])), default=None) for f in finite]
    return disk, best


@settings(max_examples=15)
@given(st.lists(RULES, min_size=1, max_size=2), st.dictionaries(st.integers(1, 16), SCORE), st.sets(st.integers(1, 15)))
def test_on_the_disk_is_what_the_rules_say_after_every_update_in_every_sitting(all_rules, scores, cuts):
    """Fails if a milestone is told by its remainder, if keep_last counts the oldest, or if a resume forgets either."""
    disk, best = reference(all_rules, scores, 16)
    with TemporaryDirectory() as folder:
        root = Path(folder) / "checkpoints"
        Checkpoints(root, "another").save(100, {}, {"a": ["mine"]}, {}).result()
        newest, last = None, 0
        for cut in [*sorted(cuts), 16]:
            savers = {name: saver_of(rules) for name, rules in zip("ab", all_rules, strict=False)}
            run = Savings(savers, root, scores)
            run.go_on(newest)
            last = newest[0] if newest else 0
            assert run.standing == disk.get(last, set())
            for step in run.updates(cut):
                assert run.standing == disk[step]
                assert [saver.best_step for saver in savers.values()] == best[step]
            for saver in savers.values():
                assert saver.best_path is None or saver.best_path.is_dir()
                assert saver.best_step is None or saver.best_score == scores[saver.best_step]
            newest = run.newest if run.newest[0] else None
        assert [c.step for c in run.service.list() if c.run_id == "another"] == [100]


@settings(max_examples=12)
@given(RULES, st.dictionaries(st.integers(1, 16), SCORE))
def test_what_a_save_pushes_out_goes_behind_it_unless_room_is_made_and_then_one_is_left(rules, scores):
    """Fails if room is made without being asked for, if it is not made, or if the last one goes too."""
    disk, _ = reference([rules], scores, 16)
    with TemporaryDirectory() as folder:
        run = Savings({"a": saver_of(rules)}, Path(folder) / "checkpoints", scores)
        before = []
        run.before_save = lambda: before.append(run.standing)
        run.go_on()
        for step in run.updates(16):
            for there in before:
                old = disk.get(step - 1, set())
                wanted = old & disk[step] if rules["make_room"] else old
                assert there == (wanted or old & {max(old, default=0)})
            before.clear()


# -- told late, or never -----------------------------------------------------------------------------------------------


@given(RULES, st.dictionaries(st.integers(1, 16), SCORE), st.lists(st.integers(0, 9)))
def test_nothing_depends_on_how_late_a_save_is_told_of(rules, scores, delays):
    """Fails if a score is ranked among those that stand alone, or if a state holds only these."""

    def run(delays):
        saver = saver_of(rules)
        made = Savings({"a": saver}, None, scores, delays)
        made.go_on()
        list(made.updates(16))
        made.end()
        return made.made, made.states, made.standing, saver.best_step

    assert run(delays) == run([])


@pytest.mark.parametrize("make_room", [False, True])
@pytest.mark.parametrize("delay", [0, 1, 6])
def test_a_save_that_failed_does_not_count(tmp_path, delay, make_room):
    """Fails if a saver does not hear that its save failed: no score is as good as that of a file that is not there."""
    saver = ModelCheckpoint("score", "min", save_top_k=1, make_room=make_room)
    scores = {1: 0.5, 2: 0.1, 6: 0.4, 9: 0.6}
    run = Savings({"a": saver}, tmp_path / "checkpoints", scores, [0, delay], frozenset({2}))
    run.go_on()
    assert [saver.best_step for _ in run.updates(10)][4:] == [1, 6, 6, 6, 6, 6]
    assert run.made == [(1, {"best"}), (2, {"best"}), (6, {"best"})]
    assert run.standing == {6}


class NoFolderAt:
    """From the evaluation of a step until the next update there is a file where the checkpoints should lie."""

    def __init__(self, root, step):
        self.root, self.away, self.step = root, root.with_name("away"), step

    def on_eval_end(self, event, state):
        if state.step == self.step:
            self.root.rename(self.away)
            self.root.write_text("")

    def on_step_begin(self, event, state):
        if self.away.exists():
            self.root.unlink()
            self.away.rename(self.root)


@pytest.mark.parametrize("make_room", [False, True])
def test_the_loop_tells_a_saver_that_its_save_failed(tmp_path, make_room):
    """Fails if the saver does not hear that its save failed."""
    bus, saver = Bus(), ModelCheckpoint("eval_loss", make_room=make_room)
    bus.attach(saver, failure="isolate")
    scores = {1: 0.5, 2: 0.1, 3: 0.4, 4: 0.6}
    count(tmp_path, NoFolderAt(tmp_path / "checkpoints", 2), bus=bus, scores=scores, max_steps=4)
    assert [str(failure.subscription) for failure in bus.failures] == ["ModelCheckpoint"]
    assert (saver.best_step, on_disk(tmp_path)) == (3, {3, 4})


def test_saves_that_are_refused_are_not_noted_for_ever():
    """Fails if a saver waits for the end of every save that it has asked for."""
    bus, saver = Bus(), ModelCheckpoint(save_top_k=-1, every_steps=1)
    count(None, saver, bus=bus, max_steps=20)
    assert len(saver.state_dict()["scores"]) <= 1


class Slow:
    """A logger that takes its time to bring its lines to the disk, so that each save is told of late."""

    def on_train_end(self, event, state):
        pass

    def persist(self):
        Event().wait(0.02)


@pytest.mark.parametrize("make_room", [False, True])
def test_saves_in_the_background_keep_what_saves_at_once_keep(tmp_path, make_room):
    """Fails if a save begins before what its forerunner's savers want is known: then the best of all is removed."""
    scores = {1: 0.9, 2: 0.1, 3: 0.7, 4: 0.2, 5: 0.3, 6: 0.15, 7: 0.8, 8: 0.9}
    found = []
    for saves in ("sync", "wait"):
        saver = ModelCheckpoint("eval_loss", save_top_k=2, every_steps=1, keep_every=5, make_room=make_room)
        count(tmp_path / saves, saver, Slow(), scores=scores, max_steps=8, saves=saves)
        found.append((on_disk(tmp_path / saves), saver.best_step, saver.best_path.is_dir()))
    assert found == [({2, 5, 6, 8}, 2, True)] * 2


# -- room --------------------------------------------------------------------------------------------------------------


class Look:
    """Notes which checkpoints there are when the state is taken."""

    def __init__(self, run_dir):
        self.run_dir, self.there = run_dir, []

    def on_train_end(self, event, state):
        pass

    def state_dict(self):
        self.there.append(on_disk(self.run_dir))
        return {}

    def load_state_dict(self, state):
        pass


def saved(root, *steps):
    service = Checkpoints(root, "run")
    for step in steps:
        service.save(step, numbers(step), {"a": ["tag"]}, {}).result()
    return service


def damage(root, step):
    file = root / f"step-{step:08d}" / "state.json"
    file.write_bytes(file.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize(
    ("damaged", "wanted", "left"),
    [
        ([], {1, 5}, [1]),  # the newest goes too
        ([], {5}, [4]),  # of none that is wanted, the newest is left
        ([1], {1, 5}, [1, 4]),  # what is wanted is no use
        ([3, 4], {5}, [2]),
        ([1, 2, 3, 4], {5}, [1, 2, 3, 4]),  # none is whole: none goes
        ([1, 2, 3, 4], {1, 5}, [1, 2, 3, 4]),
    ],
)
def test_room_is_never_made_at_the_cost_of_the_last_that_is_whole(tmp_path, damaged, wanted, left):
    """Fails if what is left is not verified."""
    service = saved(tmp_path, 1, 2, 3, 4)
    for step in damaged:
        damage(tmp_path, step)
    service.keep("a", frozenset(wanted), make_room=True)
    assert [c.step for c in service.list()] == left
    assert service.latest() == f"step-{left[-1]:08d}"
    service.save(5, numbers(5), {"a": ["tag"]}, {}).result()
    assert [c.step for c in service.list()] == sorted({*wanted, 5})


def test_room_is_not_made_of_what_others_want_or_never_spoke_of(tmp_path):
    service = saved(tmp_path, 1)
    for step, who in {2: "b", 3: "me", 4: "a", 5: "a"}.items():
        service.save(step, numbers(step), {"a": ["tag"], who: ["tag"]}, {}).result()
    service.keep("b", frozenset({2}))
    service.keep("a", frozenset({6}), make_room=True)
    assert [c.step for c in service.list()] == [2, 3]


def test_a_run_that_makes_room_never_has_more_than_it_keeps_and_one(tmp_path):
    """Fails if the loop does not say to the service that room is to be made."""
    look, scores = Look(tmp_path), {1: 0.1, 2: 0.5, 3: 0.6, 4: 0.05, 5: 0.7}
    saver = ModelCheckpoint("eval_loss", make_room=True, every_steps=1)
    count(tmp_path, saver, look, scores=scores, max_steps=5)
    assert look.there[1:] == [set(), {1}, {1}, {3}, {4}]  # the loop tries it once when it begins
    assert on_disk(tmp_path) == {4, 5}


def test_a_replay_keeps_what_the_run_kept(tmp_path):
    """Fails if a record loses what a wish that makes room wants."""
    bus, saver = Bus(), ModelCheckpoint("eval_loss", every_steps=4, keep_last=2, make_room=True)
    mine = Save("mine"), Keep(frozenset({2, 3}), make_room=True)
    bus.on("step_end", lambda event, state: mine if state.step < 4 else None, name="me")
    count(tmp_path, saver, bus=bus, scores=SCORES, max_steps=9, journal="full")
    (row, *_) = (row for row in read_stream(tmp_path) if row["event"] == "step_end")
    assert row["asked"] == [["me", "Save", "mine"], ["me", "Keep", {"steps": [2, 3], "make_room": True}]]
    told = replay(tmp_path)
    assert set(told.kept) == on_disk(tmp_path) == {2, 3, 5, 8, 9}


# -- what a user writes ------------------------------------------------------------------------------------------------


def test_the_rules_add_up(tmp_path):
    saver = ModelCheckpoint("eval_loss", save_top_k=1, every_steps=2, keep_last=2, keep_every=5)
    count(tmp_path, saver, scores={step: abs(step - 3.2) for step in range(1, 18)}, max_steps=17)
    assert on_disk(tmp_path) == {3, 6, 10, 14, 16, 17}
    assert saver.best_step == 3


def test_milestones_and_the_newest_are_found_again_whatever_the_rules_were_before(tmp_path):
    count(tmp_path, ModelCheckpoint(save_top_k=-1, every_steps=3), max_steps=15)
    saver = {"save_top_k": 1, "every_steps": 3, "keep_every": 4, "keep_last": 2}
    count(tmp_path, ModelCheckpoint(**saver), max_steps=21, resume="auto")
    assert on_disk(tmp_path) == {6, 9, 12, 18, 21}
    count(tmp_path, ModelCheckpoint(**saver), max_steps=28, resume="auto")
    assert on_disk(tmp_path) == {6, 9, 12, 18, 21, 24, 27, 28}
