"""Purpose of a job: its values, and which code opens jobs with them.

- `evaluation`: `hud.eval.job.Job.start`, without another one
- `training`, rollouts to learn from: `hud.train.loop`, the searches of prompts and of improvements, and integrations of other trainers
- `held_out`, a training run's score on tasks that it does not learn from: `hud.train.rollouts.sampling`
- `subagent`, runs that another agent's calls started: `hud.eval.subagents`

The platform stores it in the column `jobs.purpose` (`hud_platform.store.tables`).
"""

from __future__ import annotations

from typing import Literal, get_args

Purpose = Literal["evaluation", "training", "held_out", "subagent"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
