"""Progress of `hud train`: a live panel on a terminal, one plain line for each step elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hud.cli.output import Column, about, console, count, header, number, row, seconds
from hud.eval.results.held_out_scores import Score
from hud.eval.results.intervals import bounds, with_interval
from hud.train.monitoring.loss_metrics import loss_per_token
from hud.train.monitoring.progress import Phase, Reporter

if TYPE_CHECKING:
    from hud.eval import StopSignal
    from hud.train.run_settings import RunSettings

BARS = "▁▂▃▄▅▆▇█"
_SHOWN = 48
"""Steps in the sparkline."""
_SECONDS_BETWEEN_LINES = 2.0
"""Least time between the lines of supervised steps."""
QUIET_SECONDS = 10.0
"""Time without a line after which the state of the running step is printed; it doubles until the next line of another kind."""


def sparkline(values: Sequence[float]) -> str:
    """Return numbers as a line of bars, from the lowest to the highest of them."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)


class Lines(Reporter):
    """Reporter with a plain line for each event."""

    def __init__(self, config: RunSettings, out: Console) -> None:
        self.config = config
        self.out = out
        self._began, self._first, self._steps = monotonic(), 0, 0
        self._headed = False
        self._shown = 0.0
        """Time of the newest line of a step."""
        self._said, self._patience = self._began, QUIET_SECONDS
        self._doing, self._step, self._total, self._ended = "", 0, 0, 0

    def started(self, run_id: str, first_step: int, steps: int) -> None:
        going = f"going on at step {first_step + 1}" if first_step else "from the head"
        self._say(
            f"training {self.config.model}: run {run_id[:12]}, {count(steps, 'step')}, {going}"
        )
        self._began, self._first, self._steps = monotonic(), first_step, steps

    def phase(self, phase: Phase, step: int, total: int) -> None:
        self._doing, self._step, self._total, self._ended = phase, step, total, 0
        if phase == "examples":
            self._say(f"reading {count(total, 'recorded run')}")

    def run_ended(self, reward: float | None) -> None:
        del reward
        self._ended += 1

    def waited(self) -> None:
        """Print the state of the running step if no line was printed for a while."""
        quiet = monotonic() - self._said
        if not self._doing or quiet < self._patience:
            return
        self._patience *= 2
        if self._doing == "examples":
            runs = count(self._total, "recorded run")
            doing = f"preparing: {self._ended:,} of {runs} read"
            if self._ended >= self._total:
                doing = f"{runs} read; preparing the first step"
        else:
            progress = f", {self._ended:,} of {count(self._total, 'run')}" if self._total else ""
            doing = f"step {self._step + 1}: {self._doing}{progress}"
        self.out.print(f"{doing}, for {about(quiet)}", markup=False)

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        if is_supervised(metrics):
            # Thousands of small steps: not a line for each.
            if step + 1 < self._steps and monotonic() - self._shown < _SECONDS_BETWEEN_LINES:
                return
            self._shown = monotonic()
            # The first step compiles and loads: no measure of the others.
            left = None if step == self._first else self._left(step + 1)
            cells = _supervised_cells(step + 1, self._steps, metrics, left)
        else:
            cells = _cells(step + 1, self._steps, metrics, self._left(step + 1))
        columns = [Column(name, width) for name, width, _ in cells]
        if not self._headed:
            self._headed = True
            self._say(header(columns))
        self._say(row(columns, [text for _, _, text in cells]))

    def _left(self, done: int) -> float | None:
        """Estimated seconds to the end, by this process's steps; None at the end."""
        here = done - self._first
        if here <= 0 or done >= self._steps:
            return None
        return (monotonic() - self._began) / here * (self._steps - done)

    def scored(self, score: Score) -> None:
        self._say(
            f"held-out after {count(score.step, 'step')}  {with_interval(score.mean, score.low, score.high)}  "
            f"{score.runs} runs"
        )
        for part in score.sets if len(score.sets) > 1 else ():
            self._say(
                f"  {part.name}  {with_interval(part.mean, part.low, part.high)}  {part.runs} runs"
            )

    def loss_measured(self, step: int, loss: float, runs: int) -> None:
        self._say(
            f"held-out loss after {count(step, 'step')}  {number(loss)} a token  {count(runs, 'run')}"
        )

    def note(self, text: str) -> None:
        self._said, self._patience = monotonic(), QUIET_SECONDS
        # Contains commands for copying: left to the terminal's wrapping.
        self.out.print(f"note: {text}", markup=False, soft_wrap=True)

    def _say(self, line: str) -> None:
        self._said, self._patience = monotonic(), QUIET_SECONDS
        self.out.print(line, markup=False)


class LivePanel(Lines):
    """Live panel of the training's state."""

    def __init__(self, config: RunSettings, out: Console, stop: StopSignal) -> None:
        super().__init__(config, out)
        self.stop = stop
        self.doing = "starting"
        self.total = self.played = self.step = 0
        self.run_id = ""
        self.rewards: list[float] = []
        self.losses: list[float] = []
        self.scores: list[Score] = []
        self.latest: dict[str, float] = {}

    def started(self, run_id: str, first_step: int, steps: int) -> None:
        self.run_id, self.step = run_id, first_step
        self._began, self._first, self._steps = monotonic(), first_step, steps

    def phase(self, phase: Phase, step: int, total: int) -> None:
        self.doing, self.step, self.total, self.played = phase, step, total, 0

    def run_ended(self, reward: float | None) -> None:
        del reward
        self.played += 1

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        self.step, self.latest = step + 1, metrics
        if "rollout_reward:mean" in metrics:
            self.rewards.append(metrics["rollout_reward:mean"])
        if (loss := loss_per_token(metrics)) is not None:
            self.losses.append(loss)

    def scored(self, score: Score) -> None:
        self.scores.append(score)

    def __rich__(self) -> Panel:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        supervised = is_supervised(self.latest)
        recent = (self.losses if supervised else self.rewards)[-_SHOWN:]
        now = number(recent[-1]) if recent else "–"
        grid.add_row("loss" if supervised else "reward", f"{now}  {sparkline(recent)}")
        if self.config.held_out or self.scores:
            shown = " → ".join(number(score.mean) for score in self.scores[-6:]) or "–"
            last = f"  {bounds(self.scores[-1].low, self.scores[-1].high)}" if self.scores else ""
            grid.add_row("held-out", Text(shown + last))
        figures = _figures(self.latest)[1:]
        half = (len(figures) + 1) // 2
        grid.add_row("learning", "  ".join(figures[:half]) or "–")
        grid.add_row("", "  ".join(figures[half:]))
        hint = (
            "stopping after what is in flight; Ctrl-C again cancels it"
            if self.stop.stopping
            else ""
        )
        doing = f"{self.doing} {self.played}/{self.total}" if self.total else self.doing
        left = self._left(self.step)
        doing += "" if left is None else f"  {about(left)} left"
        grid.add_row(
            "now",
            f"step {min(self.step + 1, self._steps)}/{self._steps}  {doing}  {hint}",
        )
        return Panel(
            Group(grid), title=f"training {self.config.model}", title_align="left", expand=False
        )


@contextmanager
def reporter(config: RunSettings, stop: StopSignal, *, quiet: bool) -> Iterator[Reporter]:
    """Show the training, within the context."""
    out = console()
    if quiet:
        yield Reporter()
    elif not out.is_terminal:
        lines, ended = Lines(config, out), Event()
        watch = Thread(target=_watch, args=(lines, ended), daemon=True)
        watch.start()
        try:
            yield lines
        finally:
            ended.set()
            watch.join()
    else:
        panel = LivePanel(config, out, stop)
        with Live(panel, console=out, refresh_per_second=4, transient=False):
            yield panel


def _watch(lines: Lines, ended: Event) -> None:
    """Print the state of slow steps until the training ends; a thread, as the first step compiles in the event loop."""
    while not ended.wait(1.0):
        lines.waited()


def _figures(metrics: dict[str, float]) -> list[str]:
    """Return the main metrics of a step, the reward first."""
    if not metrics:
        return [""]
    if is_supervised(metrics):
        return [f"{name} {text}" for name, _, text in _supervised_cells(0, 0, metrics, None)[1:-1]]
    groups, flat = metrics.get("groups_drawn:sum", 0), metrics.get("groups_without_spread:sum", 0)
    shown = [
        f"reward {number(metrics.get('rollout_reward:mean'))}",
        *_of_subagents(metrics),
        f"loss {number(loss_per_token(metrics), 4)}",
        f"KL {number(metrics.get('sampler_k3:mean'), 5)}",
        f"entropy {number(metrics.get('entropy:mean'))}",
        f"signal {groups - flat:.0f}/{groups:.0f}",
        f"{metrics.get('tokens_per_second:mean', 0):,.0f} tokens/s",
        f"rollouts {metrics.get('seconds_rollouts:sum', 0):.2f} s",
        f"update {metrics.get('seconds_update:sum', 0):.2f} s",
    ]
    return shown


def _cells(
    step: int, steps: int, metrics: dict[str, float], left: float | None
) -> list[tuple[str, int, str]]:
    """Return a step's row: name, width and text of each column, at most 80 characters in all."""
    groups, flat = metrics.get("groups_drawn:sum", 0), metrics.get("groups_without_spread:sum", 0)
    subagents = metrics.get("subagent_reward:mean")
    made = round(metrics.get("model_step", step))
    if made != step:  # The model had earlier runs.
        more = ("saved as", 9, f"step-{made}")
    elif subagents is not None:
        more = ("subagents", 9, number(subagents))
    else:
        more = ("entropy", 7, number(metrics.get("entropy:mean"), 2))
    return [
        ("step", max(4, len(str(steps))), str(step)),
        more,
        ("reward", 6, number(metrics.get("rollout_reward:mean"))),
        ("loss", 7, number(loss_per_token(metrics), 4)),
        ("KL", 7, f"{metrics.get('sampler_k3:mean', 0):.1e}"),
        ("signal", 6, f"{groups - flat:.0f}/{groups:.0f}"),
        ("tok/s", 5, f"{metrics.get('tokens_per_second:mean', 0):.0f}"),
        ("play", 6, seconds(metrics.get("seconds_rollouts:sum"))),
        ("learn", 6, seconds(metrics.get("seconds_update:sum"))),
        ("left", 6, about(left)),
    ]


def is_supervised(metrics: dict[str, float]) -> bool:
    """Return True for the metrics of a step of supervised training."""
    return "epoch" in metrics


def _supervised_cells(
    step: int, steps: int, metrics: dict[str, float], left: float | None
) -> list[tuple[str, int, str]]:
    """Return the row of a supervised step: name, width and text of each column."""
    took = metrics.get("seconds:sum", 0.0)
    tokens = metrics.get("action_tokens:sum", 0.0) / took if took else 0.0
    return [
        ("step", max(4, len(str(steps))), str(step)),
        ("epoch", 6, number(metrics["epoch"], 2)),
        ("loss", 7, number(loss_per_token(metrics), 4)),
        ("rate", 8, f"{metrics.get('learning_rate', 0):.1e}"),
        ("tok/s", 6, f"{tokens:.0f}"),
        ("took", 6, seconds(took)),
        ("left", 6, about(left)),
    ]


def _of_subagents(metrics: dict[str, float]) -> list[str]:
    if "subagent_reward:mean" not in metrics:
        return []
    return [f"subagents {number(metrics['subagent_reward:mean'])}"]
