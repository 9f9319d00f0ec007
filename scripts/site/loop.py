"""Write docs/loop.md: the files of the closed loop in reading order, each with the first sentence of its docstring.

tests/docs/test_site.py compares the page.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "packages" / "openhud" / "hud"
PAGE = ROOT / "docs" / "loop.md"
STAGES: list[tuple[str, str, list[str]]] = [
    (
        "A task is declared",
        "A template makes rows of plain data; nothing runs yet.",
        [
            "environment/environment.py",
            "environment/templates/task.py",
            "environment/templates/template.py",
            "environment/templates/prompts.py",
            "environment/templates/answer.py",
            "environment/templates/rewards.py",
            "environment/tools/tool.py",
            "environment/tools/arguments.py",
            "environment/tools/results.py",
            "eval/tasksets/taskset.py",
        ],
    ),
    (
        "A rollout is played",
        "A runtime opens the environment, an agent plays the run, the template grades it.",
        [
            "eval/scheduler.py",
            "eval/rollouts.py",
            "eval/episode.py",
            "eval/rollout_failure.py",
            "eval/runtimes/local.py",
            "eval/runtimes/fork.py",
            "environment/connection.py",
            "environment/run.py",
            "eval/run.py",
            "eval/grade.py",
            "agents/agent.py",
            "agents/agent_forms.py",
            "agents/tool_loop.py",
            "agents/chat_messages.py",
        ],
    ),
    (
        "The policy samples a turn",
        "Messages become token ids, ids become a sampled turn with log-probabilities.",
        [
            "trace/chat_model.py",
            "engine/policy.py",
            "engine/chat/chat_format.py",
            "engine/chat/chat_template.py",
            "engine/chat/prompt_tokens.py",
            "engine/config.py",
            "engine/models/reference_decoder.py",
            "engine/models/attention.py",
            "engine/sample/request.py",
            "engine/sample/sampler.py",
            "engine/sample/scheduler.py",
            "engine/sample/plain_runner.py",
            "engine/sample/kv_cache.py",
            "engine/sample/prefix_cache.py",
            "engine/sample/token_sampling.py",
        ],
    ),
    (
        "The run is recorded",
        "Steps go to a journal on disk, and from there to the store.",
        [
            "trace/steps.py",
            "trace/content.py",
            "client/recording.py",
            "trace/recording/journal.py",
            "client/shipping.py",
            "platform/store/ingest.py",
            "trace/sampled/token_columns.py",
            "platform/store/records.py",
            "eval/job.py",
            "eval/results/job_statistics.py",
        ],
    ),
    (
        "A batch is chosen",
        "Groups with signal become the input of a training call.",
        [
            "train/config.py",
            "train/loop.py",
            "train/rollouts/curriculum.py",
            "train/rollouts/batch.py",
            "graders/group_signal.py",
            "train/inputs.py",
            "train/learner.py",
            "train/client.py",
        ],
    ),
    (
        "A gradient is computed",
        "Rewards become advantages, trajectories become datums, datums become packed passes.",
        [
            "learning/groups.py",
            "learning/advantages.py",
            "learning/datums.py",
            "learning/packing.py",
            "learning/losses/formulas.py",
            "learning/losses/corrections.py",
            "platform/training/session.py",
            "platform/training/gradient_accumulation.py",
            "engine/learn/packed_pass.py",
            "engine/learn/training_pass.py",
            "engine/learn/local_trainer.py",
        ],
    ),
    (
        "The weights are stepped and serve",
        "The step becomes a checkpoint, the checkpoint becomes the head, the head samples.",
        [
            "engine/learn/optimizer.py",
            "platform/training/trained_model.py",
            "platform/models/checkpoint_tree.py",
            "platform/models/checkpoint_files.py",
            "platform/models/loaded_policies.py",
            "engine/sample/weight_swap.py",
            "platform/models/promotion.py",
            "eval/results/promotion_gate.py",
        ],
    ),
]
"""Stages of the loop: title, what happens, and files below `packages/openhud/hud/`."""
BEGINNING = """# The closed loop in reading order

The loop from a task to the head that serves: {files} files of `packages/openhud/hud/`, about {lines:,} lines, in the order in which data
flow. [Architecture](architecture.md) has all rooms, [the engine](engine.md) the samplers.
"""


def first_sentence(path: Path) -> str:
    """Return the first line of a module's docstring, without a full stop."""
    described = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return described.split("\n")[0].rstrip(".")


def page() -> str:
    """Return the text of docs/loop.md. Raises `FileNotFoundError` for a file that is no more."""
    paths = [SOURCE / name for _, _, names in STAGES for name in names]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    parts = [BEGINNING.format(files=len(paths), lines=round(lines, -3))]
    for title, happens, names in STAGES:
        rows = [
            f"{number}. `{name}`: {first_sentence(SOURCE / name)}"
            for number, name in enumerate(names, 1)
        ]
        parts.append("\n".join([f"## {title}", "", happens, "", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
