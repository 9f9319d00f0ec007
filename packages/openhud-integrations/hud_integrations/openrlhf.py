"""OpenRLHF: an agent executor that plays tasks of this library, and the data set with their references.

The file that `--train.agent_func_path` names:

    from hud_integrations.openrlhf import agent_executor
    AgentExecutor = agent_executor("env.py")

Needs `pip install openrlhf` alongside `openhud[train]`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.errors import RolloutError, UsageError
from hud.eval import Taskset
from hud.exchange.left_out import LeftOut
from hud.trace import new_id
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.shared.task_prompts import prompt_messages
from hud_integrations.shared.task_reference import reference_of, runtime_of, task_of

_REMEMBERED = 1000


def agent_executor(
    environment: str,
    *,
    runtime: str = "local",
    agent: Mapping[str, Any] | None = None,
    name: str = "openrlhf",
) -> type[Any]:
    """Return the class `AgentExecutor` for an environment's file, or for `tcp://HOST:PORT`.

    `runtime`: `local` or `fork`. `agent`: settings of the tool loop, those of `AgentConfig`. `name`: of the recorded job.
    """
    from openrlhf.utils.agent import AgentExecutorBase

    from hud.agents.types import AgentConfig

    config = AgentConfig(**dict(agent or {}))
    provider = runtime_of(environment, runtime)
    groups: dict[int, tuple[Any, str]] = {}

    class AgentExecutor(AgentExecutorBase):  # type: ignore[misc]
        async def execute(
            self,
            prompt: Any,
            label: str,
            sampling_params: Any,
            max_length: int,
            hf_tokenizer: Any,
            llm_engine: Any,
            images: Any = None,
        ) -> dict[str, Any]:
            """Play the task of a label; returns the tokens of its run, and its reward on all of them."""
            from hud.agents.tool_loop import ToolLoopAgent
            from hud.eval import Run
            from hud.eval.rollouts import carry_out
            from hud_integrations.shared.jobs import job_of

            task = task_of(_parsed(label))
            job = await job_of(name, "training")
            # The samples of a prompt share one object of sampling parameters, and nothing else says that they do.
            group = groups.setdefault(id(sampling_params), (sampling_params, new_id()))[1]
            while len(groups) > _REMEMBERED:
                groups.pop(next(iter(groups)))
            run = Run(task=task, job_id=job.id, group_id=group, recorder=job.recorder)
            model = _model(name, sampling_params, max_length, hf_tokenizer, llm_engine)
            run = await carry_out(run, ToolLoopAgent(model, config), provider)
            await job.recorder.flush()
            return {
                "prompt": prompt,
                "label": label,
                "images": images,
                "mm_train_inputs": None,
                **_response(run, model.chat.end_id, sampling_params.logprobs is not None),
            }

    return AgentExecutor


def _parsed(label: Any) -> dict[str, Any]:
    try:
        parsed = exact_json.loads(label)
    except (exact_json.JSONDecodeError, TypeError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {}


def _model(name: str, params: Any, max_length: int, tokenizer: Any, engine: Any) -> Any:
    """Return OpenRLHF's engine as a model of the tool loop. Raises `UsageError` for a cut distribution."""
    from hud_integrations.shared.token_model import Sampled, TokenModel, chat_format

    if getattr(params, "top_p", 1.0) != 1.0 or getattr(params, "top_k", -1) not in (-1, 0):
        raise UsageError(
            "The rollouts' top_p and top_k cut the distribution that is trained on; leave them at 1.0 and -1."
        )
    own = params.max_tokens

    async def generate(prompt: list[int], most: int, request: str) -> Sampled:
        del request
        turn = copy(params)
        turn.max_tokens = most if own is None else min(own, most)
        output = (await engine.generate(prompt, turn, multi_modal_data=None)).outputs[0]
        ids = list(output.token_ids)
        # Without logprobs zeros are in their place, which the trainer does not read.
        candidates = output.logprobs or [None] * len(ids)
        logprobs = [
            0.0 if candidate is None else float(candidate[token].logprob)
            for token, candidate in zip(ids, candidates, strict=True)
        ]
        return Sampled(ids, logprobs)

    return TokenModel(
        name=name,
        chat=chat_format(tokenizer, tokenizer.name_or_path),
        generate=generate,
        prompt_tokens=max_length - 1,
        response_tokens=max_length,
        total_tokens=max_length,
        temperature=float(getattr(params, "temperature", 1.0)),
    )


def _response(run: Any, end_id: int, with_logprobs: bool) -> dict[str, Any]:
    """Return a run in OpenRLHF's form; nothing of one that was not measured is trained on."""
    from hud.learning.failed_runs import failure_of
    from hud_integrations.shared.token_sequences import own_sequences

    failure = failure_of(run.reward, run.failure_kind, run.trace.stop_reason)
    sequences = own_sequences(run)
    if len(sequences) > 1:
        warnings.warn(
            f"Run {run.trace_id} has {len(sequences)} token sequences, and OpenRLHF takes one: the last.",
            stacklevel=2,
        )
    tokens, ranges, logprobs = [end_id, end_id], [], [0.0, 0.0]
    if sequences:
        last = sequences[-1]
        tokens, logprobs = last.tokens.tolist(), last.logprobs.tolist()
        ranges = _ranges(last.mask.tolist())
    reward = float(run.reward or 0.0)
    return {
        "reward": reward,
        "scores": reward,
        "observation_tokens": tokens,
        "action_ranges": ranges if failure is None else [],
        "rollout_log_probs": logprobs if with_logprobs else None,
        "truncated": run.trace.stop_reason == "length",
        "extra_logs": {"hud_unmeasured": float(failure is not None)},
    }


def _ranges(mask: list[float]) -> list[tuple[int, int]]:
    """Return the (start, end) of each stretch of sampled tokens."""
    edges = [
        place
        for place in range(len(mask) + 1)
        if (mask[place - 1] if place else 0) != (mask[place] if place < len(mask) else 0)
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))


def write_rows(taskset: Taskset, output: Path) -> tuple[int, list[LeftOut]]:
    """Write a line for each task, `{"prompt", "label"}`; returns their number, and the tasks that were left out.

    Raises `UsageError` if no task is left.
    """
    lines: list[bytes] = []
    left_out: list[LeftOut] = []
    for task in taskset:
        try:
            prompt = "\n\n".join(message.text for message in wait_for(prompt_messages(task)))
        except (RolloutError, UsageError) as error:
            left_out.append(
                LeftOut(task.slug, f"its prompt could not be made: {error}", is_task=True)
            )
            continue
        row = {"prompt": prompt, "label": exact_json.dumps(reference_of(task)).decode()}
        lines.append(exact_json.dumps(row, option=exact_json.OPT_APPEND_NEWLINE))
    if not lines:
        reason = left_out[0].part if left_out else "there is none"
        raise UsageError(f"No task of {taskset.name!r} can be exported: {reason}.")
    output.write_bytes(b"".join(lines))
    return len(lines), left_out
