"""Prices of model calls: the user's own in `$HUD_HOME/prices.json`, those of the package genai-prices, and `prices.json`.

Prices are dollars per million tokens, as of today. `prices.json` has models that genai-prices lacks. The user's file has the same
form and takes precedence, name by name:

    {"my-model": {"input": 0.4, "cached": 0.04, "output": 1.6}}

The cost of a model without a price is None, not 0.
"""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from hud import settings
from hud.errors import UsageError
from hud.trace import Usage

if TYPE_CHECKING:
    from genai_prices.types import TieredPrices

_TABLE = Path(__file__).with_name("prices.json")
_DATED = re.compile(r"[-@](\d{4}-?\d{2}-?\d{2}|\d{2}-\d{4}|\d{4}|latest)$")
"""Suffix of a model's pinned version."""


class TokenCounts(NamedTuple):
    """Tokens of a call; `prompt` counts all its tokens, `cached` and `written` among them."""

    prompt: int
    completion: int
    cached: int = 0
    """Prompt tokens read from a cache."""
    written: int = 0
    """Prompt tokens written to a cache."""

    def usage(self, cost_usd: float | None = None) -> Usage:
        """Return the counts with a cost in dollars."""
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            cached_tokens=self.cached,
            cost_usd=cost_usd,
        )

    def priced(self, model: str) -> Usage:
        """Return the counts with their cost by the price table."""
        return self.usage(cost_usd(model, self))


class Rates(BaseModel):
    """Dollars per million tokens of each kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float
    output: float
    cached: float | None = None
    """Prompt tokens read from a cache; default: `input`."""
    cache_write: float | None = None
    """Prompt tokens written to a cache; default: `input`."""

    def cost_usd(self, prompt: int, completion: int, cached: int = 0, written: int = 0) -> float:
        """Return the cost of a call; `prompt` counts all its tokens, including `cached` and `written`."""
        fresh = max(0, prompt - cached - written)
        cached_rate = self.input if self.cached is None else self.cached
        written_rate = self.input if self.cache_write is None else self.cache_write
        dollars = fresh * self.input + cached * cached_rate + written * written_rate
        return (dollars + completion * self.output) / 1e6


class LongRates(Rates):
    """Rates of calls with a long prompt."""

    above: int
    """Minimum prompt tokens; the rates apply to the whole call."""


class Price(Rates):
    """Prices of a model's tokens."""

    long: LongRates | None = None


_Prices = TypeAdapter(dict[str, Price])


def price_of(model: str) -> Price | None:
    """Return a model's price; a provider prefix and a date suffix of the name are ignored."""
    own = settings.load().home / "prices.json"
    local = _read(own, own.stat().st_mtime_ns) if own.is_file() else {}
    plain = model.rpartition("/")[2]
    for name in (model, plain, _DATED.sub("", plain)):
        price = local.get(name) or _published(name, date.today()) or _read(_TABLE, 0).get(name)
        if price is not None:
            return price
    return None


@lru_cache(maxsize=1024)
def _published(name: str, day: date) -> Price | None:
    """Return the price of a provider's model by genai-prices, cached for a day: prices change."""
    del day
    from genai_prices import Usage as Tokens  # Loaded with the first price, 0.2 s.
    from genai_prices import calc_price

    try:
        listed = calc_price(Tokens(), name).model_price
    except LookupError:
        return None
    tokens = {
        "input": listed.input_mtok,
        "output": listed.output_mtok,
        "cached": listed.cache_read_mtok,
        "cache_write": listed.cache_write_mtok,
    }
    if tokens["input"] is None or tokens["output"] is None:
        return None  # Priced by pictures or seconds.
    base = {kind: _dollars(rate, 0) for kind, rate in tokens.items() if rate is not None}
    tiers = [tier for rate in tokens.values() for tier in getattr(rate, "tiers", ())]
    if not tiers:
        return Price(**base)
    above = min(tier.start for tier in tiers)
    long = {kind: _dollars(rate, above) for kind, rate in tokens.items() if rate is not None}
    return Price(**base, long=LongRates(above=above, **long))


def _dollars(rate: Decimal | TieredPrices, above: int) -> float:
    """Return the rate of prompts of more than `above` tokens."""
    if isinstance(rate, Decimal):
        return float(rate)
    reached = [tier for tier in rate.tiers if tier.start <= above]
    return float(max(reached, key=lambda tier: tier.start).price if reached else rate.base)


def cost_usd(model: str, counts: TokenCounts) -> float | None:
    """Return the cost of a call, None without a price."""
    price = price_of(model)
    if price is None:
        return None
    rates: Rates = price
    if price.long is not None and counts.prompt > price.long.above:
        rates = price.long
    return rates.cost_usd(*counts)


@lru_cache(maxsize=8)
def _read(path: Path, changed_at: int) -> dict[str, Price]:
    """Read a table, cached until the file changes."""
    del changed_at
    try:
        return _Prices.validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"]) or "it"
        raise UsageError(f"{path}: {where}: {problem['msg']}.") from None
