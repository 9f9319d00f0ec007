"""Progress of `hud improve`: a line for each note; of `hud optimize`: also one for each iteration."""

from __future__ import annotations

from rich.console import Console

from hud.cli.output import number
from hud.eval.results.held_out_scores import Score
from hud.eval.results.intervals import with_interval
from hud.train.monitoring.progress import Reporter


class Notes(Reporter):
    """Reporter with a plain line for each note."""

    def __init__(self, out: Console) -> None:
        self.out = out

    def note(self, text: str) -> None:
        self.out.print(text, markup=False, highlight=False, soft_wrap=True)


class SearchLines(Notes):
    """Reporter with a plain line for each iteration, too."""

    def __init__(self, model: str, out: Console) -> None:
        super().__init__(out)
        self.model = model

    def started(self, run_id: str, first_step: int, steps: int) -> None:
        del steps
        going = f", going on after {first_step} iterations" if first_step else ""
        self.note(f"searching a system prompt of {self.model}: run {run_id[:12]}{going}")

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        proposal = metrics.get("proposal_reward:mean")
        tried = "no new proposal" if proposal is None else f"proposal {number(proposal)}"
        verdict = ", accepted" if metrics["accepted"] else ""
        best = number(metrics["best_validation_reward:mean"])
        self.note(
            f"iteration {step + 1}: minibatch {number(metrics['rollout_reward:mean'])}, {tried}{verdict}; best of "
            f"{metrics['candidates']:.0f} on validation tasks {best}; {metrics['rollouts']:,.0f} rollouts"
        )

    def scored(self, score: Score) -> None:
        which = "with the best prompt" if score.step else "with the model's own prompt"
        self.note(f"held-out {which}  {with_interval(score.mean, score.low, score.high)}")
