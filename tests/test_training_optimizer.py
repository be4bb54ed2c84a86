import math

import pytest
import torch

from clawrl.training.optimizer import MasterAdamW

torch.set_num_threads(1)


def optimizer(*parameters: torch.nn.Parameter, lr: float = 1e-3, clip: float = 1e9, decay: float = 0.0) -> MasterAdamW:
    return MasterAdamW(
        [(f"p{i}", p) for i, p in enumerate(parameters)],
        learning_rate=lr,
        betas=(0.9, 0.98),
        eps=1e-8,
        weight_decay=decay,
        max_grad_norm=clip,
    )


def give(opt: MasterAdamW, parameter: torch.nn.Parameter, value: float) -> None:
    parameter.grad = torch.full_like(parameter, value)
    opt.collect()


def test_updates_below_bfloat16_resolution_add_up_in_the_masters() -> None:
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    lost = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    opt, plain = optimizer(parameter), torch.optim.AdamW([lost], lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0)
    for _ in range(20):
        give(opt, parameter, 1.0)
        assert opt.step(opt.grad_norm())
        lost.grad = torch.ones_like(lost)
        plain.step()
    assert torch.equal(lost, torch.ones_like(lost))
    assert parameter.tolist() == pytest.approx([0.98] * 4, abs=0.003)


def test_micro_batch_gradients_add_up_in_float32() -> None:
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    opt = optimizer(parameter)
    give(opt, parameter, 1.0)
    for _ in range(8):
        give(opt, parameter, 2**-9)
    assert opt.grad_norm() == 1.0 + 8 * 2**-9


def test_a_float32_parameter_is_its_own_master_and_steps_like_adamw() -> None:
    parameter = torch.nn.Parameter(torch.tensor([[1.0, -2.0]]))
    twin = torch.nn.Parameter(parameter.detach().clone())
    opt = optimizer(parameter, decay=0.1)
    plain = torch.optim.AdamW([twin], lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1)
    assert opt.masters["p0"].data_ptr() == parameter.data_ptr()
    for value in (0.5, -2.0, 1.0):
        give(opt, parameter, value)
        opt.step(opt.grad_norm())
        twin.grad = torch.full_like(twin, value)
        plain.step()
    assert torch.equal(parameter, twin)


def test_the_norm_is_global_and_the_gradient_is_clipped_to_it() -> None:
    a, b = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16)), torch.nn.Parameter(torch.zeros(1))
    opt = optimizer(a, b, clip=1.0)
    give(opt, a, 3.0)
    give(opt, b, 4.0)
    assert opt.grad_norm() == pytest.approx(5.0)
    opt.step(5.0)
    moments = [state["exp_avg"].item() for state in opt.state_dict()["adam"]["state"].values()]
    assert moments == pytest.approx([0.06, 0.08], rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused_without_a_trace(bad: float) -> None:
    a, b = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), torch.nn.Parameter(torch.ones(2, 2))
    opt = optimizer(a, b)
    give(opt, a, bad)
    give(opt, b, 1.0)
    norm = opt.grad_norm()
    assert norm == math.inf
    assert not opt.step(norm)
    assert torch.equal(a, torch.ones_like(a)) and torch.equal(b, torch.ones_like(b))
    assert opt.state_dict()["adam"]["state"] == {}
    assert opt.grad_norm() == 0.0


def test_rewinding_takes_over_the_weights_and_forgets_the_moments() -> None:
    whole = {"p0": torch.tensor([0.5, -0.25]), "p1": torch.tensor([[3.0]]), "of a tied head": torch.ones(1)}
    a, b = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), torch.nn.Parameter(torch.ones(1, 1))
    opt = optimizer(a, b, decay=0.1)
    for parameter in (a, b):
        give(opt, parameter, 1.0)
    opt.step(opt.grad_norm())
    give(opt, a, 5.0)
    opt.rewind(whole)
    assert a.tolist() == opt.masters["p0"].tolist() == [0.5, -0.25] and b.tolist() == [[3.0]]
    assert opt.state_dict()["adam"]["state"] == {} and opt.grad_norm() == 0.0
    fresh = [torch.nn.Parameter(torch.tensor([0.5, -0.25]).bfloat16()), torch.nn.Parameter(torch.tensor([[3.0]]))]
    new = optimizer(*fresh, decay=0.1)
    for one, parameters in ((opt, (a, b)), (new, fresh)):
        for parameter in parameters:
            give(one, parameter, -2.0)
        one.step(one.grad_norm())
    assert torch.equal(a, fresh[0]) and torch.equal(b, fresh[1]) and torch.equal(opt.masters["p0"], new.masters["p0"])
    assert whole["p1"].tolist() == [[3.0]]


def test_weights_that_lack_a_parameter_are_refused_before_anything_changes() -> None:
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="lack p1 and 0 more"):
        optimizer(a, b).rewind({"p0": torch.zeros(2)})
    assert a.tolist() == [1.0, 1.0]


def test_a_checkpoint_of_another_model_is_refused() -> None:
    small, large = optimizer(torch.nn.Parameter(torch.ones(2))), optimizer(torch.nn.Parameter(torch.ones(3)))
    with pytest.raises(ValueError, match="another model or another sharding"):
        large.load_state_dict(small.state_dict())


def test_the_learning_rate_comes_from_the_configuration_not_from_the_checkpoint() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    old, new = optimizer(parameter, lr=1e-3), optimizer(torch.nn.Parameter(torch.ones(1)), lr=0.5)
    new.load_state_dict(old.state_dict())
    assert new.state_dict()["adam"]["param_groups"][0]["lr"] == 0.5
