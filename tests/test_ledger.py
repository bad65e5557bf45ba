"""Who may ask what, in which order it is carried out, and how each request comes to its end."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import ask, batches, model_and_optimizer, recorded, train

from eventloop import (
    CheckpointSaved,
    Control,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    Evaluate,
    Event,
    GradientsReady,
    HandlerFailed,
    Keep,
    Loop,
    Reply,
    Report,
    Request,
    RunFailed,
    Save,
    SetLR,
    SkipUpdate,
    StepBegin,
    StepEnd,
    Stop,
    TrainBegin,
    TrainEnd,
)
from eventloop.ledger import KEPT, Ledger
from eventloop.ranks import Alone


class Note(Request):
    """A request of the user's own."""


class Acts:
    """Obeys everything and writes down what it did; ``answers`` are given at an evaluation, as its handlers would."""

    def __init__(self, ledger, answers=(), refuse=()):
        self._ledger, self._answers, self._refuse, self.done = ledger, list(answers), refuse, []

    def _did(self, what):
        self.done.append(what)
        return "not today" if what.split()[0] in self._refuse else None

    def stop(self, asked):
        return self._did(f"stop {asked.who}")

    def evaluate(self):
        answers, self._answers = self._answers, []
        ask_for(self._ledger, EvalEnd(), *answers)
        return self._did("evaluate")

    def save(self, asked):
        return self._did("save " + " ".join(sorted(f"{a.who}:{a.request.tag}" for a in asked)))

    def keep(self, asked):
        self._did(f"keep {asked.who}")

    def obey(self, asked):
        return self._did(f"obey {asked.who}")


def ask_for(ledger, event, *replies, step=1):
    control = Control([Reply(who, request) for who, request in replies])
    ledger.file(control, event, step, mid_update=isinstance(event, StepBegin | GradientsReady))


def fates(ledger):
    return [(e.who, e.request, e.fate) for e in ledger]


@pytest.fixture
def ledger():
    return Ledger(Alone())


EVENTS = [
    TrainBegin(),
    EpochBegin(),
    StepBegin(),
    GradientsReady(),
    StepEnd(),
    EvalBegin(),
    EvalEnd(),
    EpochEnd(),
    EpochEnd(completed=False),
    CheckpointSaved(),
    HandlerFailed(),
    RunFailed(),
    TrainEnd(),
]
REQUESTS = [Stop(), Save(), Evaluate(), SkipUpdate(), Note()]


def right_fate(event, request):
    """The table of the design, in words: None is carried out at the next boundary."""
    if isinstance(event, RunFailed):
        return "refused", "the run has failed"
    if isinstance(event, TrainEnd):
        return "refused", "the run is over"
    if event == EpochEnd(completed=False):
        return "refused", "the epoch was left before its end"
    if isinstance(request, SkipUpdate):
        granted = isinstance(event, GradientsReady)
        return ("granted", "") if granted else ("refused", "an update can only be skipped at gradients_ready")
    if isinstance(request, Save) and isinstance(event, CheckpointSaved):
        return "refused", "a save may not ask for a save"
    if isinstance(request, Save) and isinstance(event, StepBegin | GradientsReady):
        return "deferred", "until the update in hand is done"
    return None


@pytest.mark.parametrize("event", EVENTS, ids=repr)
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_who_may_ask_what(ledger, event, request_):
    ask_for(ledger, event, ("me", request_), step=7)
    fate = right_fate(event, request_)
    assert [(e.fate, e.note, e.event, e.step) for e in ledger] == ([(*fate, event.name, 7)] if fate else [])
    assert bool(ledger.pending) == (fate is None or fate[0] == "deferred")


def test_stops_and_own_requests_come_first_then_one_evaluation_then_one_save(ledger):
    ask_for(ledger, StepEnd(), ("a", Save("x")), ("b", Evaluate()), ("c", Note()), ("d", Stop()), ("e", Save("y")))
    ask_for(ledger, StepEnd(), ("f", Evaluate()), ("a", Save("z")))
    acts = Acts(ledger)
    ledger.carry_out(acts, 1)
    assert acts.done == ["obey c", "stop d", "evaluate", "save a:x a:z e:y"]
    assert Counter(fate for _, _, fate in fates(ledger)) == {"granted": 7}
    assert ledger.pending == []


def test_what_is_asked_for_at_the_evaluation_is_carried_out_at_the_same_boundary(ledger):
    ask_for(ledger, StepEnd(), ("a", Save("x")), ("b", Evaluate()))
    acts = Acts(ledger, answers=[("c", Save("best")), ("d", Stop()), ("e", Evaluate())])
    ledger.carry_out(acts, 1)
    assert acts.done == ["evaluate", "stop d", "evaluate", "save a:x c:best"]


def test_saves_wait_where_an_epochs_end_is_still_to_come(ledger):
    ask_for(ledger, StepEnd(), ("a", Save("x")), ("b", Stop()))
    acts = Acts(ledger)
    ledger.carry_out(acts, 1, saves=False)
    assert acts.done == ["stop b"]
    ask_for(ledger, EpochEnd(), ("c", Save("y")))
    ledger.carry_out(acts, 1)
    assert acts.done == ["stop b", "save a:x c:y"]


@given(st.lists(st.sampled_from([Stop(), Save("x"), Save("y"), Evaluate(), Note(), SkipUpdate()])), st.randoms())
def test_what_comes_of_requests_does_not_depend_on_the_order_of_the_handlers(requests, rng):
    ends = []
    for shuffle in (lambda items: None, rng.shuffle):
        ledger, replies = Ledger(Alone()), [(f"h{i}", request) for i, request in enumerate(requests)]
        shuffle(replies)
        ask_for(ledger, StepEnd(), *replies)
        acts = Acts(ledger)
        ledger.carry_out(acts, 1)
        kinds = [what.split()[0] for what in acts.done]
        assert kinds.count("save") <= 1
        assert kinds.count("evaluate") <= 1
        ends.append((Counter(acts.done), Counter(fates(ledger))))
    assert ends[0] == ends[1]


def test_a_refusal_is_said_once_to_each_asker_and_counted_each_time(ledger):
    written = []
    ledger.written = written.append
    for step in range(1, 6):
        ask_for(ledger, StepEnd(), ("a", Stop("bored")), ("b", Stop("also")), step=step)
        ledger.carry_out(Acts(ledger, refuse=["stop"]), step)
    assert [str(e) for e in ledger.of("refused")] == [
        "Stop by a (bored) at step_end of step 1 refused: not today",
        "Stop by b (also) at step_end of step 1 refused: not today",
    ]
    assert written == list(ledger)
    assert ledger.totals == {"Stop refused": 10}


def test_reports_and_learning_rates_are_counted_and_not_listed(ledger):
    ask_for(ledger, StepEnd(), ("a", Report(x=1.0)), ("b", SetLR(0.1)), ("a", Report(y=1.0)))
    assert list(ledger) == ledger.pending == []
    assert ledger.totals == {"Report": 2, "SetLR": 1}


def test_the_last_1000_are_kept_and_the_totals_of_all(ledger):
    for step in range(KEPT + 50):
        ask_for(ledger, StepEnd(), ("a", Stop()), step=step)
        ledger.carry_out(Acts(ledger), step)
    entries = list(ledger)
    assert (len(entries), entries[0].step, entries[-1].step) == (1000, 50, KEPT + 49)
    assert ledger.totals == {"Stop granted": KEPT + 50}


def test_its_state_is_plain_json_and_goes_on(ledger):
    ask_for(ledger, StepEnd(), ("a", Stop("why")), ("b", SkipUpdate()), step=3)
    ledger.carry_out(Acts(ledger), 3)
    other = Ledger(Alone())
    other.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert list(other) == list(ledger)
    ask_for(other, StepEnd(), ("a", Report(x=1.0)))
    assert other.totals == {"Stop granted": 1, "SkipUpdate refused": 1, "Report": 1}


def test_what_is_open_when_the_run_is_over_has_expired(ledger):
    ask_for(ledger, StepBegin(), ("a", Stop()), ("b", Save()), ("c", Keep()), step=4)
    ledger.expire(4)
    assert fates(ledger) == [("b", "Save", "deferred"), ("a", "Stop", "expired"), ("b", "Save", "expired")]
    assert ledger.pending == []


@pytest.mark.parametrize("fails", ["stop", "obey", "evaluate", "save"])
def test_no_request_is_lost_when_carrying_one_out_fails(ledger, fails):
    asked = {"stop": Stop(), "obey": Note(), "evaluate": Evaluate(), "save": Save()}
    ask_for(ledger, StepEnd(), *asked.items())
    acts = Acts(ledger)

    def broken(*arguments):
        raise OSError("disk full")

    setattr(acts, fails, broken)
    with pytest.raises(OSError, match="disk full"):
        ledger.carry_out(acts, 1)
    ledger.expire(1)
    ends = {who: fate for who, _, fate in fates(ledger)}
    assert len(list(ledger)) == 4
    assert ends[fails] == "expired"
    assert sorted(ends) == sorted(asked)


# -- in a run ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def parts():
    return model_and_optimizer()


class Upload(Note):
    """A request that is a kind of Note."""


class Urgent(Upload):
    """And one that is a kind of it."""


def test_own_requests_go_to_the_function_of_their_class_or_of_its_base(parts):
    model, optimizer = parts
    loop, obeyed = Loop(model, optimizer, max_steps=1), []
    loop.carry_out(Note, lambda request: obeyed.append(("note", type(request))))
    loop.carry_out(Urgent, lambda request: obeyed.append(("urgent", type(request))))
    ask(loop, "step_end", (Upload(), Note(), Urgent()))
    train(loop, model, batches(1))
    assert obeyed == [("note", Upload), ("note", Note), ("urgent", Urgent)]


def test_a_request_that_nobody_carries_out_is_named_in_the_result(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_end", Upload(), name="asker")
    (entry,) = train(loop, model, batches(3)).refused
    assert str(entry) == (
        "Upload by asker at step_end of step 1 refused: nobody carries out Upload; "
        "register a function with loop.carry_out(Upload, function)"
    )


@pytest.mark.parametrize("kind", [Request, Stop, Save, "Note", Event, Note()])
def test_only_request_classes_of_ones_own_can_be_carried_out(parts, kind):
    with pytest.raises(TypeError, match="carry_out takes a Request class of your own, not"):
        Loop(*parts).carry_out(kind, print)


def test_what_carries_out_must_be_callable(parts):
    with pytest.raises(TypeError, match=r"carry_out\(Note, 3\): the second argument cannot be called"):
        Loop(*parts).carry_out(Note, 3)


def test_the_error_of_a_function_that_carries_out_ends_the_run_unchanged(parts):
    model, optimizer = parts
    loop, error = Loop(model, optimizer, max_epochs=1), OSError("no network")

    def upload(request):
        raise error

    loop.carry_out(Upload, upload)
    ask(loop, "step_end", (Upload(), Evaluate()), name="asker")
    with pytest.raises(OSError, match="no network") as caught:
        train(loop, model, batches(3))
    assert caught.value is error
    assert [(e.request, e.fate) for e in loop.result.ledger] == [("Upload", "expired"), ("Evaluate", "expired")]


def test_one_boundary_makes_one_save_with_all_tags_those_of_the_evaluation_included(parts, tmp_path):
    model, optimizer = parts
    options = {"run_dir": tmp_path / "run", "max_epochs": 1, "saves": "sync"}
    loop = Loop(model, optimizer, evaluate=lambda: {"a": 1.0}, eval_every=2, **options)
    ask(loop, "step_end", Save("step"), every=2, name="steps")
    ask(loop, "eval_end", Save("best"), name="best")
    ask(loop, "epoch_end", Save("epoch"), name="epochs")
    saved = recorded(loop, lambda event, state: getattr(event, "tags", None))
    result = train(loop, model, batches(4))
    assert [line[1:] for line in saved if line[0] == "checkpoint_saved"] == [
        (2, ("best", "step")),
        (4, ("best", "epoch", "step")),
    ]
    assert {(e.who, e.fate) for e in result.ledger} == {(n, "granted") for n in ("steps", "best", "epochs")}


def test_without_a_run_dir_a_save_is_refused_and_without_evaluate_an_evaluation(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_end", (Save(), Evaluate()), name="asker")
    notes = {e.request: e.note for e in train(loop, model, batches(3)).refused}
    assert notes == {"Save": "the loop has no run_dir", "Evaluate": "the loop was given no evaluate="}


def block_checkpoints(loop, folder):
    """Put a file where the folder of checkpoints would be, until a save has failed by it."""
    file = folder / "checkpoints"
    loop.bus.on("train_begin", lambda event, state: file.write_text("in the way") and None)
    loop.bus.on("handler_failed", lambda event, state: file.unlink())


@pytest.mark.parametrize(("policy", "saved", "status"), [("isolate", [2, 3], "completed"), ("stop", [1], "stopped")])
def test_a_save_that_fails_is_the_failure_of_who_asked(parts, tmp_path, policy, saved, status):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", max_epochs=1, saves="sync")
    block_checkpoints(loop, tmp_path / "run")
    ask(loop, "step_end", Save(), name="saver", failure=policy)
    lines = recorded(loop)
    result = train(loop, model, batches(3))
    assert (result.status, result.failure_counts) == (status, {"saver": 1})
    assert [step for name, step in lines if name == "checkpoint_saved"] == saved
    assert [(e.request, e.note.split(":")[0]) for e in result.refused] == [("Save", "FileExistsError")]


def test_a_save_that_fails_for_an_asker_under_raise_ends_the_run(parts, tmp_path):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", max_epochs=1)
    block_checkpoints(loop, tmp_path / "run")
    ask(loop, "step_end", Save(), name="careless")
    ask(loop, "step_end", Save(), name="careful", failure="raise")
    with pytest.raises(FileExistsError) as caught:
        train(loop, model, batches(3))
    assert caught.value.__notes__ == ["while saving the checkpoint of step 1, asked for by careful, careless"]
    assert loop.result.status == "failed"


def test_the_ledger_names_the_update_that_asked_and_the_one_at_which_it_was_decided(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_begin", Stop("seen enough"), once=3, name="asker")
    (entry,) = train(loop, model, batches(9)).ledger
    assert (entry.event, entry.step, entry.decided, entry.fate) == ("step_begin", 3, 3, "granted")
