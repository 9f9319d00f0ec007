"""On-policy distillation: a teacher's logprobs are the reference of the KL term, and other tokenizers are refused by name."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import exp, log
from threading import Thread

import pytest
import torch
from tests.train.test_client_training import SIZES, agent, home, played, say

from hud import TrainingClient
from hud.agents import create_agent
from hud.client import connect
from hud.engine.chat.tokenizers.tokenizer_file import load_tokenizer
from hud.engine.pretrained import load_decoder
from hud.errors import UsageError
from hud.eval import Taskset
from hud.learning.datums import sampled_turns
from hud.train.config import TrainConfig, make_config
from hud.train.loop import train
from hud.train.supervised.supervised_run import warm_up

__all__ = ["home"]
TASKS = Taskset("words", [say(word=word) for word in ("red", "blue")])
DISTILLING = {"loss_fn_config": {"kl_advantage_coef": 1.0}, "reward_scale": 0.0}
WHOLE = {"loss_fn_config": {"kl_coef": 1.0, "kl_estimator": 0.0}, "reward_scale": 0.0}
"""The KL over whole distributions."""


@pytest.fixture
async def teacher(home):
    """A fork of `m` that learned to say `red`."""
    for name in ("t", "beginning"):
        await connect().post("/v2/models/fork", {"source_model_id": "m", "name": name})
    from tests.train.supervised.test_held_out_loss import rows_of, written

    file = written(home / "rows.jsonl", *rows_of("red", "red", "blue", "blue"))
    await warm_up("t", file=file, batch=4, epochs=8, lr=1e-2)
    return "t"


async def test_the_loss_of_a_teacher_is_the_reverse_kl_to_it(teacher):
    """lp and lp_ref are those that a client's own pass gives for both models."""
    runs = await played()
    own, other = [(await TrainingClient(name).forward(runs)).data for name in ("m", teacher)]
    gap = sum(
        mine - theirs
        for datum, same in zip(own, other, strict=True)
        for mine, theirs, mask in zip(datum.logprobs, same.logprobs, datum.mask, strict=True)
        if mask
    )
    trainer = TrainingClient("m")
    result = await trainer.forward_backward(runs, teacher=teacher, **DISTILLING)
    # The policy that sampled is the one that learns: every ratio is 1.
    assert result.metrics["loss:sum"] == pytest.approx(gap, rel=1e-4)
    assert result.metrics["reference_kl:mean"] > 0
    base = await trainer.forward_backward(runs, **DISTILLING)
    assert base.metrics["reference_kl:mean"] == pytest.approx(0.0, abs=1e-6)


def distributions(model, runs):
    """Return the logprobs (N, V) at every sampled token of runs, each by itself."""
    registry = connect().embedded.parts.registry
    record = registry.model(model)
    decoder = load_decoder(registry.weights(record, record.head_checkpoint_id).folder).double()
    rows = []
    for sample in (sample for run in runs for sample in sampled_turns(run.trace)):
        prompt, output = sample.prompt_token_ids, sample.output_token_ids
        tokens = torch.tensor([*prompt, *output])
        ends = torch.tensor([0, len(tokens)])
        hidden = decoder.hidden_packed(tokens, torch.arange(len(tokens)), ends)
        rows.append(decoder.logits(hidden).log_softmax(-1)[len(prompt) - 1 : -1])
    return torch.cat(rows).detach()


def joined(rows, tokens):
    """Return the logprobs of some tokens (N, k) and, last, of all others together."""
    named = rows.gather(-1, tokens)
    return torch.cat((named, (1 - named.exp().sum(-1, keepdim=True)).log()), -1)


async def test_the_loss_over_distributions_is_the_kl_of_both_models(teacher):
    """The teacher's 20 likeliest tokens stand alone, all others are one."""
    job = await TASKS.run(agent(), group=2)
    trainer = TrainingClient("m")
    for model in (teacher, "beginning"):  # The second is the student's own weights.
        own, other = distributions("m", job.runs), distributions(model, job.runs)
        likeliest = other.topk(20).indices
        mine, theirs = joined(own, likeliest), joined(other, likeliest)
        gap = (mine.exp() * (mine - theirs)).sum().item()
        result = await trainer.forward_backward(job.runs, teacher=model, **WHOLE)
        assert result.metrics["loss:sum"] == pytest.approx(gap, rel=1e-3, abs=1e-4)
        expected = gap / result.metrics["action_tokens:sum"]
        assert result.metrics["reference_kl:mean"] == pytest.approx(expected, rel=1e-3, abs=1e-5)


async def test_runs_of_groups_without_signal_learn_from_a_teacher(teacher):
    runs = (await TASKS.run(agent(), group=1)).runs
    result = await TrainingClient("m").forward_backward(runs, teacher=teacher, **DISTILLING)
    assert result.num_datums == 2


async def test_a_step_moves_the_student_to_its_teacher(teacher):
    """A step of the loop raises the tokens that the teacher finds likelier, and lowers the others."""
    config = TrainConfig(model="m", teacher=teacher, steps=1, group=2, max_tokens=8, lr=1e-3)
    assert (config.loss_config, config.reward_scale) == (WHOLE["loss_fn_config"], 0.0)
    sampled = make_config({"model": "m", "teacher": teacher, "loss_config": {"kl_advantage_coef": 0.5}})  # fmt: skip
    assert sampled.loss_config == {"kl_advantage_coef": 0.5}
    weighted = make_config({"model": "m", "teacher": teacher, "loss_config": {"kl_coef": 0.5}})
    assert weighted.loss_config == {"kl_coef": 0.5, "kl_estimator": 0.0}
    report = await train(config, tasks=TASKS)
    (row,) = report.history
    assert row["metrics"]["reference_kl:mean"] > 0
    state = (await connect().get(f"/v2/training-runs/{report.run_id}"))["state"]
    (job,) = state["jobs"]
    traces = (await connect().get(f"/v2/jobs/{job}/traces"))["items"]
    runs = [trace["trace_id"] for trace in traces]
    new, own, other = [
        (await TrainingClient(name).forward(runs, group_ids=runs)).data
        for name in ("m", "beginning", teacher)
    ]
    gain = sum(
        (after - before) * (target - before)
        for columns in zip(new, own, other, strict=True)
        for after, before, target in zip(*(datum.logprobs for datum in columns), strict=True)
    )
    assert gain > 0


async def test_teachers_that_cannot_score_its_tokens_are_refused_by_name(home):
    await connect().post(
        "/v2/models/create", {"name": "o", "texts": ["other words"] * 3, "sizes": SIZES}
    )
    runs = await played()
    trainer = TrainingClient("m")
    for name, sentence in {
        "o": "teacher 'o' has another tokenizer than 'm'",
        "m": "'m' cannot be its own teacher",
    }.items():
        with pytest.raises(UsageError, match=sentence):
            await trainer.forward_backward(runs, teacher=name, **DISTILLING)
    with pytest.raises(UsageError, match="no KL term"):
        await trainer.forward_backward(runs, teacher="o")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nobody", "no model 'nobody'"),
        ("o", "teacher 'o' has another tokenizer than 'm'"),
        ("m", "'m' cannot be its own teacher"),
    ],
)
async def test_a_teacher_that_cannot_score_is_refused_before_anything_is_played(
    home, name, sentence
):
    texts = {"name": "o", "texts": ["other words"] * 3, "sizes": SIZES}
    await connect().post("/v2/models/create", texts)
    config = make_config({"model": "m", "teacher": name, "steps": 1})
    with pytest.raises(UsageError, match=sentence):
        await train(config, tasks=TASKS)
    assert (await connect().get("/v2/jobs"))["items"] == []
    assert (await connect().get("/v2/training-runs"))["items"] == []
    await TrainingClient("m").open()  # The lease is free.


def test_a_teacher_needs_a_kl_term():
    with pytest.raises(UsageError, match="no effect without kl_coef or kl_advantage_coef"):
        make_config({"model": "m", "teacher": "t", "loss_config": {"kl_coef": 0.0}})


def test_a_group_of_one_needs_a_teacher():
    assert make_config({"model": "m", "teacher": "t", "group": 1}).group == 1
    with pytest.raises(UsageError, match="group must be at least 2"):
        make_config({"model": "m", "group": 1})


class VllmServer(BaseHTTPRequestHandler):
    """Answers as a vLLM server of the model `m` does.

    Every sampled token has the logprob -0.5; the likeliest tokens are 20 and upwards, with probabilities 1/4, 1/8, ...
    """

    tokenizer = None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            ids = self.tokenizer.encode(body["prompt"], add_special_tokens=False).ids
            answer = {"tokens": ids}
        elif self.path == "/v1/completions":
            top = range(body["prompt_logprobs"])
            likeliest = {str(20 + rank): {"logprob": -log(2) * (rank + 2)} for rank in top}
            scored = [{**likeliest, str(token): {"logprob": -0.5}} for token in body["prompt"]]
            answer = {"choices": [{"prompt_logprobs": [None, *scored[1:]]}]}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments): ...


@pytest.fixture
async def served(home):
    """A model of a provider, whose address is that of a vLLM server."""
    registry = connect().embedded.parts.registry
    VllmServer.tokenizer = load_tokenizer(registry.model("m").folder).tokenizer
    with ThreadingHTTPServer(("127.0.0.1", 0), VllmServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        provider = {"url": f"http://127.0.0.1:{server.server_port}/v1"}
        await connect().post("/v2/models/provide", {"name": "far", "provider": provider})
        yield "far"
        server.shutdown()


async def test_the_likeliest_tokens_of_a_vllm_server_are_a_distribution(served):
    """Runs are of tokens that the server's list of three may hold, with the sampled token's own logprob."""
    job = await TASKS.run(agent(), group=2)
    rows = distributions("m", job.runs)
    sampled = [
        token
        for run in job.runs
        for sample in sampled_turns(run.trace)
        for token in sample.output_token_ids
    ]
    gap = 0.0
    for row, token in zip(rows, sampled, strict=True):
        listed = {20 + rank: -log(2) * (rank + 2) for rank in range(3)} | {token: -0.5}
        top = sorted(listed, key=lambda other: listed[other], reverse=True)[:3]
        theirs = [exp(listed[other]) for other in top]
        mine = [row[other].exp().item() for other in top]
        for p, q in zip([*mine, 1 - sum(mine)], [*theirs, max(1 - sum(theirs), 1e-6)], strict=True):
            gap += p * (log(p) - log(q))
    whole = {**WHOLE, "loss_fn_config": {**WHOLE["loss_fn_config"], "kl_top": 3.0}}
    result = await TrainingClient("m").forward_backward(job.runs, teacher=served, **whole)
    assert result.metrics["loss:sum"] == pytest.approx(gap, rel=1e-3)


async def test_a_vllm_server_scores_the_tokens_by_its_prompt_logprobs(served):
    runs = await played()
    own = (await TrainingClient("m").forward(runs)).data
    gap = sum(
        lp + 0.5
        for datum in own
        for lp, mask in zip(datum.logprobs, datum.mask, strict=True)
        if mask
    )
    result = await TrainingClient("m").forward_backward(runs, teacher=served, **DISTILLING)
    assert result.metrics["loss:sum"] == pytest.approx(gap, rel=1e-4)
    sizes = {"name": "o", "texts": ["other words"] * 3, "sizes": SIZES}
    await connect().post("/v2/models/create", sizes)
    own_agent = create_agent("o", completion_kwargs={"max_tokens": 4})
    runs = (await TASKS.run(own_agent, group=2)).runs
    with pytest.raises(UsageError, match="teacher 'far' has another tokenizer than 'o'"):
        await TrainingClient("o").forward_backward(runs, teacher=served, **DISTILLING)
