"""Every callback that we ship passes the battery that we give to others."""

import io
import re
from pathlib import Path

import pytest

from eventloop.callbacks import (
    ConsoleLogger,
    EarlyStopping,
    GradNormMonitor,
    JSONLLogger,
    LearningRateMonitor,
    ModelCheckpoint,
    NaNGuard,
    ProgressBar,
    SignalStop,
    TensorBoardLogger,
    TimeLimit,
    WarmupCosine,
)
from eventloop.testing import FakeLoop
from eventloop.testing.checks import Training, answers, callback_checks, small_model

SYNC = {"asks": "it has to know before the weights change; its docstring says that this is a sync an update"}
ALL = {"bounded": "it keeps all checkpoints, and a score of each"}
MILESTONES = {"bounded": "it keeps one checkpoint in so many for ever, and notes which"}
CLOCK = {"resume": "a new process has a new wall clock"}
SIGNALS = dict.fromkeys(
    ("repeats", "two_runs", "resume", "company", "registration"),
    "it answers nothing but a signal; tests/test_signals.py sends some",
)

OURS = {
    "EarlyStopping": (lambda: EarlyStopping("eval_loss"), {}),
    "EarlyStopping max": (lambda: EarlyStopping("score", "max", patience=2, min_delta=0.05, min_steps=5), {}),
    "EarlyStopping restore_best": (lambda: EarlyStopping("eval_loss", patience=2, restore_best=True), {}),
    "ModelCheckpoint": (ModelCheckpoint, {}),
    "ModelCheckpoint best two": (lambda: ModelCheckpoint("eval_loss", save_top_k=2, every_steps=3), {}),
    "ModelCheckpoint all": (lambda: ModelCheckpoint("score", "max", save_top_k=-1, every_epochs=2), ALL),
    "ModelCheckpoint seconds": (lambda: ModelCheckpoint(every_steps=4, every_seconds=3.0, save_top_k=2), {}),
    "ModelCheckpoint tight": (lambda: ModelCheckpoint("eval_loss", every_steps=2, keep_last=2, make_room=True), {}),
    "ModelCheckpoint milestones": (lambda: ModelCheckpoint(every_steps=2, keep_every=6), MILESTONES),
    "WarmupCosine": (lambda: WarmupCosine(2), {}),
    "WarmupCosine to an end": (lambda: WarmupCosine(3, total_steps=10, eta_min=0.01), {}),
    "LearningRateMonitor": (lambda: LearningRateMonitor(log_momentum=True), {}),
    "GradNormMonitor": (lambda: GradNormMonitor(every=3), {}),
    "NaNGuard": (NaNGuard, {}),
    "NaNGuard skip": (lambda: NaNGuard(action="skip", patience=2), SYNC),
    "ProgressBar": (lambda: ProgressBar(io.StringIO()), {}),
    "SignalStop": (SignalStop, SIGNALS),
    "TimeLimit": (lambda: TimeLimit("00:30", margin=5.0), CLOCK),
    "TensorBoardLogger": (lambda: TensorBoardLogger(every=5), {}),
    "JSONLLogger": (lambda: JSONLLogger(every=3, first=True), {}),
    "ConsoleLogger": (lambda: ConsoleLogger(every=4, file=io.StringIO()), {}),
}
CONTRACT = [
    pytest.param(check, id=f"{name}-{check}")
    for name, (make, skip) in OURS.items()
    for check in callback_checks(make, skip=skip)
    if check.name not in skip
]


@pytest.mark.parametrize("check", CONTRACT)
def test_contract(check):
    check()


def test_no_callback_of_ours_is_left_out():
    import callbacks

    checked = {type(make()).__name__ for make, _ in OURS.values()}
    assert checked == {getattr(callbacks, name).__name__ for name in callbacks.__all__}


def test_what_our_callbacks_report_stands_in_the_table_of_stable_keys(tmp_path):
    """Broken by a ``grad_norm`` renamed in the monitor."""
    table = Path(__file__).parents[1].joinpath("docs", "metric-keys.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \|.*?\| ([^|]*) \| [^|]* \| [^|]* \|$", table, re.MULTILINE)
    seen = set()
    for i, (make, _) in enumerate(OURS.values()):
        script = {"metrics": {"loss": 1.0}, "evaluations": {"eval_loss": 1.0, "score": 1.0}, "max_epochs": 3}
        thing = make()
        live = small_model(optimizer=True)
        found = answers(FakeLoop([thing, Training()], run_dir=tmp_path / str(i), **script, **live))
        for key in found.keys:
            name = next(
                row
                for row, by in rows
                if re.fullmatch(row.replace("<group>", ".+"), key) and type(thing).__name__ in by
            )
            seen.add(name)
    assert seen == {"grad_norm", "lr/<group>", "momentum/<group>"}
