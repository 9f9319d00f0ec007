"""A job's trajectories as a folder that Hugging Face `datasets` loads: `data/train.jsonl`, `pictures/`, and a card.

`load_dataset(FOLDER)` gives one row for each run. The columns are those of trajectories.jsonl; values whose shape differs from
run to run (arguments, states, grades) are JSON texts, as a table has one type for a column. The card, `README.md`, declares
the types, so that none is guessed from the first rows. Needs no package; `datasets` only reads what this writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hud import exact_json

PICTURES = "pictures"
"""Folder of the pictures, relative to the dataset's."""

_CALL = {"id": "string", "type": "string", "function": {"name": "string", "arguments": "string"}}
_MESSAGE = {
    "role": "string",
    "content": "string",
    "reasoning_content": "string",
    "tool_calls": [_CALL],
    "tool_call_id": "string",
}
COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("trace_id", "job_id", "group_id"), "string"),
    "attempt": "int64",
    **dict.fromkeys(("env", "task", "slug", "args", "model", "status", "stop_reason"), "string"),
    "reward": "float64",
    **dict.fromkeys(("failure_kind", "error", "prompt"), "string"),
    "completion": [_MESSAGE],
    "answer": "string",
    "messages": [_MESSAGE],
    "samples": [
        {
            "prompt_token_ids": ["int64"],
            "output_token_ids": ["int64"],
            "output_logprobs": ["float64"],
            "checkpoint": "string",
            "temperature": "float64",
        }
    ],
    "states": "string",
    "pictures": [{"step_id": "int64", "path": "string", "mime_type": "string"}],
    "grade": "string",
    "usage": dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens"), "int64"),
}
"""Type of each column: a dtype, a list of one element's type, or a mapping of fields."""


class DatasetFolder:
    """Writer of a dataset; rows are added one by one, and the card is written last."""

    def __init__(self, folder: Path) -> None:
        """Create the folder. Raises `OSError` where that fails."""
        self.folder = folder
        data = folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = (data / "train.jsonl").open("wb")
        self._rewards: list[float] = []
        self._models: set[str] = set()
        self._tasks: set[str] = set()
        self.rows = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Write one run, given as an object of trajectories.jsonl."""
        row = {name: shaped(line[name], kind) for name, kind in COLUMNS.items()}
        self._file.write(exact_json.dumps(row, option=exact_json.OPT_APPEND_NEWLINE))
        self.rows += 1
        self._tasks.add(str(line["slug"]))
        if line["model"]:
            self._models.add(line["model"])
        if line["reward"] is not None:
            self._rewards.append(line["reward"])

    def close(self, job: Mapping[str, Any]) -> None:
        """End the data, and write the card of the job that the runs are from."""
        self._file.close()
        (self.folder / "README.md").write_text(self._card(job))

    def _card(self, job: Mapping[str, Any]) -> str:
        head = {
            "pretty_name": job["name"],
            "tags": ["openhud", "agents", "trajectories", "reinforcement-learning"],
            "configs": [
                {
                    "config_name": "default",
                    "data_files": [{"split": "train", "path": "data/train.jsonl"}],
                }
            ],
            "dataset_info": {"features": features(COLUMNS)},
        }
        # JSON is YAML, too: quotes and line breaks in names need no rules of their own.
        lines = [f"{key}: {exact_json.dumps(value).decode()}" for key, value in head.items()]
        mean = f"{sum(self._rewards) / len(self._rewards):.3f}" if self._rewards else "not measured"
        facts = [
            ("runs", f"{self.rows:,}"),
            ("tasks", f"{len(self._tasks):,}"),
            ("mean reward", f"{mean} ({len(self._rewards):,} measured)"),
            ("models", ", ".join(sorted(self._models)) or "none named"),
            ("job", job["id"]),
        ]
        table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in facts)
        return (
            "---\n" + "\n".join(lines) + "\n---\n\n"
            f"# {_cell(job['name'])}\n\n"
            "Runs of an agent on tasks, recorded by OpenHUD: one row for each run, with its conversation, token ids, "
            "log-probabilities and reward.\n\n"
            f"| | |\n|---|---|\n{table}\n\n"
            "`messages` is the whole conversation, `completion` the agent's part. The arguments of tool calls, and `args`, "
            "`states` and `grade`, are JSON texts. `samples` has the tokens of each turn as the policy sampled them. Files of "
            f"`pictures` are in the folder `{PICTURES}`. A `reward` of null was not measured: the run failed for a reason that "
            "is not the agent's.\n"
        )


def shaped(value: Any, kind: Any) -> Any:
    """Return a value with exactly the fields of its type; other values of a text column as JSON."""
    if value is None:
        return None
    if isinstance(kind, list):
        return [shaped(element, kind[0]) for element in value]
    if isinstance(kind, dict):
        return {name: shaped(value.get(name), inner) for name, inner in kind.items()}
    if kind == "string":
        return value if isinstance(value, str) else exact_json.dumps(value).decode()
    return value


def features(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the types as the card declares them."""
    return [{"name": name, **_feature(kind)} for name, kind in columns.items()]


def _feature(kind: Any) -> dict[str, Any]:
    if isinstance(kind, list):
        inner = kind[0]
        return {"list": features(inner) if isinstance(inner, dict) else inner}
    return {"struct": features(kind)} if isinstance(kind, dict) else {"dtype": kind}


def _cell(text: str) -> str:
    """Return a text on one line of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
