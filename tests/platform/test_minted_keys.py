"""A key that is made with another one never exceeds it, and strangers begin no more logins than people would."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
import sqlalchemy as sa

from hud.errors import PlatformError
from hud.trace import new_id
from hud_platform.access import Identity
from hud_platform.access.device_login import MOST_OPEN, DeviceLogins
from hud_platform.access.identity import KeyLimits
from hud_platform.access.limits import Limits, TooManyRequests, Visitors
from hud_platform.access.passes import Passes
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store import Store, tables
from hud_platform.store.tables import LOCAL_TEAM


@pytest.fixture
async def api(tmp_path):
    app = create_app(PlatformConfig(tmp_path, keys=True))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as client:
        client.platform = app.state.parts
        yield client
    app.state.parts.close()


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


async def logged_in(api, secret):
    """Log a device in by confirming it with a key; return the device's key and its secret."""
    begun = (await api.post("/auth/device/code", json={})).json()
    form = {"code": begun["user_code"], "key": secret, "decision": "allow"}
    assert (await api.post("/auth/device", data=form)).status_code == 200
    answer = await api.post("/auth/device/token", json={"device_code": begun["device_code"]})
    assert answer.status_code == 200, answer.text
    made = answer.json()["api_key"]
    return api.platform.keys.find(made), made


async def test_a_login_gives_no_more_than_the_key_that_confirmed_it(api):
    parent, secret = api.platform.keys.mint(
        "me", LOCAL_TEAM, scopes=("run",), expires_in=8, requests_per_minute=5, tokens_per_minute=7
    )
    child, _ = await logged_in(api, secret)
    assert child.expires_at == parent.expires_at
    assert child.scopes == parent.scopes
    assert child.requests_per_minute == parent.requests_per_minute
    assert child.tokens_per_minute == parent.tokens_per_minute


async def test_many_logins_share_the_requests_of_one_key(api):
    _, secret = api.platform.keys.mint("me", LOCAL_TEAM, requests_per_minute=5)
    _, child = await logged_in(api, secret)
    _, grandchild = await logged_in(api, child)
    statuses = [
        (await api.get("/v2/auth/me", headers=bearer(used))).status_code
        for used in [secret, child, grandchild] * 4
    ]
    assert statuses.count(200) == 5
    assert statuses.count(429) == 7


async def test_a_login_ends_with_the_key_that_confirmed_it(api):
    parent, secret = api.platform.keys.mint("me", LOCAL_TEAM)
    _, child = await logged_in(api, secret)
    _, grandchild = await logged_in(api, child)
    other, _ = api.platform.keys.mint("other", LOCAL_TEAM)
    api.platform.keys.revoke(LOCAL_TEAM, parent.id)
    for used in (secret, child, grandchild):
        assert (await api.get("/v2/auth/me", headers=bearer(used))).status_code == 401
    assert api.platform.keys.by_id(other.id).valid


async def test_a_login_does_not_outlive_a_key_that_ended_before_it_was_collected(api):
    key, secret = api.platform.keys.mint("me", LOCAL_TEAM, expires_in=60)
    begun = (await api.post("/auth/device/code", json={})).json()
    form = {"code": begun["user_code"], "key": secret, "decision": "allow"}
    assert (await api.post("/auth/device", data=form)).status_code == 200
    with api.platform.store.begin() as connection:
        mine = tables.keys.c.id == key.id
        connection.execute(sa.update(tables.keys).where(mine).values(expires_at=datetime.now(UTC)))
    answer = await api.post("/auth/device/token", json={"device_code": begun["device_code"]})
    assert answer.json() == {"detail": {"error": "access_denied"}}


async def sent(api, secrets, rounds):
    """Return how many requests of keys in turn were answered."""
    statuses = [
        (await api.get("/v2/auth/me", headers=bearer(secret))).status_code
        for secret in secrets * rounds
    ]
    assert set(statuses) <= {200, 429}
    return statuses.count(200)


async def test_keys_that_a_limited_key_makes_share_its_limits(api):
    _, maker = api.platform.keys.mint(
        "admin", LOCAL_TEAM, scopes=("admin",), requests_per_minute=10
    )

    async def made(secret, **values):
        body = {"name": "made", **values}
        answer = await api.post("/v2/keys", json=body, headers=bearer(secret))
        return answer.json()["key"]

    like = await made(maker, scopes=["admin"])
    lower = await made(like, scopes=["admin"], requests_per_minute=4)
    below = [await made(lower) for _ in range(2)]
    # 10, without the four that made the keys: two of them count against the lower limit as well.
    assert await sent(api, [lower, *below], 6) == 2
    assert await sent(api, [maker, like, *below], 6) == 4


async def test_a_key_that_a_limited_key_made_ends_with_it(api):
    maker, secret = api.platform.keys.mint(
        "admin", LOCAL_TEAM, scopes=("admin",), tokens_per_minute=10
    )
    answer = await api.post("/v2/keys", json={"name": "made"}, headers=bearer(secret))
    api.platform.keys.revoke(LOCAL_TEAM, maker.id)
    assert await sent_to_me(api, answer.json()["key"]) == 401


async def test_an_unlimited_admin_s_keys_are_their_own(api):
    maker, secret = api.platform.keys.mint("admin", LOCAL_TEAM, scopes=("admin",))
    answer = await api.post(
        "/v2/keys", json={"name": "made", "requests_per_minute": 5}, headers=bearer(secret)
    )
    api.platform.keys.revoke(LOCAL_TEAM, maker.id)
    assert await sent_to_me(api, answer.json()["key"]) == 200


async def sent_to_me(api, secret):
    return (await api.get("/v2/auth/me", headers=bearer(secret))).status_code


def test_tokens_of_keys_that_share_limits_are_reserved_once(tmp_path):
    store = Store.open(tmp_path)
    limits, maker = Limits(store), KeyLimits("maker", None, 100)
    one, two = (
        Identity(LOCAL_TEAM, frozenset(), name, tokens_per_minute=most, shared_limits=(maker,))
        for name, most in (("one", 100), ("two", 50))
    )
    assert limits.reserve(one, 1, 60) == 60
    assert limits.reserve(two, 1, 60) == 40
    with pytest.raises(TooManyRequests):
        limits.reserve(one, 5, 5)
    limits.charge(two, -40)
    assert limits.reserve(one, 1, 60) == 40
    store.close()


def test_a_limit_does_not_wait_for_a_clock_that_was_set_back(tmp_path):
    store, now = Store.open(tmp_path), datetime.now(UTC)
    who = Identity(LOCAL_TEAM, frozenset(), "k", requests_per_minute=1)
    Limits(store, lambda: now + timedelta(days=3650)).admit(who)
    limits = Limits(store, lambda: now)
    limits.admit(who)
    with pytest.raises(TooManyRequests):
        limits.admit(who)
    store.close()


async def test_an_admin_s_key_makes_none_beyond_itself(api):
    maker, secret = api.platform.keys.mint(
        "admin", LOCAL_TEAM, scopes=("admin",), expires_in=600, requests_per_minute=50
    )
    made = (await api.post("/v2/keys", json={"name": "a"}, headers=bearer(secret))).json()
    assert made["requests_per_minute"] == 50
    assert made["tokens_per_minute"] is None
    assert datetime.fromisoformat(made["expires_at"]) == maker.expires_at
    less = {"name": "b", "requests_per_minute": 5, "expires_in": 60}
    made = (await api.post("/v2/keys", json=less, headers=bearer(secret))).json()
    assert made["requests_per_minute"] == 5
    assert datetime.fromisoformat(made["expires_at"]) < maker.expires_at
    for more in ({"requests_per_minute": 51}, {"expires_in": 6000}):
        answer = await api.post("/v2/keys", json={"name": "c", **more}, headers=bearer(secret))
        assert answer.status_code == 403
        assert "your own key's limits" in answer.json()["detail"]
    with pytest.raises(PlatformError, match="at most"):
        api.platform.keys.mint("d", LOCAL_TEAM, expires_in=6000, maker=maker)


def test_a_pass_keeps_the_limits_of_the_key_behind_it(tmp_path):
    who = Identity(
        LOCAL_TEAM,
        frozenset({"run"}),
        "key",
        requests_per_minute=5,
        tokens_per_minute=9,
        shared_limits=(KeyLimits("p", 6, None),),
    )
    assert Passes(tmp_path).read(Passes(tmp_path).make(who, 60)) == who


@pytest.mark.parametrize("text", ["hudpass_\u00e9.\u00e9", "hudpass_\u00e9", "hud_\u00ff\u00fe"])
@pytest.mark.parametrize("place", ["bearer", "x-api-key", "query"])
async def test_a_credential_of_odd_characters_is_refused(api, text, place):
    header = f"Bearer {text}" if place == "bearer" else text
    name = "authorization" if place == "bearer" else "x-api-key"
    headers = {} if place == "query" else {name: header.encode("latin-1")}
    params = {"key": text} if place == "query" else {}
    answer = await api.get("/v2/jobs", headers=headers, params=params)
    assert answer.status_code == 401


@pytest.mark.slow
async def test_strangers_begin_few_logins(api):
    statuses = [(await api.post("/auth/device/code", json={})).status_code for _ in range(60)]
    assert 1 <= statuses.count(200) <= 13
    assert set(statuses) == {200, 429}
    answer = await api.post("/auth/device/code", json={})
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.slow
async def test_polls_and_confirmations_without_a_key_are_limited(api):
    wrong = {"device_code": "x"}
    statuses = [(await api.post("/auth/device/token", json=wrong)).status_code for _ in range(300)]
    assert set(statuses) == {400, 429}
    pages = [(await api.get("/auth/device", params={"code": "x"})).status_code for _ in range(40)]
    assert set(pages) == {404, 429}


async def test_logins_that_are_open_have_a_bound_however_many_addresses_ask(api):
    logins = DeviceLogins(api.platform.store, api.platform.keys)
    logins.begin("first")
    with api.platform.store.begin() as connection:
        row = connection.execute(sa.select(tables.device_logins)).one()._asdict()
        copies = [
            {**row, "digest": new_id() * 2, "user_code": f"{n:08}"} for n in range(MOST_OPEN - 1)
        ]
        connection.execute(sa.insert(tables.device_logins), copies)
    with pytest.raises(TooManyRequests, match="hud keys create"):
        logins.begin("one more")
    with api.platform.store.begin() as connection:
        connection.execute(sa.update(tables.device_logins).values(expires_at=datetime.now(UTC)))
    logins.begin("later")


def test_visitors_are_counted_by_what_they_cannot_choose():
    now = [0.0]
    visitors = Visitors(clock=lambda: now[0])
    for number in range(5):
        visitors.admit(f"2001:db8::{number}", "code", 5)
    with pytest.raises(TooManyRequests):
        visitors.admit("2001:db8::ffff", "code", 5)
    visitors.admit("2001:db8:0:1::1", "code", 5)
    visitors.admit("2001:db8::1", "token", 5)
    now[0] += 12
    visitors.admit("2001:db8::1", "code", 5)
    with pytest.raises(TooManyRequests):
        visitors.admit("2001:db8::1", "code", 5)
    for number in range(20_000):
        visitors.admit(f"10.0.{number // 250}.{number % 250}", "code", 5)
    assert len(visitors._levels) <= 10_000
