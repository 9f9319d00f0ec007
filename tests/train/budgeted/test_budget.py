"""Budgets: their texts, and accounts that are never overdrawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.train.budgeted.budget import Account, Budget, Spent, parse_budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("5usd", Budget(usd=5.0)),
        ("$", None),
        ("0.5 USD", Budget(usd=0.5)),
        ("2h", Budget(seconds=7_200.0)),
        ("30m", Budget(seconds=1_800.0)),
        ("90s", Budget(seconds=90.0)),
        ("5000rollouts", Budget(rollouts=5_000)),
        ("5,000 rollouts", Budget(rollouts=5_000)),
        ("1rollout", Budget(rollouts=1)),
        ("5usd, 2h,100rollouts", Budget(100, 5.0, 7_200.0)),
        ("1234rollouts,600s", Budget(1_234, None, 600.0)),
        ("5usd,6usd", None),
        ("0rollouts", None),
        ("-1h", None),
        ("lots", None),
        ("5", None),
        ("", None),
    ],
)
def test_a_budget_is_money_time_or_rollouts(text, budget):
    if budget is None:
        with pytest.raises(UsageError, match=r"budget"):
            parse_budget(text)
    else:
        assert parse_budget(text) == budget


def test_rollouts_are_counted_before_they_are_played():
    account = Account(Budget(rollouts=10))
    assert account.fits(10)
    account.reserve(4)
    assert not account.fits(7)
    assert account.fits(6)


def test_an_account_goes_on_with_what_an_earlier_call_spent():
    account = Account(Budget(rollouts=10, usd=1.0), before=Spent(8, 0.5, 3.0))
    assert account.fits(2)
    assert not account.fits(3)
    account.settle(1, 0.5, 1.0)
    assert not account.fits(1), "the money is spent"


@given(
    st.none() | st.integers(1, 10**9),
    st.none() | st.integers(1, 10**10),
    st.integers(1, 10**7),
)
def test_a_budget_is_read_from_its_own_text(rollouts, millionths, seconds):
    usd = None if millionths is None else millionths / 1e6
    budget = Budget(rollouts=rollouts, usd=usd, seconds=float(seconds))
    assert parse_budget(str(budget)) == budget


def test_time_and_money_of_the_next_rollouts_are_estimated_with_a_margin():
    now = [0.0]
    account = Account(Budget(seconds=100.0), clock=lambda: now[0])
    account.reserve(10)
    now[0] = 40.0
    account.settle(10, 0.0, 40.0)
    # 4 s each, times 1.5: ten more are 60 s of the 60 that are left.
    assert account.fits(10)
    assert not account.fits(11)
    now[0] = 100.0
    assert not account.fits(0)


def test_the_machines_price_makes_money_of_time():
    now = [0.0]
    account = Account(Budget(usd=1.0), hour_price=3.6, clock=lambda: now[0])
    assert account.seconds_left == pytest.approx(1_000.0)
    now[0] = 600.0
    assert account.spent.usd == pytest.approx(0.6)
    assert account.seconds_left == pytest.approx(400.0)
    account.settle(100, 0.0, 600.0)
    # 6 s each, times 1.5: 0.009 dollars.
    assert account.fits(44)
    assert not account.fits(45)
