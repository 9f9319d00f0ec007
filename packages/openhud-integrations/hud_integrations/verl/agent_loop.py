"""`HudAgentLoop`: an agent loop of verl that plays the task of a row with our tool loop and verl's sampler."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import AgentConfig
from hud.errors import InfrastructureFault, UsageError
from hud.eval import Job, Run
from hud.eval.rollouts import carry_out
from hud.learning.datums import Datum
from hud.learning.failed_runs import failure_of
from hud.trace import SamplingParams, derived_id
from hud_integrations.shared.jobs import job_of
from hud_integrations.shared.task_reference import runtime_of, task_of
from hud_integrations.shared.token_model import Sampled, TokenModel, chat_format
from hud_integrations.shared.token_sequences import sequences_of


class HudAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """One rollout: verl makes an instance for each, with the settings of the agent loop's YAML."""

    def __init__(
        self,
        *args: Any,
        environment: str,
        runtime: str = "local",
        agent: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        """`environment`: the file of the tasks' environment, or `tcp://HOST:PORT`. `runtime`: `local` or `fork`.

        `agent`: settings of the tool loop, those of `AgentConfig`, such as `max_steps`. `max_tokens`: most tokens of one turn; None: of all turns together.
        """
        # Our chat format stands in for verl's token builder, which refuses models that it has no rules for.
        super().__init__(*args, **{**kwargs, "hf_model_type": None})
        self._runtime = runtime_of(environment, runtime)
        self._config = AgentConfig(**dict(agent or {}))
        self._params = SamplingParams(max_tokens=max_tokens)
        self._takes_several = bool(self.config.trainer.get("use_v1", False))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Play the row's task; returns its token sequence, or all of them where verl takes several (V1).

        Raises `UsageError` for a row without a task and for a cut distribution, and `InfrastructureFault` for a run that
        was not measured, where verl then leaves its group out (V1).
        """
        source = str(row.get("data_source") or "tasks")
        task = task_of((row.get("extra_info") or {}).get("hud") or {})
        run = Run(
            task=task,
            job_id=(job := await job_of(f"{source} (verl)", "training")).id,
            group_id=_group_of(job, row),
            attempt=int(row.get("session_id", 0)),
            recorder=job.recorder,
        )
        agent = ToolLoopAgent(self._model(sampling_params), self._config, self._params)
        run = await carry_out(run, agent, self._runtime)
        await job.recorder.flush()
        failure = failure_of(run.reward, run.failure_kind, run.trace.stop_reason)
        if failure is not None and self._takes_several:
            raise InfrastructureFault(
                f"Run {run.trace_id} was not measured ({failure}): {run.error}"
            )
        outputs = [
            self._output(datum, run, measured=failure is None) for datum in sequences_of(run)
        ]
        outputs = outputs or [self._empty(run)]
        if self._takes_several:
            return outputs
        if len(outputs) > 1:
            warnings.warn(
                f"Run {run.trace_id} has {len(outputs)} token sequences, and verl's first trainer takes one: the last. "
                "Set trainer.use_v1=true.",
                stacklevel=2,
            )
        return outputs[-1]

    def _model(self, sampling_params: dict[str, Any]) -> TokenModel:
        params = dict(sampling_params)
        if params.get("top_p", 1.0) != 1.0 or params.get("top_k", -1) not in (-1, 0):
            raise UsageError(
                "rollout.top_p and top_k cut the distribution that is trained on; leave them at 1.0 and -1."
            )
        params["logprobs"] = True

        async def generate(prompt: list[int], most: int, request: str) -> Sampled:
            output = await self.server_manager.generate(
                request_id=request,
                prompt_ids=prompt,
                sampling_params={**params, "max_tokens": most},
            )
            return Sampled(list(output.token_ids)[:most], list(output.log_probs or [])[:most])

        return TokenModel(
            name=str(self.config.actor_rollout_ref.model.path),
            chat=chat_format(self.tokenizer, str(self.config.actor_rollout_ref.model.path)),
            generate=generate,
            prompt_tokens=self.rollout_config.prompt_length,
            response_tokens=self.rollout_config.response_length,
            temperature=float(params.get("temperature", 1.0)),
        )

    def _output(self, datum: Datum, run: Run, *, measured: bool) -> Any:
        """Return a sequence in verl's form; one of a run that was not measured is masked from end to end."""
        first = datum.turns[0][0]
        mask = datum.mask[first:].astype(int).tolist()
        return AgentLoopOutput(
            prompt_ids=datum.tokens[:first].tolist(),
            response_ids=datum.tokens[first:].tolist(),
            response_mask=mask if measured else [0] * len(mask),
            response_logprobs=datum.logprobs[first:].tolist(),
            reward_score=float(run.reward or 0.0),
            num_turns=2 * len(datum.turns),
            metrics=AgentLoopMetrics(),
            extra_fields=_extra(run),
        )

    def _empty(self, run: Run) -> Any:
        """Return a sequence of which nothing is trained on, for a run without any tokens."""
        why = run.error or run.trace.extra.get("context_overflow") or "its agent sampled none"
        warnings.warn(f"Run {run.trace_id} has no tokens: {why}", stacklevel=3)
        end = chat_format(self.tokenizer, str(self.config.actor_rollout_ref.model.path)).end_id
        return AgentLoopOutput(
            prompt_ids=[end],
            response_ids=[end],
            response_mask=[0],
            response_logprobs=[0.0],
            reward_score=float(run.reward or 0.0),
            metrics=AgentLoopMetrics(),
            extra_fields=_extra(run),
        )


def _extra(run: Run) -> dict[str, Any]:
    return {
        "reward_extra_info": {},
        "hud_trace_id": run.trace_id,
        "turn_scores": [],
        "tool_rewards": [],
    }


def _group_of(job: Job, row: dict[str, Any]) -> str | None:
    """Return the group of a prompt's rollouts: those that verl gives one uid."""
    uid = row.get("uid")
    return None if uid is None else derived_id(job.id, str(uid), 0)
