"""Options of a judge of groups, of `hud eval` and `hud grade`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import click

from hud.review.judge_method import Method

if TYPE_CHECKING:
    from hud.review.group_judges import RelativeJudge


def judge_options(function: Any) -> Any:
    """Options of a judge."""
    for option in (
        click.option(
            "--judge-share",
            type=click.FloatRange(0, 1, min_open=True),
            help="Share of the judge in the reward; the rest is the environment's grade.  [default: 1]",
        ),
        click.option(
            "--criteria",
            multiple=True,
            metavar="TEXT[=WEIGHT]",
            help="A criterion of a judge that is a model.  [default: does what the task asks for, without needless steps]",
        ),
        click.option(
            "--judge-by",
            type=click.Choice(get_args(Method)),
            help="How a model compares the runs.  [default: scores]",
        ),
        click.option(
            "--judge",
            metavar="JUDGE",
            help="Grade all runs of a task together: by a model, a reward model, or path.py:name, a function of `runs`.",
        ),
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class JudgeOptions:
    """A judge as a command names it."""

    name: str
    by: Method | None
    criteria: tuple[str, ...]
    share: float

    @classmethod
    def of(
        cls, name: str | None, by: Method | None, criteria: tuple[str, ...], share: float | None
    ) -> JudgeOptions | None:
        """Return the judge of the options; None without one. Raises `click.UsageError` for options that need one."""
        if name is not None:
            return cls(name, by, criteria, 1.0 if share is None else share)
        if by is not None or criteria or share is not None:
            raise click.UsageError("--judge-by, --criteria and --judge-share go with --judge.")
        return None

    async def open(self, group: int, groups: int, *, quiet: bool) -> RelativeJudge:
        """Return the judge, to be closed; states the number of its requests."""
        from hud.cli.output import console
        from hud.client import connect
        from hud.review.judge_forms import open_judge

        judge = await open_judge(
            connect(),
            self.name,
            by=self.by,
            criteria=self.criteria,
            share=self.share,
            group=group,
        )
        forecast = judge.forecast(group, groups)
        if forecast is not None and not quiet:
            console().print(forecast, markup=False)
        return judge
