"""LearningRateMonitor and GradNormMonitor: what they report, when, and that nothing waits for it."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from callbacks import GradNormMonitor, LearningRateMonitor
from eventloop import Bus, EvalEnd, GradientsReady, Priority, StepEnd, TrainState


class Operators(TorchDispatchMode):
    """The names of the operators that torch runs inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def measured(monitor, event, state, **live):
    bus = Bus(failure="raise")
    bus.attach(monitor)
    bus.bind(**live)
    return bus.publish(event, state).apply(state).metrics


def network(*gradients):
    parameters = [torch.nn.Parameter(torch.zeros_like(torch.tensor(g))) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
    return torch.nn.ParameterList(parameters)


# -- LearningRateMonitor -----------------------------------------------------------------------------------------------


def test_the_rate_of_each_group_is_reported_under_its_name():
    metrics = measured(LearningRateMonitor(), StepEnd(), TrainState(lr={"body": 0.1, "head": 0.2}))
    assert dict(metrics) == {"lr/body": 0.1, "lr/head": 0.2}
    assert metrics.fresh == {"lr/body", "lr/head"}


def test_a_group_added_in_mid_run_is_reported_from_then_on():
    monitor = LearningRateMonitor()
    state = TrainState(lr={"a": 0.1})
    assert dict(measured(monitor, StepEnd(), state)) == {"lr/a": 0.1}
    assert dict(measured(monitor, StepEnd(), state.with_lr({"b": 0.2}))) == {"lr/a": 0.1, "lr/b": 0.2}


def test_without_groups_there_is_nothing_to_report():
    assert dict(measured(LearningRateMonitor(log_momentum=False), StepEnd(), TrainState())) == {}


def test_momentum_is_the_first_of_betas_or_momentum_as_it_stands():
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    adam = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=0.2, betas=(0.8, 0.99))
    plain = torch.optim.Adagrad([torch.zeros(1, requires_grad=True)], lr=0.3)
    sgd.param_groups[0]["momentum"] = 0.95
    state = TrainState(lr={"g": 0.1, "d": 0.2, "p": 0.3})
    metrics = measured(
        LearningRateMonitor(log_momentum=True), StepEnd(), state, optimizer={"g": sgd, "d": adam, "p": plain}
    )
    assert dict(metrics) == {"lr/g": 0.1, "lr/d": 0.2, "lr/p": 0.3, "momentum/g": 0.95, "momentum/d": 0.8}


def test_momentum_without_the_optimizer_is_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match=r"by bus\.bind\(optimizer=\.\.\.\): that has 0 groups, state\.lr has 1 \(a\)"):
        measured(LearningRateMonitor(log_momentum=True), StepEnd(), TrainState(lr={"a": 0.1}))


def test_rates_and_momenta_are_gauges_of_which_a_row_wants_the_last():
    assert LearningRateMonitor.gauges == ("lr/", "momentum/")


# -- GradNormMonitor ---------------------------------------------------------------------------------------------------


def test_the_norm_is_that_of_all_gradients_together():
    state = TrainState(update=10)
    metrics = measured(GradNormMonitor(), GradientsReady(), state, model=network([3.0, 0.0], [[4.0], [12.0]]))
    assert metrics["grad_norm"] == 13.0


def test_nobody_waits_for_the_norm():
    model = network([3.0], [4.0])
    with Operators() as operators:
        metrics = measured(GradNormMonitor(1), GradientsReady(), TrainState(update=1), model=model)
        assert metrics.raw("grad_norm").shape == ()
    assert operators.names
    assert not any("_local_scalar_dense" in name for name in operators.names)


def test_a_norm_that_is_there_already_is_not_computed_again():
    state = TrainState(update=1).report(grad_norm=7.0)
    model = network([3.0])
    with Operators() as operators:
        assert measured(GradNormMonitor(1), GradientsReady(), state, model=model)["grad_norm"] == 7.0
    assert operators.names == []


def test_a_norm_of_an_earlier_update_is_no_reason_not_to_measure():
    state = TrainState().report(grad_norm=7.0).begin_update()
    assert measured(GradNormMonitor(1), GradientsReady(), state, model=network([3.0]))["grad_norm"] == 3.0


def test_parameters_without_gradients_do_not_count_and_none_at_all_is_no_report():
    model = network([3.0], [4.0])
    model[1].grad = None
    assert measured(GradNormMonitor(1), GradientsReady(), TrainState(update=1), model=model)["grad_norm"] == 3.0
    model[0].grad = None
    assert dict(measured(GradNormMonitor(1), GradientsReady(), TrainState(update=1), model=model)) == {}


def test_sharded_gradients_are_refused_for_their_norm_takes_a_collective():
    from torch import distributed
    from torch.distributed.tensor import distribute_tensor

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = network([3.0, 4.0])
        mesh = distributed.init_device_mesh("cpu", (1,))
        sharded = torch.nn.Parameter(distribute_tensor(model[0].detach(), mesh))
        sharded.grad = distribute_tensor(model[0].grad, mesh)
        with pytest.raises(TypeError, match="the gradients are sharded; let the loop clip, which reports their norm"):
            measured(
                GradNormMonitor(1), GradientsReady(), TrainState(update=1), model=torch.nn.ParameterList([sharded])
            )
    finally:
        distributed.destroy_process_group()


def test_a_norm_that_is_not_finite_is_reported_as_it_is():
    metrics = measured(GradNormMonitor(1), GradientsReady(), TrainState(update=1), model=network([math.nan]))
    assert math.isnan(metrics["grad_norm"])


def test_every_tenth_update_is_measured_and_the_attaching_user_may_say_otherwise():
    measured_at = {}
    for name, keywords in {"default": {}, "own": {"every": 4}}.items():
        bus, state = Bus(), TrainState()
        bus.attach(GradNormMonitor(), **({"options": {"gradients_ready": keywords}} if keywords else {}))
        bus.bind(model=network([3.0]))
        for _ in range(20):
            state = state.begin_update()
            state = bus.publish(GradientsReady(), state).apply(state)
            if "grad_norm" in state.metrics.fresh:
                measured_at.setdefault(name, []).append(state.update)
            state = state.end_update()
    assert measured_at == {"default": [10, 20], "own": [4, 8, 12, 16, 20]}


def test_without_a_model_the_norm_is_an_error_that_says_what_to_do():
    bus = Bus(failure="raise")
    bus.attach(GradNormMonitor(1))
    with pytest.raises(ValueError, match=r"GradNormMonitor needs the model: call bus\.bind\(model=\.\.\.\)"):
        bus.publish(GradientsReady(), TrainState(update=1))


# -- both --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("monitor", [LearningRateMonitor(), GradNormMonitor()])
def test_monitors_stand_before_the_users_handlers_and_the_loggers(monitor):
    bus = Bus()
    bus.attach(monitor)
    orders = [s.priority for kind in (GradientsReady, StepEnd, EvalEnd) for s in bus.order(kind)]
    assert orders == [Priority.MEASURE]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradNormMonitor(0), "GradNormMonitor: every=0 must be a whole number >= 1"),
        (lambda: GradNormMonitor(2.5), r"GradNormMonitor: every=2\.5 must be a whole number >= 1"),
        (lambda: LearningRateMonitor(1), "LearningRateMonitor: log_momentum=1 must be True or False"),
    ],
)
def test_arguments_are_checked_at_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()
