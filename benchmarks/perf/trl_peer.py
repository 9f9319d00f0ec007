"""TRL's `GRPOTrainer` and our loop, on one model folder, step by step in turns.

TRL gets what makes it fastest here: one batch for the whole step, fp32, no gradient checkpointing, no reference
model, no logging and no saving, and the better of one and two threads. Its step is what lies between the callbacks
`on_step_begin` and `on_step_end`: rendering, sampling, rewards, loss, gradient and optimizer. Ours is rollouts in an
environment by the tool loop, recorded in the store as always, rewards, advantages, datums, loss, gradient and
optimizer, and its thread setting is found in the same way.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import records
import shapes
import torch
from datasets import Dataset
from measure import lowest
from sizes import size
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar, set_verbosity_error
from trl import GRPOConfig, GRPOTrainer

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import AgentConfig
from hud.engine.cpu_threads import limit
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.policy import Policy
from hud.engine.pretrained import load_decoder
from hud.engine.sample.options import SamplerOptions
from hud.eval import Job, LocalRuntime, Taskset
from hud.learning.datums import Datum, datums_of, make_batch, payload_of
from hud.learning.wire_types import TrajectoryPayload, TrajectorySample

PROMPTS, GROUP = 8, 8
RATE, CLIP, MAX_NORM = 1e-5, 0.2, 1.0
THREADS = size((1, 2), (1,))
LOSS_BAR = 1e-4


def reward_of(text: str) -> float:
    """Return a reward that random text has spread in: the share of its letters that are different."""
    return len(set(text)) / max(len(text), 1)


def reward(completions: list[list[dict[str, str]]], **_: object) -> list[float]:
    """`reward_of` what the model said last, as TRL asks for it."""
    return [reward_of(messages[-1]["content"]) for messages in completions]


def trl_arguments(
    folder: Path,
    prompts: Sequence[str],
    *,
    dtype: torch.dtype = torch.float32,
    reward: Callable[..., list[float]] = reward,
    **settings: object,
) -> dict[str, object]:
    """Return what a `GRPOTrainer` on this folder takes; `settings` go into its `GRPOConfig`, before the ones below."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in prompts]
    usual: dict[str, object] = {
        "per_device_train_batch_size": PROMPTS * GROUP,
        "num_generations": GROUP,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": MAX_NORM,
        "beta": 0.0,
        "epsilon": CLIP,
        "loss_type": "dapo",
        "scale_rewards": "none",
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(output_dir=output, **usual | settings)
    return {
        "model": AutoModelForCausalLM.from_pretrained(folder, dtype=dtype),
        "reward_funcs": [reward],
        "args": config,
        "train_dataset": Dataset.from_list(rows),
        "processing_class": tokenizer,
    }


class OurStep:
    """A GRPO step as the training loop takes it, on a policy of the same folder."""

    def __init__(
        self,
        folder: Path,
        tasks: Taskset,
        runtime: LocalRuntime,
        config: AgentConfig,
        model_of: Callable[[Policy, int], object],
    ) -> None:
        """`model_of(policy, step)` returns the model that plays a step."""
        self.policy = Policy.load(folder, sampling=SamplerOptions(slots=PROMPTS * GROUP))
        # Nothing ends a turn but its length, as on the other side.
        self.policy.chat.stop_ids = frozenset()
        shapes.settle(self.policy)
        self.trainer = LocalTrainer(self.policy.decoder, beside=self.policy.beside)
        self.tasks, self.runtime = tasks, runtime
        self.config, self.model_of = config, model_of
        self.steps = 0
        self.loop = asyncio.Runner()
        self.job = self.loop.run(Job.start("GRPO steps", group=GROUP))

    def __call__(self, number: int) -> None:
        """Take a step."""
        self.loop.run(self._step(number))

    async def _step(self, number: int) -> None:
        batch = make_batch(
            await self.rollouts(number),
            loss_fn="ppo",
            group_size=GROUP,
            vocab_size=self.policy.decoder.config.vocab_size,
        )
        await asyncio.to_thread(self.update, batch.datums)

    async def rollouts(self, number: int) -> list[TrajectoryPayload]:
        """Play every task `GROUP` times."""
        agent = ToolLoopAgent(self.model_of(self.policy, number), self.config)
        await self.tasks.run(
            agent,
            runtime=self.runtime,
            group=GROUP,
            max_concurrent=PROMPTS * GROUP,
            job=self.job,
        )
        runs = list(self.job.runs)
        self.job.runs.clear()
        failed = [run.error for run in runs if run.error]
        if failed:
            raise SystemExit(f"{len(failed)} rollouts failed; the first: {failed[0]}")
        return [payload_of(run.trace, run.reward) for run in runs]

    def update(self, datums: Sequence[Datum]) -> None:
        """Learn from a step's datums."""
        self.trainer.forward_backward(datums, "ppo", {"epsilon": CLIP, "token_mean": 1})
        with self.policy.exclusive():
            self.trainer.optim_step(RATE, max_grad_norm=MAX_NORM)
            self.steps += 1
            self.policy.checkpoint = f"step-{self.steps}"

    def close(self) -> None:
        """Stop sampling, and close the job."""
        self.policy.close()
        self.loop.run(self.job.finish())
        self.loop.close()


class OurSide:
    """Our steps, taken by a process of their own: in one process, OpenMP's helpers of each side would slow down the other."""

    def __init__(self, make: Callable[[], OurStep], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # Not a daemon: it has children, the sampling processes.
        self._process = context.Process(target=_take_steps, args=(theirs, make, threads))
        self._process.start()
        self._connection.recv()

    def step(self, number: int) -> float:
        """Take a step; return how many seconds it took."""
        self._connection.send(("step", number))
        seconds: float = self._connection.recv()
        return seconds

    def rollouts(self, number: int) -> list[TrajectoryPayload]:
        """Play a step's rollouts, and learn nothing."""
        self._connection.send(("rollouts", number))
        played: list[TrajectoryPayload] = self._connection.recv()
        return played

    def close(self) -> None:
        """End the process."""
        self._connection.send(None)
        self._process.join()


def _take_steps(connection: Connection, make: Callable[[], OurStep], threads: int) -> None:
    quiet()
    limit(sampling=threads, training=threads)
    ours = make()
    connection.send("ready")
    while (asked := connection.recv()) is not None:
        work, number = asked
        if work == "rollouts":
            connection.send(ours.loop.run(ours.rollouts(number)))
            continue
        started = perf_counter()
        ours(number)
        connection.send(perf_counter() - started)
    ours.close()


class ByTurns(TrainerCallback):
    """Takes one of our steps after each of theirs, with each number of threads in turn, and times both.

    Ours has a policy of its own for each number: it may sample with as many processes instead.
    """

    def __init__(self, make: Callable[[], OurStep]) -> None:
        """`make` is called in other processes."""
        self.ours = {count: OurSide(make, count) for count in THREADS}
        self.theirs_seconds: dict[int, list[float]] = {count: [] for count in THREADS}
        self.ours_seconds: dict[int, list[float]] = {count: [] for count in THREADS}

    @staticmethod
    def steps(rounds: int) -> int:
        """Return how many of TRL's steps so many rounds take, the warm-up included."""
        return (rounds + 1) * len(THREADS)

    @staticmethod
    def round_of(step: int) -> int:
        """Return the round, 0 for the warm-up, that a step counted from 0 belongs to."""
        return step // len(THREADS)

    def close(self) -> None:
        """Stop our side."""
        for ours in self.ours.values():
            ours.close()

    def on_step_begin(self, args, state, control, **_) -> None:
        torch.set_num_threads(THREADS[state.global_step % len(THREADS)])
        self.started = perf_counter()

    def on_step_end(self, args, state, control, **_) -> None:
        theirs = perf_counter() - self.started
        step = state.global_step - 1
        count = THREADS[step % len(THREADS)]
        ours = self.ours[count].step(self.round_of(step))
        if self.round_of(step):
            self.theirs_seconds[count].append(theirs)
            self.ours_seconds[count].append(ours)


def train(trl: GRPOTrainer) -> None:
    """Have TRL take its steps, and say nothing about them."""
    assert not trl.model.is_gradient_checkpointing
    trl.remove_callback(PrinterCallback)
    trl.train()


def loss_gaps(trl: GRPOTrainer, folder: Path) -> Mapping[str, tuple[float, float]]:
    """Return, for each loss, |their loss - ours| on TRL's own samples, and the relative gap of the gradients.

    The samples, their logprobs and their advantages are TRL's. Before the losses are computed every weight is moved a
    little, so that ratios are not 1 and some of them are clipped.
    """
    model = trl.model
    rows = [row for row in trl.train_dataset for _ in range(GROUP)]
    inputs = trl._generate_and_score_completions(rows)
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    width = inputs["completion_ids"].shape[1]
    with torch.no_grad():
        sampled, _, _ = trl._get_per_token_logps_and_entropies(model, ids, attended, width)
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * 0.02 * parameter.std())
    inputs["old_per_token_logps"] = sampled
    decoder = load_decoder(folder)
    state = model.state_dict()
    decoder.load_state_dict({name: state[name] for name in decoder.state_dict()})
    datums = _datums(inputs)
    tokens, sequences = sum(datum.actions for datum in datums), len(datums)
    settings = {
        "dapo": ({"token_mean": 1}, tokens),
        "grpo": ({"sequence_mean": 1}, sequences),
        "dr_grpo": ({"dr_grpo_length": trl.max_completion_length}, sequences),
    }
    gaps = {}
    for name, (normalization, divisor) in settings.items():
        trl.loss_type = name
        model.zero_grad()
        theirs = trl._compute_loss(model, inputs)
        theirs.backward()
        trainer = LocalTrainer(decoder)
        measured = trainer.forward_backward(datums, "ppo", {"epsilon": CLIP, **normalization})
        assert measured["clip_fraction:mean"] > 0, "No ratio was clipped: the check is too weak."
        grads = {key: value / divisor for key, value in trainer.gradients().items()}
        apart = sum(
            float((grads[key] - one.grad).square().sum())
            for key, one in model.named_parameters()
            if key in grads
        )
        whole = sum(float(one.square().sum()) for one in grads.values())
        trainer.zero_grad()
        gaps[name] = (
            abs(theirs.item() - measured["loss:sum"] / divisor),
            (apart / whole) ** 0.5,
        )
    return gaps


def _datums(inputs: Mapping[str, torch.Tensor]) -> list[Datum]:
    """Return TRL's samples as ours: each stretch of sampled tokens is a turn."""
    found = []
    for row in range(len(inputs["prompt_ids"])):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
        kept = inputs["completion_mask"][row].bool()
        ids = inputs["completion_ids"][row][kept].tolist()
        logprobs = inputs["old_per_token_logps"][row][kept].tolist()
        drawn = inputs["tool_mask"][row][kept].tolist() if "tool_mask" in inputs else [1] * len(ids)
        samples, start = [], 0
        while start < len(ids):
            end = start
            while end < len(ids) and drawn[end] == drawn[start]:
                end += 1
            if drawn[start]:
                samples.append(
                    TrajectorySample(
                        prompt_token_ids=prompt + ids[:start],
                        output_token_ids=ids[start:end],
                        output_logprobs=logprobs[start:end],
                    )
                )
            start = end
        payload = TrajectoryPayload(samples=samples, reward=0.0)
        advantage = float(inputs["advantages"][row])
        found += [replace(one, traj_idx=row) for one in datums_of(payload, advantage=advantage)]
    return found


def report(turns: ByTurns, gaps: Mapping[str, tuple[float, float]], what: str, bar: float) -> int:
    """Print what was measured; return 1 where a bar is missed."""
    (our_threads, ours), (threads, theirs) = (
        lowest(turns.ours_seconds),
        lowest(turns.theirs_seconds),
    )
    for side, times in (("ours", turns.ours_seconds), ("TRL", turns.theirs_seconds)):
        for count, one in times.items():
            print(f"  {side}, threads {count}: {' '.join(f'{value:.3f}' for value in one)} s")
    print(f"  ours {ours:.3f} s (threads {our_threads}), TRL {theirs:.3f} s (threads {threads})")
    held = records.report(
        f"{what}, TRL's time over ours", theirs / ours, "times", bar=bar, ratio=theirs / ours
    )
    for loss, (gap, apart) in gaps.items():
        print(f"  loss {loss}: apart by {gap:.1e}, its gradients by {apart:.1e} of their norm")
    widest = max(gap for gap, _ in gaps.values())
    same = records.report(f"{what}, gap of the losses", widest, "nats", bar=LOSS_BAR, at_most=True)
    return int(not held or not same)


def quiet() -> None:
    """Keep the peers' notes off the screen, and settings of the shell out of the measurement."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    set_verbosity_error()
    warnings.filterwarnings("ignore")
    disable_progress_bar()
    os.environ.pop("HUD_API_URL", None)
    os.environ.pop("OMP_NUM_THREADS", None)
