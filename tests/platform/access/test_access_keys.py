"""Keys are shown once, stored as digests, limited, and worth nothing once revoked or expired."""

import asyncio
import base64
import json
import time
from contextlib import contextmanager
from datetime import UTC, datetime

import httpx
import pytest

from hud.errors import NotFoundError, UsageError
from hud.trace import new_id
from hud_integrations.openai.dialect import COMPACT, DIALECT
from hud_platform.access import SCOPES, Identity
from hud_platform.access.device_login import DeviceLogins
from hud_platform.access.keys import Keys
from hud_platform.access.limits import Limits, TokenBudget, TooManyRequests
from hud_platform.access.passes import Passes
from hud_platform.application import create_app
from hud_platform.gateway.ledger import LONGEST_ANSWER, Meter
from hud_platform.gateway.passthrough import reserve
from hud_platform.process.config import PlatformConfig
from hud_platform.store import Store
from hud_platform.store.tables import LOCAL_TEAM


@pytest.fixture
def keys(tmp_path):
    store = Store.open(tmp_path)
    yield Keys(store)
    store.close()


@pytest.fixture
def new_limits(keys):
    """Return a function that makes the limits of a server at a time in seconds, which stands still without one."""

    def make(now=(0.0,)):
        return Limits(keys.store, lambda: datetime.fromtimestamp(now[0], UTC))

    return make


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


def test_a_key_is_found_by_its_secret_which_is_stored_nowhere(keys, tmp_path):
    key, secret = keys.mint("a", LOCAL_TEAM, scopes=("run",))
    assert secret.startswith("hud_")
    assert keys.find(secret).id == key.id
    assert keys.find(secret[:-1]) is None
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("hud.db*"))
    assert secret.encode() not in stored
    assert secret not in repr(keys.page(LOCAL_TEAM, None, 0))


def test_each_scope_holds_those_before_it():
    for held in SCOPES:
        who = Identity(LOCAL_TEAM, frozenset({held}))
        assert [scope for scope in SCOPES if who.may(scope)] == list(
            SCOPES[: SCOPES.index(held) + 1]
        )


def test_a_revoked_key_is_worth_nothing_at_once(keys):
    _, secret = keys.mint("a", LOCAL_TEAM)
    assert keys.find(secret)
    keys.revoke(LOCAL_TEAM, "a")
    assert keys.find(secret) is None
    assert keys.cached(secret) is None
    with pytest.raises(NotFoundError):
        keys.revoke(LOCAL_TEAM, "a")


def test_so_is_one_that_was_being_looked_up_meanwhile(keys, monkeypatch):
    _, secret = keys.mint("a", LOCAL_TEAM)
    read, revoked = keys.store.read, []

    @contextmanager
    def late():
        with read() as connection:
            yield connection
        if not revoked:
            revoked.append(None)
            keys.revoke(LOCAL_TEAM, "a")

    monkeypatch.setattr(keys.store, "read", late)
    assert keys.find(secret)  # It was valid when it was read.
    assert keys.cached(secret) is None
    assert keys.find(secret) is None


def test_another_process_hears_of_a_revocation_within_a_moment(keys):
    _, secret = keys.mint("a", LOCAL_TEAM)
    other = Keys(keys.store)
    assert other.find(secret)
    keys.revoke(LOCAL_TEAM, "a")
    time.sleep(1.1)
    assert other.find(secret) is None


def test_a_key_expires(keys):
    _, secret = keys.mint("a", LOCAL_TEAM, expires_in=1.0)
    assert keys.find(secret)
    time.sleep(1.1)
    assert keys.find(secret) is None


def test_nobody_revokes_another_team_s_key(keys):
    keys.mint("a", LOCAL_TEAM)
    with pytest.raises(NotFoundError):
        keys.revoke(new_id(), "a")


@pytest.mark.parametrize(
    "options", [{"name": " "}, {"scopes": ()}, {"scopes": ("root",)}, {"expires_in": 0}]
)
def test_what_makes_no_key_is_refused(keys, options):
    with pytest.raises(UsageError):
        keys.mint(**{"name": "a", "team_id": LOCAL_TEAM, **options})


async def test_requests_and_tokens_are_limited_and_come_back_with_time(new_limits):
    now = [0.0]
    limits = new_limits(now)
    who = Identity(LOCAL_TEAM, frozenset(), "k", requests_per_minute=2, tokens_per_minute=100)
    limits.admit(who)
    limits.admit(who)
    with pytest.raises(TooManyRequests) as told:
        limits.admit(who)
    assert told.value.retry_after == pytest.approx(30)
    now[0] += told.value.retry_after
    limits.admit(who)
    limits.charge(who, 300)
    now[0] += 60
    with pytest.raises(TooManyRequests, match="tokens"):
        limits.admit(who)
    now[0] += 180
    limits.admit(who)
    limits.admit(Identity(LOCAL_TEAM, frozenset(), "other"))


def test_a_pass_says_who_holds_it_until_it_ends_and_cannot_be_changed(tmp_path):
    passes = Passes(tmp_path)
    who = Identity(LOCAL_TEAM, frozenset({"run"}), "key", "user")
    text = passes.make(who, 60)
    assert passes.read(text) == who
    assert Passes(tmp_path).read(text) == who
    assert passes.read(passes.make(who, -1)) is None
    for place in range(len("hudpass_"), len(text), 7):
        changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        assert passes.read(changed) is None
    other = tmp_path / "other"
    other.mkdir()
    assert Passes(other).read(text) is None
    assert (tmp_path / "signing.key").stat().st_mode & 0o077 == 0


def test_a_pass_of_a_release_with_other_fields_is_invalid(tmp_path):
    passes = Passes(tmp_path)
    fields = vars(Identity(LOCAL_TEAM, frozenset({"run"}), "key", "user"))
    fields = {**fields, "scopes": ["run"], "shared_limits": [], "until": 1e12}
    older = {name: value for name, value in fields.items() if name != "shared_limits"}
    for content, is_valid in ((fields, True), (older, False), ({**fields, "colour": 1}, False)):
        body = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
        text = f"hudpass_{body}.{passes.sign(f'hudpass_{body}')}"
        assert (passes.read(text) is not None) == is_valid


async def test_limits_are_answered_with_429_and_when_to_come_again(api):
    _, secret = api.platform.keys.mint("a", LOCAL_TEAM, requests_per_minute=1)
    assert (await api.get("/v2/jobs", headers=bearer(secret))).status_code == 200
    answer = await api.get("/v2/jobs", headers=bearer(secret))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("place", ["bearer", "x-api-key", "x-goog-api-key", "query"])
async def test_a_key_travels_in_any_place_that_clients_use(api, place):
    _, secret = api.platform.keys.mint("a", LOCAL_TEAM)
    headers = bearer(secret) if place == "bearer" else {} if place == "query" else {place: secret}
    params = {"key": secret} if place == "query" else {}
    answer = await api.get("/v2/auth/me", headers=headers, params=params)
    assert answer.status_code == 200
    again = await api.get("/v2/auth/me", headers=bearer(secret))
    assert again.json() == answer.json()


async def test_only_the_first_team_makes_keys_for_others(api):
    first = bearer(api.platform.keys.mint("a", LOCAL_TEAM, scopes=("admin",))[1])
    made = await api.post(
        "/v2/keys", json={"name": "b", "team": "other", "scopes": ["admin"]}, headers=first
    )
    other = bearer(made.json()["key"])
    me = (await api.get("/v2/auth/me", headers=other)).json()
    assert me["team_id"] != (await api.get("/v2/auth/me", headers=first)).json()["team_id"]
    refused = await api.post("/v2/keys", json={"name": "c", "team": "default"}, headers=other)
    assert refused.status_code == 403


async def login(api):
    return (await api.post("/auth/device/code", json={"client_name": "<b>laptop"})).json()


async def collect(api, begun):
    return await api.post("/auth/device/token", json={"device_code": begun["device_code"]})


async def test_a_device_is_logged_in_by_whoever_has_a_key(api):
    _, secret = api.platform.keys.mint("me", LOCAL_TEAM, scopes=("train",))
    begun = await login(api)
    page = await api.get(begun["verification_uri_complete"].replace("http://platform", ""))
    assert "&lt;b&gt;laptop" in page.text
    assert "script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    pending = await collect(api, begun)
    assert (pending.status_code, pending.json()) == (
        400,
        {"detail": {"error": "authorization_pending"}},
    )
    assert (await collect(api, begun)).json()["detail"]["error"] == "slow_down"
    form = {
        "code": begun["user_code"].lower().replace("-", " "),
        "key": secret,
        "decision": "allow",
    }
    assert (await api.post("/auth/device", data=form)).status_code == 200
    made = (await collect(api, begun)).json()
    me = (await api.get("/v2/auth/me", headers=bearer(made["api_key"]))).json()
    assert me["user_id"] == (await api.get("/v2/auth/me", headers=bearer(secret))).json()["user_id"]
    assert made["team"]["name"] == "default"
    assert (await collect(api, begun)).json()["detail"]["error"] == "expired_token"


async def test_a_device_that_is_refused_or_confirmed_without_a_key_gets_none(api):
    _, secret = api.platform.keys.mint("me", LOCAL_TEAM)
    begun = await login(api)
    wrong = {"code": begun["user_code"], "key": "hud_wrong", "decision": "allow"}
    assert (await api.post("/auth/device", data=wrong)).status_code == 403
    deny = {"code": begun["user_code"], "key": secret, "decision": "deny"}
    assert (await api.post("/auth/device", data=deny)).status_code == 200
    assert (await collect(api, begun)).json()["detail"]["error"] == "access_denied"
    assert (await api.get("/auth/device", params={"code": "XXXX-XXXX"})).status_code == 404


async def test_a_login_of_somebody_whose_key_was_revoked_is_worth_nothing(api):
    keys = api.platform.keys
    key, _ = keys.mint("me", LOCAL_TEAM)
    begun = await login(api)
    DeviceLogins(api.platform.store, keys).decide(begun["user_code"], key, allow=True)
    keys.revoke(LOCAL_TEAM, "me")
    assert (await collect(api, begun)).json()["detail"]["error"] == "access_denied"


async def test_projects_are_paged_and_begin_with_a_default_one(api):
    headers = bearer(api.platform.keys.mint("a", LOCAL_TEAM)[1])
    first = (await api.get("/v2/projects", headers=headers)).json()
    assert [(one["name"], one["is_default"]) for one in first["items"]] == [("default", True)]
    made = (await api.post("/v2/projects", json={"name": "Ops"}, headers=headers)).json()
    assert made["capabilities"] == {"create": True}
    assert (
        await api.post("/v2/projects", json={"name": "Ops"}, headers=headers)
    ).status_code == 409
    page = (await api.get("/v2/projects?limit=1&offset=1", headers=headers)).json()
    assert (page["total"], page["items"][0]["id"]) == (2, made["id"])
    assert (await api.get(f"/v2/projects/{new_id()}", headers=headers)).status_code == 404


async def test_a_compaction_which_no_field_bounds_needs_the_tokens_of_the_longest_answer(
    new_limits,
):
    limits = new_limits()
    who = Identity(LOCAL_TEAM, frozenset(), "k", tokens_per_minute=40_000)
    body = b"x" * 400
    assert await reserve(Meter(budget=TokenBudget(limits, who)), DIALECT, COMPACT, body, {}) is None
    assert await reserve(Meter(budget=TokenBudget(limits, who)), DIALECT, COMPACT, body, {}) is None
    with pytest.raises(TooManyRequests, match="too few are left"):
        await reserve(Meter(budget=TokenBudget(limits, who)), DIALECT, COMPACT, body, {})
    # A request that can be bounded gets what is left.
    left = await reserve(Meter(budget=TokenBudget(limits, who)), DIALECT, "responses", body, {})
    assert left == 40_000 - 2 * (100 + LONGEST_ANSWER) - 100


async def test_tokens_are_reserved_at_the_start_of_a_request(new_limits):
    now = [0.0]
    limits = new_limits(now)
    who = Identity(LOCAL_TEAM, frozenset(), "k", tokens_per_minute=100)
    first, second, third = (TokenBudget(limits, who) for _ in range(3))
    await first.reserve(10, 50, 1000)
    with pytest.raises(TooManyRequests, match="too few are left") as refused:
        await second.reserve(10, 50, 1000)
    assert refused.value.retry_after == pytest.approx(12)
    await second.reserve(10, None, 1000)  # States no limit: it gets what is left.
    with pytest.raises(TooManyRequests):
        limits.admit(who)
    await first.settle(20)
    await second.settle(30)
    await third.reserve(10, 40, 1000)
    await third.settle(50)
    with pytest.raises(TooManyRequests):
        limits.admit(who)
    now[0] += 60
    await first.reserve(0, 10_000, 10_000)  # More than a minute's limit: it needs all of that.


@pytest.mark.parametrize(
    ("prompt", "stated", "choices"), [(-900, 50, 1), (10, -900, 1), (10, 50, -9)]
)
async def test_no_count_of_a_request_gives_tokens(new_limits, prompt, stated, choices):
    limits = new_limits()
    who = Identity(LOCAL_TEAM, frozenset(), "k", tokens_per_minute=100)
    await TokenBudget(limits, who).reserve(0, 100, 1000)
    with pytest.raises(TooManyRequests):
        await TokenBudget(limits, who).reserve(prompt, stated, 1000, choices)
    limits.charge(who, -1)  # One token is left.
    await TokenBudget(limits, who).reserve(min(prompt, 0), min(stated, 0), 1000, choices)
    with pytest.raises(TooManyRequests):
        await TokenBudget(limits, who).reserve(0, 2, 1000)


async def test_an_answer_without_a_limit_is_bounded_to_its_reservation(new_limits):
    limits = new_limits()
    who = Identity(LOCAL_TEAM, frozenset(), "k", tokens_per_minute=100)
    first, second = TokenBudget(limits, who), TokenBudget(limits, who)
    assert await first.reserve(10, None, 30) == 30
    assert await second.reserve(10, None, 1000, choices=4) == (60 - 10) // 4
    await first.settle(89)
    await second.settle(0)
    with pytest.raises(TooManyRequests, match="too few are left") as refused:
        await second.reserve(11, None, 1000)  # 11 are left: none for the answer.
    assert refused.value.retry_after == pytest.approx(0.6)
    assert await second.reserve(10, None, 1000) == 1


async def test_a_prompt_of_the_whole_limit_leaves_no_room_for_an_answer(new_limits):
    limits = new_limits()
    who = Identity(LOCAL_TEAM, frozenset(), "k", tokens_per_minute=100)
    with pytest.raises(TooManyRequests):
        await TokenBudget(limits, who).reserve(100, None, 1000)
    assert (
        await TokenBudget(limits, Identity(LOCAL_TEAM, frozenset(), "k")).reserve(9, None, 9)
        is None
    )


async def test_servers_of_one_store_grant_a_key_s_limits_once(new_limits):
    """Each granted the whole limit."""
    now = [0.0]
    here, there = new_limits(now), new_limits(now)
    who = Identity(LOCAL_TEAM, frozenset(), "k", requests_per_minute=2, tokens_per_minute=100)
    here.admit(who)
    there.admit(who)
    with pytest.raises(TooManyRequests, match="requests a minute"):
        here.admit(who)
    first = TokenBudget(here, who)
    await first.reserve(10, 70, 1000)
    with pytest.raises(TooManyRequests, match="tokens a minute"):
        await TokenBudget(there, who).reserve(10, 50, 1000)
    await first.settle(20)
    await TokenBudget(there, who).reserve(10, 70, 1000)  # Given back; its server dies now.
    with pytest.raises(TooManyRequests):
        here.admit(who)
    now[0] += 60
    await first.reserve(10, 90, 1000)


async def test_reservations_at_once_at_several_servers_stay_within_the_limit(new_limits):
    who = Identity(LOCAL_TEAM, frozenset(), "k", tokens_per_minute=100)
    servers = [new_limits() for _ in range(4)]

    async def granted(limits):
        try:
            await TokenBudget(limits, who).reserve(0, 30, 1000)
        except TooManyRequests:
            return 0
        return 30

    assert sum(await asyncio.gather(*(granted(limits) for limits in servers * 4))) == 90


async def test_a_key_without_limits_costs_no_query(keys, monkeypatch):
    who = Identity(LOCAL_TEAM, frozenset(), "k")
    limits = Limits(keys.store)
    monkeypatch.setattr(keys.store, "begin", None)
    monkeypatch.setattr(keys.store, "read", None)
    limits.admit(who)
    budget = TokenBudget(limits, who)
    assert await budget.reserve(10, None, 1000) is None
    await budget.settle(50)
