"""Models of providers: their URLs, keys and prices.
A name with a provider's prefix belongs to that provider, if a key for it is stored. Any other endpoint must be
registered by its URL; no other address is called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from hud import settings
from hud.errors import UsageError
from hud.inference.dialects.chat_completions.dialect import CHAT
from hud.inference.dialects.dialect import NamedProvider, ProviderDialect
from hud.inference.dialects.registry import named_providers, provider_dialect, provider_dialects
from hud.inference.prices import price_of
from hud.outbound import Reach
from hud.trace import plain
from hud_platform.access.secrets import Secrets, operator_reach
from hud_platform.models.records import ModelConfig, ModelRecord, ProviderConfig
from hud_platform.store.tables import LOCAL_TEAM


@dataclass(frozen=True)
class ProviderModel:
    """A provider's model, with its endpoint and credentials."""

    name: str
    """Name on this platform."""
    upstream: str
    """Name at the provider."""
    dialect: ProviderDialect
    url: str
    """Base URL, without the dialect's paths."""
    key: str | None = field(default=None, repr=False)
    key_env: str | None = None
    price_in: float | None = None
    """Dollars for a million prompt tokens."""
    price_out: float | None = None
    reach: Reach = field(default_factory=Reach)
    """Network addresses that may be called for it."""

    @property
    def secrets(self) -> list[bytes]:
        """Secret values; they must not leave this process."""
        return [self.key.encode()] if self.key else []

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return the cost of tokens in US dollars; None if the price is unknown."""
        if self.price_in is None or self.price_out is None:
            return None
        return (prompt_tokens * self.price_in + completion_tokens * self.price_out) / 1e6

    def endpoint(self, action: str) -> str:
        """Return the URL of a call."""
        return self.dialect.client.url(self.url, self.upstream, action)

    @property
    def credentials(self) -> dict[str, str]:
        """Authentication header for the provider."""
        return self.dialect.client.credentials(self.key)


_PART_OF_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SINCE = datetime(2025, 1, 1, tzinfo=UTC)
"""Creation date of providers' models whose date is unknown."""


def provider_of(name: str) -> tuple[NamedProvider, ProviderDialect] | None:
    """Return the provider of a model name, by its prefix, and its dialect; None for any other name.

    Some names are parts of a URL: one with other characters could lead to another method, with this server's key.
    """
    for provider, dialect in named_providers():
        if name.startswith(provider.prefixes):
            refused = dialect.model_in_path and not _PART_OF_PATH.fullmatch(name)
            return None if refused else (provider, dialect)
    return None


def builtin_model(
    provider: NamedProvider, dialect: ProviderDialect, name: str, secrets: Secrets
) -> ProviderModel:
    """Return a provider's model by its name, with the team's key for it."""
    environment = settings.load().environment
    price = price_of(name)
    return ProviderModel(
        name=name,
        upstream=name,
        dialect=dialect,
        url=_base(environment.get(provider.home.url_variable) or provider.home.url, dialect),
        key=secrets.get_shared(provider.key_env),
        key_env=provider.key_env,
        price_in=price.input if price else None,
        price_out=price.output if price else None,
        reach=operator_reach(),
    )


def registered_model(
    record: ModelRecord, config: ProviderConfig, secrets: Secrets
) -> ProviderModel:
    """Return a model that was registered by its URL. Raises `UsageError` if its team has not stored the key."""
    key = secrets.get(config.key_env) if config.key_env else None
    if config.key_env and key is None and secrets.team != LOCAL_TEAM:
        raise UsageError(
            f"{record.slug!r} needs the key {config.key_env}, which your team has not stored: "
            f"hud secrets set {config.key_env}"
        )
    dialect = provider_dialect(config.dialect)
    return ProviderModel(
        name=record.slug,
        upstream=config.upstream_model or record.name,
        dialect=dialect,
        url=_base(config.url, dialect),
        key=key,
        key_env=config.key_env,
        price_in=config.price_in,
        price_out=config.price_out,
        reach=secrets.reach,
    )


def builtin_record(provider: NamedProvider, dialect: ProviderDialect, name: str) -> ModelRecord:
    """Return a provider's model as a registry record, with a deterministic id."""
    price = price_of(name)
    config = ProviderConfig(
        url=provider.home.url,
        dialect=dialect.family,
        key_env=provider.key_env,
        price_in=price.input if price else None,
        price_out=price.output if price else None,
    )
    return ModelRecord(
        id=uuid5(NAMESPACE_URL, f"https://openhud/models/{name}").hex,
        team_id=LOCAL_TEAM,
        slug=name,
        name=name,
        folder=Path(),
        kind=provider.name,
        created_at=_SINCE,
        config=ModelConfig(source=provider.name, provider=config),
    )


def builtin_records(secrets: Secrets) -> list[ModelRecord]:
    """Return the catalogue's models of all providers for which the team has a key."""
    return [
        builtin_record(provider, dialect, name)
        for provider, dialect in named_providers()
        if secrets.get_shared(provider.key_env)
        for name in provider.listed
    ]


def find_builtin(reference: str, secrets: Secrets) -> ModelRecord | None:
    """Return a provider's model by name or id; None for an unknown provider or a missing key."""
    for record in builtin_records(secrets):
        if plain(reference) in (record.id, record.slug):
            return record
    provided = provider_of(reference)
    if provided is None or not secrets.get_shared(provided[0].key_env):
        return None
    return builtin_record(*provided, reference)


def sdk_agent_type(record: ModelRecord) -> str:
    """Return the agent type in HUD's client for a model."""
    if record.config.provider is None:
        return CHAT.agent
    for provider, _ in named_providers():
        if record.kind == provider.name:
            return provider.agent
    # The package of its dialect may be gone; its model is refused at its use.
    return provider_dialects().get(record.config.provider.dialect, CHAT).agent


def _base(url: str, dialect: ProviderDialect) -> str:
    """Return a base URL as `endpoint` expects it: without a trailing slash or the dialect's own path."""
    return url.rstrip("/").removesuffix(dialect.base_path)
