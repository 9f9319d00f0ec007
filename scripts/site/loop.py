"""Write docs/loop.md: the files of the closed loop in reading order, each with the first sentence of its docstring.

tests/docs/test_site.py compares the page.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"hud": "openhud", "hud_platform": "openhud-platform"}
"""Folder below `packages/` of each import package of the loop."""
PAGE = ROOT / "docs" / "loop.md"
STAGES: list[tuple[str, str, list[str]]] = [
    (
        "A task is declared",
        "A template makes rows of plain data; nothing runs yet.",
        [
            "hud/environment/environment.py",
            "hud/environment/templates/task.py",
            "hud/environment/templates/template.py",
            "hud/environment/templates/prompts.py",
            "hud/environment/templates/answer.py",
            "hud/environment/templates/rewards.py",
            "hud/environment/tools/tool.py",
            "hud/environment/tools/arguments.py",
            "hud/environment/tools/results.py",
            "hud/eval/tasksets/taskset.py",
        ],
    ),
    (
        "A rollout is played",
        "A runtime opens the environment, an agent plays the run, the template grades it.",
        [
            "hud/eval/scheduler.py",
            "hud/eval/rollouts.py",
            "hud/eval/episode.py",
            "hud/eval/rollout_failure.py",
            "hud/eval/runtimes/local.py",
            "hud/eval/runtimes/fork.py",
            "hud/environment/connection.py",
            "hud/environment/run.py",
            "hud/eval/run.py",
            "hud/eval/grade.py",
            "hud/agents/agent.py",
            "hud/agents/agent_forms.py",
            "hud/agents/tool_loop.py",
            "hud/agents/chat_messages.py",
        ],
    ),
    (
        "The policy samples a turn",
        "Messages become token ids, ids become a sampled turn with log-probabilities.",
        [
            "hud/trace/chat_model.py",
            "hud/engine/policy.py",
            "hud/engine/chat/chat_format.py",
            "hud/engine/chat/chat_template.py",
            "hud/engine/chat/prompt_tokens.py",
            "hud/engine/config.py",
            "hud/engine/models/reference_decoder.py",
            "hud/engine/models/attention.py",
            "hud/engine/sample/request.py",
            "hud/engine/sample/sampler.py",
            "hud/engine/sample/scheduler.py",
            "hud/engine/sample/plain_runner.py",
            "hud/engine/sample/kv_cache.py",
            "hud/engine/sample/prefix_cache.py",
            "hud/engine/sample/token_sampling.py",
        ],
    ),
    (
        "The run is recorded",
        "Steps go to a journal on disk, and from there to the store.",
        [
            "hud/trace/steps.py",
            "hud/trace/content.py",
            "hud/client/recording.py",
            "hud/trace/recording/journal.py",
            "hud/client/shipping.py",
            "hud_platform/store/ingest.py",
            "hud/trace/sampled/token_columns.py",
            "hud_platform/store/records.py",
            "hud/eval/job.py",
            "hud/eval/results/job_statistics.py",
        ],
    ),
    (
        "A batch is chosen",
        "Groups with signal become the input of a training call.",
        [
            "hud/train/config.py",
            "hud/train/loop.py",
            "hud/train/rollouts/curriculum.py",
            "hud/train/rollouts/batch.py",
            "hud/graders/group_signal.py",
            "hud/train/inputs.py",
            "hud/train/learner.py",
            "hud/train/client.py",
        ],
    ),
    (
        "A gradient is computed",
        "Rewards become advantages, trajectories become datums, datums become packed passes.",
        [
            "hud/learning/groups.py",
            "hud/learning/advantages.py",
            "hud/learning/datums.py",
            "hud/learning/packing.py",
            "hud/learning/losses/formulas.py",
            "hud/learning/losses/corrections.py",
            "hud_platform/training/session.py",
            "hud_platform/training/gradient_accumulation.py",
            "hud/engine/learn/packed_pass.py",
            "hud/engine/learn/training_pass.py",
            "hud/engine/learn/local_trainer.py",
        ],
    ),
    (
        "The weights are stepped and serve",
        "The step becomes a checkpoint, the checkpoint becomes the head, the head samples.",
        [
            "hud/engine/learn/optimizer.py",
            "hud_platform/training/trained_model.py",
            "hud_platform/models/checkpoint_tree.py",
            "hud_platform/models/checkpoint_files.py",
            "hud_platform/models/loaded_policies.py",
            "hud/engine/sample/weight_swap.py",
            "hud_platform/models/promotion.py",
            "hud/eval/results/paired_differences.py",
            "hud/eval/results/promotion_gate.py",
        ],
    ),
]
"""Stages of the loop: title, what happens, and files from their import package on."""
BEGINNING = """# The closed loop in reading order

The loop from a task to the head that serves: {files} files, about {lines:,} lines, in the order in which data flow: `hud/` is in
`packages/openhud`, `hud_platform/` in `packages/openhud-platform`. [Where things are](architecture.md#where-things-are) finds a place by a question, [the engine](engine.md) the samplers.
"""


def path_of(file: str) -> Path:
    """Return the path of a file such as `hud/eval/run.py`."""
    return ROOT / "packages" / PACKAGES[file.partition("/")[0]] / file


def first_sentence(path: Path) -> str:
    """Return the first line of a module's docstring, without a full stop."""
    described = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return described.split("\n")[0].rstrip(".")


def page() -> str:
    """Return the text of docs/loop.md. Raises `FileNotFoundError` for a file that is no more."""
    paths = [path_of(name) for _, _, names in STAGES for name in names]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    parts = [BEGINNING.format(files=len(paths), lines=round(lines, -3))]
    for title, happens, names in STAGES:
        rows = [
            f"{number}. `{name}`: {first_sentence(path_of(name))}"
            for number, name in enumerate(names, 1)
        ]
        parts.append("\n".join([f"## {title}", "", happens, "", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
