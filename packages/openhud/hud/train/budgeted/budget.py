"""Budgets of a search or an improvement: money, time and rollouts, none of which is exceeded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from time import monotonic
from typing import Any

from hud.errors import UsageError

_AMOUNT = re.compile(
    r"([0-9][0-9,_]*(?:\.[0-9]+)?)\s*(usd|\$|rollouts?|s|m|min|h|d)", re.IGNORECASE
)
# A comma between a digit and three others groups thousands.
_SEPARATOR = re.compile(r"(?<![0-9]),|,(?![0-9]{3}(?![0-9]))")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
SAFETY = 1.5
"""Factor on the measured time and money of a rollout when the next ones are planned."""


@dataclass(frozen=True)
class Budget:
    """Limits; None: no limit of that kind."""

    rollouts: int | None = None
    usd: float | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        """Return a text that `parse_budget` reads."""
        limits = []
        if self.rollouts is not None:
            limits.append(f"{self.rollouts:,} rollouts")
        if self.usd is not None:
            limits.append(f"{self.usd:.6f}".rstrip("0").rstrip(".") + " USD")
        if self.seconds is not None:
            limits.append(f"{self.seconds:,.0f} s")
        return ", ".join(limits)


def parse_budget(text: str) -> Budget:
    """Return the budget of a text such as `5usd`, `2h`, `5000rollouts`, or several with commas. Raises `UsageError`."""
    limits: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in _SEPARATOR.split(text))):
        match = _AMOUNT.fullmatch(part)
        if match is None:
            raise UsageError(
                f"{part!r} is no budget. Write money, time or rollouts: 5usd, 2h, 30m, 5000rollouts; several with commas."
            )
        amount, unit = float(re.sub("[,_]", "", match[1])), match[2].lower()
        if unit in ("usd", "$"):
            name, value = "usd", amount
        elif unit.startswith("rollout"):
            name, value = "rollouts", int(amount)
        else:
            name, value = "seconds", amount * _SECONDS[unit]
        if name in limits:
            raise UsageError(f"The budget {text!r} has two limits of one kind; give one.")
        if value <= 0:
            raise UsageError(f"The budget {part!r} must be above 0.")
        limits[name] = value
    if not limits:
        raise UsageError("The budget is empty. Write 5usd, 2h or 5000rollouts.")
    return Budget(**limits)


@dataclass(frozen=True)
class Spent:
    """Amounts spent."""

    rollouts: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.rollouts + other.rollouts, self.usd + other.usd, self.seconds + other.seconds
        )

    def __sub__(self, other: Spent) -> Spent:
        return Spent(
            self.rollouts - other.rollouts, self.usd - other.usd, self.seconds - other.seconds
        )

    def __str__(self) -> str:
        money = f", {self.usd:.4f} USD" if self.usd else ""
        return f"{self.rollouts:,} rollouts, {self.seconds:,.0f} s{money}"


@dataclass
class Account:
    """Spending against a budget, over all calls of a command that is resumed."""

    budget: Budget
    hour_price: float | None = None
    """Dollars for an hour of the machine; None: only calls of priced models cost money."""
    before: Spent = field(default_factory=Spent)
    """Spent by earlier calls."""
    clock: Callable[[], float] = monotonic
    rollouts: int = 0
    calls_usd: float = 0.0
    played_seconds: float = 0.0
    """Time in which rollouts were played, for estimates of the next ones."""
    played: int = 0
    """Rollouts of this call whose time and money are measured."""
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def spent(self) -> Spent:
        """Amounts spent so far, by all calls."""
        seconds = self.clock() - self.began
        machine = (self.hour_price or 0.0) * seconds / 3_600
        return self.before + Spent(self.rollouts, self.calls_usd + machine, seconds)

    @property
    def seconds_left(self) -> float | None:
        """Time until the budget of time, or the one of money at the machine's price, is used up; None: no limit."""
        spent, limits = self.spent, []
        if self.budget.seconds is not None:
            limits.append(self.budget.seconds - spent.seconds)
        if self.budget.usd is not None and self.hour_price:
            limits.append((self.budget.usd - spent.usd) / self.hour_price * 3_600)
        return min(limits, default=None)

    def reserve(self, rollouts: int) -> None:
        """Count rollouts before they are played: those of a killed process are spent, too."""
        self.rollouts += rollouts

    def settle(self, rollouts: int, usd: float, seconds: float) -> None:
        """Note the money and time of reserved rollouts after they were played."""
        self.played += rollouts
        self.calls_usd += usd
        self.played_seconds += seconds

    def fits(self, rollouts: int) -> bool:
        """Return True if so many further rollouts fit, by the time and money of those so far.

        Before any rollout is measured, money and time cannot be estimated, and only their rest counts.
        """
        budget, spent = self.budget, self.spent
        if budget.rollouts is not None and spent.rollouts + rollouts > budget.rollouts:
            return False
        share = SAFETY * rollouts / self.played if self.played else 0.0
        seconds, usd = share * self.played_seconds, share * self.calls_usd
        usd += (self.hour_price or 0.0) * seconds / 3_600
        left = None if budget.seconds is None else budget.seconds - spent.seconds
        if left is not None and (left <= 0 or seconds > left):
            return False
        return budget.usd is None or (spent.usd < budget.usd and spent.usd + usd <= budget.usd)

    def record(self) -> dict[str, Any]:
        """Return what a later call needs: the amounts spent."""
        return asdict(self.spent)

    def after(self, record: dict[str, Any] | None) -> Account:
        """Return a new account of the same budget that begins with the recorded amounts of an earlier call."""
        return replace(self, before=Spent(**record) if record else Spent())
