"""One run's conversation: where it is, what was called, and the instances of the APIs that it works on."""

from __future__ import annotations

import copy
import math
import uuid
from typing import Any

from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from hud.trace import ToolSpec
from hud_benchmarks.bfcl.dialogues import Dialogue, functions

LARGEST_WORK = {"precision": 1000, "exponent": 10_000, "base": 10**12}
"""Largest absolute values of arguments that bound the work of the package's mathematics, which has no limit itself."""
LONGEST_CALL = 20_000
"""Characters of a call; those of the solutions have at most 7,000."""
MOST_ENTRIES = 5_000
"""Files and folders under the root, from which on nothing is copied: every copy of a folder in a copy may double them."""


class Talk:
    """State of one run.

    The package keeps the instances of its API classes as globals of a module, named after the model and the entry: a
    model name of its own gives each run its own, and `close` removes them. Instances of long contexts share parts with
    the module that they come from, bookings among them, so each is replaced by a deep copy before it is used.
    """

    def __init__(self, dialogue: Dialogue) -> None:
        self.dialogue = dialogue
        self.model_name = f"run{uuid.uuid4().hex}"
        self.turn = 0
        self.over = False
        self.calls: list[list[list[str]]] = [[]]
        """Calls of each turn so far; a step of the checker's for each call."""
        self.specs = {name: spec for api in dialogue.apis for name, spec in functions(api).items()}
        self._bring_up(self.model_name, graded=False)

    def offered(self) -> list[ToolSpec]:
        """Return the functions that may be called in this turn."""
        since = self.dialogue.functions
        return [spec for name, spec in self.specs.items() if since[name] <= self.turn]

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a function of the APIs and return its result, as the package renders it.

        Raises `ValueError` for arguments that cannot be written as literals, or would compute for ever, and for a copy in a
        full file system.
        """
        _check(arguments)
        # The package puts an instance's name before every known name that a parenthesis follows, in text as well.
        written = [f"{key}={value!r}".replace("(", r"\x28") for key, value in arguments.items()]
        call = f"{name}({', '.join(written)})"
        if len(call) > LONGEST_CALL:
            raise ValueError(f"a call has at most {LONGEST_CALL:,} characters")
        if name == "cp" and self._entries() > MOST_ENTRIES:
            raise ValueError("No space left on device")
        (result,) = self._execute([call], self.model_name, graded=False)
        self.calls[-1].append([call])
        return result

    def reply(self) -> str | None:
        """End the turn, and return the user's next message; None where there is none."""
        if self.turn + 1 >= len(self.dialogue.turns):
            self.over = True
            return None
        self.turn += 1
        self.calls.append([])
        return self.dialogue.turns[self.turn]

    def verdict(self) -> dict[str, Any]:
        """Return what the package's checker says of all calls: `{"valid": bool, "error_type", "error_message"}`."""
        for name in (self.model_name, f"{self.model_name}_ground_truth"):
            self._bring_up(name, graded=True)
        unreached = len(self.dialogue.turns) - len(self.calls)
        try:
            verdict: dict[str, Any] = multi_turn_checker(
                [*self.calls, *([] for _ in range(unreached))],
                self.dialogue.solution,
                self.dialogue.entry,
                self.dialogue.id.rpartition("_")[0],
                self.model_name,
            )
        except Exception as error:
            # Solutions are compared without one: the agent left a state behind that cannot be compared, such as
            # folders nested too deeply.
            problem = f"The state could not be compared: {type(error).__name__}: {error}"
            return {"valid": False, "error_type": "incomparable_state", "error_message": problem}
        return verdict

    def _bring_up(self, model_name: str, *, graded: bool) -> None:
        """Make the instances for a model name that has none yet."""
        module_names = vars(multi_turn_utils)
        before = set(module_names)
        self._execute([], model_name, graded=graded)
        for name in set(module_names) - before:
            module_names[name] = copy.deepcopy(module_names[name])

    def _execute(self, calls: list[str], model_name: str, *, graded: bool) -> list[str]:
        results, _ = multi_turn_utils.execute_multi_turn_func_call(
            calls,
            self.dialogue.entry["initial_config"],
            self.dialogue.apis,
            model_name,
            self.dialogue.id,
            long_context="long_context" in self.dialogue.id,
            is_evaL_run=graded,
        )
        return [str(result) for result in results]

    def _entries(self) -> int:
        """Return the number of files and folders of the run, counted up to `MOST_ENTRIES`."""
        instance = f"{self.model_name}_{self.dialogue.id}_GorillaFileSystem_instance"
        ahead = [vars(multi_turn_utils)[instance].root]
        count = 0
        while ahead and count <= MOST_ENTRIES:
            count += 1
            ahead += getattr(ahead.pop(), "contents", {}).values()
        return count

    def close(self) -> None:
        """Remove the run's instances."""
        module_names = vars(multi_turn_utils)
        for name in [name for name in module_names if name.startswith(self.model_name)]:
            del module_names[name]


def _check(arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no name of an argument")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number")
        if isinstance(value, int | float) and abs(value) > LARGEST_WORK.get(name, math.inf):
            raise ValueError(f"{name} must be at most {LARGEST_WORK[name]:,}")
