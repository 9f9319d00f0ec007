"""The report of an improvement: gain and cost of each rung, and whether training was worth it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hud.eval.results.intervals import with_interval
from hud.train.improvement.measurement import Standing
from hud.train.prompt_search.judgement import Judgement

Outcome = Literal["promoted", "held", "skipped", "stopped"]
_WORDS = {
    "prompt": "the prompt",
    "imitate": "imitating its best runs",
    "distil": "distillation",
    "reinforce": "reinforcement",
}


@dataclass
class RungReport:
    """Result of a rung."""

    name: str
    outcome: Outcome
    reason: str
    steps: int = 0
    """Optimizer steps, or iterations of the search of a prompt."""
    spent: dict[str, Any] = field(default_factory=dict)
    """Rollouts, dollars and seconds, comparison included."""
    judgement: Judgement | None = None
    model: str | None = None
    """Fork that was trained; None for a prompt."""

    @property
    def sentence(self) -> str:
        """Result of the rung in words."""
        words = _WORDS[self.name]
        if self.steps and self.name in ("distil", "reinforce"):
            words = f"{self.steps} steps of {words}"
        if self.judgement is None or self.judgement.gain is None:
            return f"{words}: {self.outcome}, {self.reason}"
        judged = self.judgement
        gain = with_interval(judged.gain or 0.0, judged.low, judged.high, signed=True)
        verb = "add" if self.steps and self.name in ("distil", "reinforce") else "adds"
        return f"{words} {verb} {gain}: {'promoted' if judged.promoted else 'not promoted'}"


@dataclass
class ImprovementReport:
    """Result of an improvement."""

    run_id: str
    model: str
    standing: Standing | None
    rungs: list[RungReport]
    spent: dict[str, Any]
    budget: str
    looks: int
    """Comparisons among which the error of 5% is divided."""
    held_out: int
    """Number of held-out tasks."""
    finished: bool
    note: str = ""

    @property
    def promoted(self) -> list[str]:
        """Names of the rungs whose result became the head."""
        return [rung.name for rung in self.rungs if rung.outcome == "promoted"]

    @property
    def verdict(self) -> str:
        """The report in a sentence."""
        climbed = [rung.sentence for rung in self.rungs if rung.judgement is not None]
        if not climbed:
            return "Nothing was compared on held-out tasks, so the head stays."
        sentence = "; ".join(climbed)
        trained = [rung for rung in self.rungs if rung.judgement is not None and rung.model]
        if trained and not any(rung.outcome == "promoted" for rung in trained):
            sentence += ". Training was not worth it here"
        return sentence[0].upper() + sentence[1:] + "."

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        rungs = [{**asdict(rung), "sentence": rung.sentence} for rung in self.rungs]
        return {
            **asdict(self),
            "rungs": rungs,
            "promoted": self.promoted,
            "verdict": self.verdict,
        }


def rung_of(values: dict[str, Any]) -> RungReport:
    """Return a recorded rung's report."""
    fields = {name: value for name, value in values.items() if name != "sentence"}
    judged = fields.get("judgement")
    return RungReport(**{**fields, "judgement": judged and Judgement(**judged)})


def report_of(values: dict[str, Any]) -> ImprovementReport:
    """Return a recorded report."""
    fields = {name: value for name, value in values.items() if name not in ("promoted", "verdict")}
    standing = fields["standing"]
    return ImprovementReport(
        **{
            **fields,
            "standing": standing and Standing(**standing),
            "rungs": [rung_of(rung) for rung in fields["rungs"]],
        }
    )
