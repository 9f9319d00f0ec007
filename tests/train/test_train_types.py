"""The training API's types: strict, exact, and light to import."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

import hud.train
from hud.train import (
    BackwardRequest,
    BuiltinLoss,
    DatumTensors,
    ForwardBackwardRequest,
    ForwardBackwardResult,
    ForwardRequest,
    ForwardResult,
    OptimStepRequest,
    OptimStepResult,
    TrajectoryPayload,
    TrajectorySample,
)


def test_the_builtin_losses_are_those_of_the_api():
    assert list(BuiltinLoss) == ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"]


def test_an_input_is_a_trace_id_or_a_trajectory_and_nulls_stay_out():
    body = {
        "inputs": [
            "0" * 32,
            {
                "samples": [
                    {"prompt_token_ids": [1], "output_token_ids": [2], "output_logprobs": [-0.5]}
                ],
                "reward": 1,
            },
        ],
        "loss_fn_config": {"epsilon": 0.2},
    }
    request = ForwardBackwardRequest.model_validate(body)
    assert request.inputs[0] == "0" * 32
    assert isinstance(request.inputs[1], TrajectoryPayload)
    assert (request.loss_fn, request.reward_scale, request.num_substeps) == (
        "importance_sampling",
        1.0,
        1,
    )
    sent = request.model_dump(exclude_none=True)
    assert "group_size" not in sent
    assert ForwardBackwardRequest.model_validate(sent) == request


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ForwardBackwardRequest, {"inputs": ["t"], "los_fn": "ppo"}),
        (ForwardBackwardRequest, {"inputs": []}),
        (ForwardBackwardRequest, {"inputs": ["t"], "group_size": 0}),
        (ForwardBackwardRequest, {"inputs": [{"samples": [], "reward": 0}]}),
        (ForwardBackwardRequest, {"inputs": ["t"], "advantages": {"divide": True}}),
        (ForwardRequest, {"inputs": ["t"], "loss_fn": "ppo"}),
        (OptimStepRequest, {"learning_rate": 0}),
        (OptimStepRequest, {"learning_rate": 1e-4, "betas": [0.9, 0.95]}),
        (BackwardRequest, {"forward_id": "f"}),
        (TrajectorySample, {"output_token_ids": [1], "text": "x"}),
    ],
)
def test_requests_are_strict(kind, body):
    with pytest.raises(ValidationError):
        kind.model_validate(body)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (ForwardBackwardResult, {"metrics", "num_datums"}),
        (ForwardResult, {"forward_id", "data"}),
        (OptimStepResult, {"step", "checkpoint_id", "sampler_path", "state_path", "model"}),
        (
            DatumTensors,
            {"reward", "traj_idx", "group_idx", "logprobs", "sampling_logprobs", "mask"},
        ),
    ],
)
def test_results_have_exactly_the_keys_that_clients_accept(kind, keys):
    assert set(kind.model_fields) == keys


def test_the_optimizers_defaults():
    request = OptimStepRequest(learning_rate=1e-4)
    assert (request.beta1, request.beta2, request.eps, request.weight_decay) == (
        0.9,
        0.95,
        1e-8,
        0.0,
    )


@pytest.mark.parametrize("name", [name for name in hud.train.__all__ if name != "TrainingClient"])
def test_every_exported_name_is_there(name):
    assert getattr(hud.train, name) is not None


@pytest.mark.slow
def test_batches_are_made_without_torch():
    code = "import hud.train as t, sys; t.make_batch; t.available_losses(); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
