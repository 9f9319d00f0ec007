"""Reasoning effort: the variables by which a chat template controls its model's reasoning.

Two variables are supported: `enable_thinking` (Qwen3 and similar), a boolean, and `reasoning_effort` (gpt-oss), a word.
The template's source determines which it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from jinja2 import meta, nodes

from hud.errors import UsageError
from hud.trace import ReasoningEffort

_EFFORTS: tuple[str, ...] = get_args(ReasoningEffort)


@dataclass(frozen=True)
class ReasoningSwitch:
    """The reasoning variables of a template."""

    folder: Path
    thinking: bool
    """True if it reads `enable_thinking`."""
    effort: bool
    """True if it reads `reasoning_effort`."""
    knows_none: bool
    """True if it handles the word "none". gpt-oss's does not, and would write the word into the prompt."""

    def takes(self, effort: str) -> bool:
        """Return True if the template has a variable for this effort."""
        return self.thinking or self._writes(effort)

    def refuse(self, effort: str) -> None:
        """Raise `UsageError` for an unknown effort, or one for which the template has no variable."""
        if effort not in _EFFORTS:
            raise UsageError(
                f"reasoning_effort must be one of {', '.join(_EFFORTS)}, not {effort!r}."
            )
        if not self.thinking and not self.effort:
            raise UsageError(
                f"The chat template of {self.folder} reads neither enable_thinking nor reasoning_effort, so "
                f"reasoning_effort={effort!r} would change nothing; leave it out."
            )
        if not self.takes(effort):
            raise UsageError(
                f"The chat template of {self.folder} cannot turn reasoning off; reasoning_effort may be low, medium "
                "or high."
            )

    def variables(self, effort: str | None) -> dict[str, Any]:
        """Return the template's variables for an effort; {} for None, the template's default.

        Raises the errors of `refuse`.
        """
        if effort is None:
            return {}
        self.refuse(effort)
        variables: dict[str, Any] = {"enable_thinking": effort != "none"} if self.thinking else {}
        if self._writes(effort):
            variables["reasoning_effort"] = effort
        return variables

    def _writes(self, effort: str) -> bool:
        return self.effort and (effort != "none" or self.knows_none)


def reasoning_switch(template: nodes.Template, folder: Path) -> ReasoningSwitch:
    """Return the reasoning variables of a parsed template."""
    read = meta.find_undeclared_variables(template)
    words = {
        constant.value
        for constant in template.find_all(nodes.Const)
        if isinstance(constant.value, str)
    }
    return ReasoningSwitch(
        folder=folder,
        thinking="enable_thinking" in read,
        effort="reasoning_effort" in read,
        knows_none="none" in words,
    )
