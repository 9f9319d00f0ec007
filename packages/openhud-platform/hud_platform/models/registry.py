"""Model registry: registered models, the folders of their weights, and the dependencies between models.

A model is a row and a folder of base weights; its trained checkpoints form a tree (`tree`). A fork is
a row that points at files of its base: nothing is copied, and files that a fork needs cannot be removed.
The registry handles paths and loads no weights. `create`, `sample_on`, and checks of adapter targets and of router replay import torch
when they are called.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.durable_files import flush_tree, make_folder
from hud.engine.backends.backend import OfferedModel
from hud.engine.backends.registered import servers_named
from hud.engine.config import DecoderConfig
from hud.engine.model_files.formats import ModelFileFormat, format_of, is_named_as_file
from hud.engine.model_files.named_models import NAMED_MODELS, fetch
from hud.engine.sample.options import OPTIONS
from hud.errors import ConflictError, NotFoundError, PlatformError, UsageError
from hud.eval.tasksets.suggestions import did_you_mean
from hud.trace import new_id, plain
from hud.trace.json_values import is_text
from hud_platform.access.secrets import Secrets
from hud_platform.models.checkpoint_tree import CLIENT_NAMES, Tree, is_named
from hud_platform.models.lineage import exported_lineage
from hud_platform.models.model_lease import Leases
from hud_platform.models.records import (
    OF_A_FORK,
    BackendConfig,
    ModelConfig,
    ModelRecord,
    ProviderConfig,
    ServersConfig,
    Weights,
)
from hud_platform.models.weight_sources import (
    check_folder,
    from_hub,
    is_hub_id,
    machine_path,
)
from hud_platform.store import Store, tables
from hud_platform.store.queries import Query
from hud_platform.store.tables import LOCAL_TEAM

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9])?")
_SHORTEST_PREFIX = 4
_MOST_NAMED = 20
"""Models that an error message names."""
_HEXADECIMAL = re.compile(r"[0-9a-f]+")


class Registry:
    """Models of one store and the files under its home, limited to the models of `team`; None: all models."""

    def __init__(self, store: Store, home: Path, *, team: str | None) -> None:
        self.store = store
        self.team = team
        self.home = home
        self.leases = Leases(store)
        self.tree = Tree(store, home / "models")

    def of(self, team: str) -> Registry:
        """Return a registry limited to the models of one team."""
        return Registry(self.store, self.home, team=team)

    def models(self) -> list[ModelRecord]:
        """Return every model, oldest first."""
        return [_record(row) for row in self.store.rows(self._models())]

    def page(
        self, limit: int | None, offset: int, *where: sa.ColumnElement[bool]
    ) -> tuple[list[ModelRecord], int]:
        """Return a page of the models that meet conditions, oldest first, and their number."""
        rows, total = self.store.page(self._models().where(*where), limit, offset)
        return [_record(row) for row in rows], total

    def _models(self) -> Query:
        models = tables.models
        query = sa.select(models).order_by(models.c.created_at, models.c.id)
        return query if self.team is None else query.where(models.c.team_id == self.team)

    def model(self, reference: str) -> ModelRecord:
        """Return the model with this slug, id (plain or dashed), unique start of an id, or display name.

        Raises `NotFoundError` where there is none, `UsageError` for a start of several ids.
        """
        model = self._find(reference) if is_text(reference) else None
        if model is not None:
            return model
        slugs = self.store.values(self._models().with_only_columns(tables.models.c.slug))
        if is_hub_id(reference):
            raise NotFoundError(
                f"There is no model {reference!r} yet. Fetch it from the Hugging Face hub: "
                f"hud models add {reference} --name {slug_of(reference)}"
            )
        if not slugs:
            raise NotFoundError(
                f"There is no model {reference!r}, nor any other yet; "
                "`hud models create SLUG --preset tiny --tasks TASKS` makes one."
            )
        raise NotFoundError(f"There is no model {reference!r}{did_you_mean(reference, slugs)}")

    def _find(self, reference: str) -> ModelRecord | None:
        """Return the model of a reference; see `model`. By queries for it: a team may have thousands of models."""
        columns, wanted = tables.models.c, plain(reference.strip())
        named = sa.or_(columns.id == wanted, columns.slug == wanted, columns.name == reference)
        exact, _ = self.page(1, 0, named)
        if exact:
            return exact[0]
        lowered = wanted.lower().replace("-", "")
        if len(lowered) >= _SHORTEST_PREFIX and _HEXADECIMAL.fullmatch(lowered):
            begun = sa.and_(columns.id >= lowered, columns.id < f"{lowered}g")
            matches, total = self.page(_MOST_NAMED, 0, begun)
            if total == 1:
                return matches[0]
            if matches:
                slugs = ", ".join(model.slug for model in matches)
                raise UsageError(
                    f"{reference!r} begins the ids of several models ({slugs}); give more of it."
                )
        lower, _ = self.page(1, 0, columns.slug == wanted.lower())
        return lower[0] if lower else None

    def weights(self, model: ModelRecord, checkpoint_id: str | None) -> Weights:
        """Return the files that make the policy of a model at a checkpoint; None: its base weights.

        Raises `UsageError` for models of a provider and of a training backend, which have no weights on this platform, and
        `NotFoundError` for a checkpoint of another team.
        """
        if model.config.backend is not None:
            raise UsageError(
                f"{model.slug!r} is trained by the backend {model.config.backend.name!r}: there are no weights here to copy, fork, merge or score prompts with."
            )
        if model.config.provider is not None:
            raise UsageError(
                f"{model.slug!r} lives with its provider at {model.config.provider.url}: there are no weights here."
            )
        if checkpoint_id is None:
            return Weights(model.folder)
        node = self.tree.get(checkpoint_id)
        # Ids come with requests: those of another team's checkpoints open nothing.
        models = tables.models
        team = self.store.value(sa.select(models.c.team_id).where(models.c.id == node.model_id))
        if team != model.team_id:
            raise NotFoundError(f"There is no checkpoint {checkpoint_id!r}.")
        return self.tree.weights(node, model)

    def create(
        self,
        name: str,
        texts: Sequence[str],
        *,
        preset: str = "tiny",
        seed: int = 0,
        sizes: dict[str, int] | None = None,
        config: ModelConfig | None = None,
    ) -> ModelRecord:
        """Create a small random model with a tokenizer trained on `texts`. Raises `UsageError` for no text or another preset."""
        if preset != "tiny":
            raise UsageError(f"There is no preset {preset!r}; there is 'tiny'.")
        if not any(text.strip() for text in texts):
            raise UsageError("A tokenizer is learned from text, and none was given.")
        self._check_free(slug_of(name))
        from hud.engine.tiny_model import create_tiny  # Imports torch.

        model_id = new_id()
        folder = self.home / "models" / model_id / "base"
        try:
            make_folder(folder.parent)
            create_tiny(folder, list(texts), seed=seed, **(sizes or {}))
            update = {"source": f"preset {preset}", "origin_checkpoint": None}
            settings = (config or ModelConfig()).model_copy(update=update)
            return self._insert(model_id, name, folder, kind=preset, config=settings)
        except BaseException:
            shutil.rmtree(folder.parent, ignore_errors=True)
            raise

    def add(self, source: str, name: str, *, config: ModelConfig | None = None) -> ModelRecord:
        """Register the model in a folder, which is not copied; or one of a GGUF file, of `NAMED_MODELS` or of the Hugging Face hub.

        Raises `PlatformError` 403 for a folder that the team may not read, `UsageError` for a folder of another model.
        """
        self._check_free(slug_of(name))
        # Only the first team's admins may read the server's disk, and use its token of the hub.
        trusted = self.team == LOCAL_TEAM
        if source in NAMED_MODELS and not (trusted and Path(source).exists()):
            fetched = fetch(NAMED_MODELS[source], self.home)
            return self._add_file(fetched, format_of(fetched), source, name, config)
        if not trusted and not is_hub_id(source):
            raise PlatformError(
                "Folders of the server's disk are for admins of the first team. Give a hub id (OWNER/NAME), or ask "
                "one of them to add the model.",
                403,
            )
        folder = machine_path(source) if trusted else from_hub(source, public=True).resolve()
        if trusted and (form := format_of(folder)) is not None:
            return self._add_file(folder, form, source, name, config)
        if trusted and is_named_as_file(folder):
            raise NotFoundError(f"There is no file {source!r}.")
        if trusted and not folder.is_dir():
            folder = from_hub(source).resolve()
        if folder.is_relative_to((self.home / "models").resolve()):
            # The folder may be another team's: its existence must not be revealed.
            raise UsageError(
                f"{source} holds files of this platform's own models; begin one with `hud models fork`."
            )
        check_folder(folder)
        settings = _of_source(source, config, folder)
        return self._insert(new_id(), name, folder, kind="added", config=settings)

    def _add_file(
        self,
        file: Path,
        form: ModelFileFormat | None,
        source: str,
        name: str,
        config: ModelConfig | None,
    ) -> ModelRecord:
        """Register the model of a file, unpacked to a folder of its own."""
        if form is None:
            raise UsageError(
                f"No installed package reads {file.name}: pip install 'openhud[train]'."
            )
        model_id = new_id()
        folder = self.home / "models" / model_id / "base"
        dtype = config.dtype if config and "dtype" in config.model_fields_set else None
        try:
            make_folder(folder)
            form.convert(file, folder, dtype=dtype)
            check_folder(folder)
            settings = _of_source(source, config, folder)
            settings = settings.model_copy(update={"lineage": exported_lineage(file.parent)})
            return self._insert(model_id, name, folder, kind="added", config=settings)
        except BaseException:
            shutil.rmtree(folder.parent, ignore_errors=True)
            raise

    def provide(self, name: str, provider: ProviderConfig) -> ModelRecord:
        """Register a model that a provider serves; requests are forwarded to the provider.

        Raises `PlatformError` 403 for an address or a key that the team may not use.
        """
        assert self.team is not None
        Secrets(self.home, self.team).refuse_destinations([provider.url], provider.key_env)
        config = ModelConfig(source=provider.url, provider=provider)
        return self._insert(new_id(), name, Path(), kind="provider", config=config)

    def on_backend(
        self, name: str, backend: BackendConfig, base: OfferedModel, model_id: str, folder: Path
    ) -> ModelRecord:
        """Register a model whose weights are at a training backend; `folder` holds its tokenizer and config.json."""
        config = ModelConfig(source=base.name, backend=backend)
        if base.lora_rank is not None:
            adapter = {"training": "lora", "lora_rank": base.lora_rank}
            config = config.model_copy(update=adapter)
        return self._insert(model_id, name, folder, kind=backend.name, config=config)

    def fork(
        self,
        base: str,
        name: str,
        *,
        config: ModelConfig | None = None,
        checkpoint: str | None = "head",
    ) -> ModelRecord:
        """Register a model that starts from a checkpoint of `base` and shares its files.

        `checkpoint`: an id; None: the base weights; `head`.

        Without `config`, the fork has its base's training settings. A fork of full weights may be trained by LoRA, not
        the reverse: an adapter must be merged first, by an export.
        Raises `UsageError` for full fine-tuning of an adapter, and for an adapter of another shape.
        """
        self._check_free(slug_of(name))
        _refuse_servers(config)
        parser = None if config is None else config.tool_call_parser
        rates = config is not None and config.reward_model
        candidate = config is not None and config.candidate
        sampling = (
            {} if config is None else config.model_dump(include=set(OPTIONS), exclude_none=True)
        )
        if config is not None and config.model_fields_set <= OF_A_FORK:
            config = None  # It has no training settings.
        parent = self.model(base)
        head = parent.head_checkpoint_id if checkpoint == "head" else checkpoint
        weights = self.weights(parent, head)
        prompt = None
        if config is None or (config.training == parent.config.training == "full"):
            settings = parent.config.model_copy(update={"origin_checkpoint": head})
            folder = parent.folder
        elif parent.config.training == "full":
            # The adapter is applied to the head's weights, which are a complete folder.
            settings = config.model_copy(update={"origin_checkpoint": None})
            folder, prompt, head = weights.folder, self.tree.system_prompt(head), None
        elif weights.adapter is None:
            settings = config.model_copy(update={"origin_checkpoint": None})
            folder, prompt, head = parent.folder, self.tree.system_prompt(head), None
        elif config.training == "lora" and _same_adapter(config, parent.config):
            settings = parent.config.model_copy(update={"origin_checkpoint": head})
            folder = parent.folder
        else:
            raise UsageError(
                f"{parent.slug!r} has learned an adapter, which a fork of another kind cannot take over. Merge it "
                f"first: hud models export {parent.slug} -o FOLDER, then hud models add FOLDER --name {slug_of(name)}"
            )
        # Servers hold the weights of one model: a fork is sampled here until it has its own.
        own = {
            "source": parent.slug,
            "dtype": parent.config.dtype,
            "servers": None,
            "reward_model": rates or parent.config.reward_model,
            "candidate": candidate,
            "tool_call_parser": parser or parent.config.tool_call_parser,
            **parent.config.model_dump(include=set(OPTIONS)),
            **sampling,
        }
        settings = settings.model_copy(update=own)
        fork = self._insert(
            new_id(), name, folder, kind="fork", config=settings, base=parent.id, head=head
        )
        if prompt is not None:
            self.tree.set_head(fork, self.tree.add_prompt(fork, prompt).id)
            fork = self.model(fork.id)
        return fork

    def sample_on(self, model: ModelRecord, servers: ServersConfig | None) -> ModelRecord:
        """Set the servers that sample a model; None: this platform. Loaded policies of it must change their servers, or be reloaded.

        Raises `UsageError` for a provider's or a backend's model, and for what this kind of servers does not support.
        """
        if model.config.provider is not None:
            raise UsageError(f"{model.slug!r} lives with its provider; there is nothing to sample.")
        if model.config.backend is not None:
            backend = model.config.backend.name
            raise UsageError(
                f"{model.slug!r} is sampled by the backend {backend!r}, not by servers."
            )
        if servers is not None:
            from hud.engine.backends.sampling_servers import TrainedModel  # Imports torch.

            trained = TrainedModel(
                model.slug, model.config.training == "lora", model.config.router_replay
            )
            settings = servers_named(servers.kind).check(servers.settings, trained)
            servers = servers.model_copy(update={"settings": settings})
            secrets = Secrets(self.home, model.team_id)
            secrets.refuse_destinations(servers.urls, servers.key_env)
        self.leases.refuse_if_held(model.id, model.slug, "given other servers")
        config = model.config.model_copy(update={"servers": servers})
        update = sa.update(tables.models).where(tables.models.c.id == model.id)
        self.store.write(update.values(config=config.model_dump(mode="json")))
        return self.model(model.id)

    def remove(self, reference: str) -> ModelRecord:
        """Delete a model and its own files. Raises `ConflictError` while it is trained, or while forks need its files."""
        model = self.model(reference)
        self.leases.refuse_if_held(model.id, model.slug, "removed")
        needed = [other.slug for other in self.models() if self._needs(other, model)]
        if needed:
            raise ConflictError(
                f"Model {model.slug!r} cannot be removed: {', '.join(map(repr, needed))} began with its files. "
                f"Remove {'that' if len(needed) == 1 else 'those'} first."
            )
        with self.store.begin() as connection:
            runs = tables.training_runs
            own = sa.select(runs.c.id).where(runs.c.model_id == model.id)
            metrics = tables.training_metrics
            connection.execute(sa.delete(metrics).where(metrics.c.training_run_id.in_(own)))
            connection.execute(sa.delete(runs).where(runs.c.model_id == model.id))
            leases, nodes = tables.leases, tables.checkpoints
            connection.execute(sa.delete(leases).where(leases.c.model_id == model.id))
            connection.execute(
                sa.update(tables.models)
                .where(tables.models.c.id == model.id)
                .values(head_checkpoint_id=None)
            )
            connection.execute(sa.delete(nodes).where(nodes.c.model_id == model.id))
            connection.execute(sa.delete(tables.models).where(tables.models.c.id == model.id))
        # Only files under the platform's home are deleted; an added folder belongs to its owner.
        shutil.rmtree(self.home / "models" / model.id, ignore_errors=True)
        return model

    def needed_checkpoints(self, model: ModelRecord) -> set[str]:
        """Return the ids of checkpoints whose files must stay: head, named ones (also by clients of foreign protocols), origins and heads of
        forks."""
        needed = {model.head_checkpoint_id, model.config.origin_checkpoint}
        # Others have no files that could be needed.
        nodes = self.tree.with_files(model)
        needed |= {node.id for node in nodes if is_named(node) or node.metrics.get(CLIENT_NAMES)}
        for other in self.models():
            needed |= {other.head_checkpoint_id, other.config.origin_checkpoint}
            needed |= {
                node.id
                for node in nodes
                if node.folder is not None and other.folder.is_relative_to(node.folder)
            }
        return {identifier for identifier in needed if identifier is not None}

    def _needs(self, other: ModelRecord, model: ModelRecord) -> bool:
        if other.id == model.id:
            return False
        own = self.home / "models" / model.id
        nodes = set(self.tree.ids(model))
        return (
            other.base_model_id == model.id
            or other.folder.is_relative_to(own)
            or bool({other.head_checkpoint_id, other.config.origin_checkpoint} & nodes)
        )

    def _check_free(self, slug: str) -> None:
        if any(model.slug == slug for model in self.models()):
            raise ConflictError(f"There is already a model {slug!r}; choose another name.")

    def _insert(
        self,
        model_id: str,
        name: str,
        folder: Path,
        *,
        kind: str,
        config: ModelConfig,
        base: str | None = None,
        head: str | None = None,
    ) -> ModelRecord:
        assert self.team is not None
        _refuse_servers(config)
        if config.backend is not None and kind != config.backend.name:
            raise UsageError(
                f"A model of a training backend is made by: hud train BASE_MODEL TASKS --backend {config.backend.name}"
            )
        if (config.provider is not None) != (kind == "provider"):
            raise UsageError(
                "A provider's model is registered by its URL: hud models add NAME --url URL"
            )
        if config.training == "lora" and config.lora_targets:
            # Lazy: loads torch.
            from hud.engine.lora import check_targets
            from hud.engine.pretrained import empty_decoder

            check_targets(empty_decoder(folder), config.lora_targets)
        if config.router_replay:
            _check_replay(folder, config)
        record = ModelRecord(
            id=model_id,
            team_id=self.team,
            slug=slug_of(name),
            name=name.strip(),
            folder=folder,
            kind=kind,
            created_at=datetime.now(UTC),
            base_model_id=base,
            head_checkpoint_id=head,
            config=config,
        )
        plain_config = config.model_dump(mode="json")
        values = {**vars(record), "folder": str(folder), "config": plain_config}
        if folder.parent == self.home / "models" / model_id:
            flush_tree(folder.parent)
        try:
            self.store.write(sa.insert(tables.models).values(**values))
        except IntegrityError:
            raise ConflictError(
                f"There is already a model {record.slug!r}; choose another name."
            ) from None
        return record


def _of_source(source: str, config: ModelConfig | None, folder: Path) -> ModelConfig:
    """Return the configuration of a model that is added from `source`; without a dtype of its own it has the folder's.

    A CPU that is slower in bfloat16 computes it in float32 (`computing_type`); optimizers keep float32 masters.
    """
    config = config or ModelConfig()
    update: dict[str, Any] = {"source": source, "origin_checkpoint": None}
    update["lineage"] = exported_lineage(folder)
    stored = DecoderConfig.from_folder(folder).dtype
    if "dtype" not in config.model_fields_set and stored == "bfloat16":
        update["dtype"] = stored
    return config.model_copy(update=update)


def _refuse_servers(config: ModelConfig | None) -> None:
    """Raise `UsageError` for servers in a new model's configuration: only some callers may set them."""
    if config is not None and config.servers is not None:
        raise UsageError(
            "Servers are given to a model that is there, such as vLLM's: hud models vllm SLUG URL"
        )


def slug_of(name: str) -> str:
    """Return the slug of a display name. Raises `UsageError` for a name without a valid slug."""
    slug = re.sub(r"[\s/:]+", "-", name.strip().lower())
    if not _SLUG.fullmatch(slug):
        raise UsageError(
            f"{name!r} is not a valid name for a model: use up to 100 letters, digits, dots, dashes and underscores, "
            "beginning and ending with a letter or digit."
        )
    return slug


def _check_replay(folder: Path, config: ModelConfig) -> None:
    """Raise `UsageError` for a model whose router choices cannot be replayed."""
    # Lazy: loads torch.
    from hud.engine.models.routing import routers_of
    from hud.engine.pretrained import empty_decoder

    if config.provider is not None or config.backend is not None:
        raise UsageError("--router-replay needs a model that this platform samples.")
    if not routers_of(empty_decoder(folder)):
        raise UsageError("--router-replay is for models with experts; this one has no router.")


def _same_adapter(first: ModelConfig, other: ModelConfig) -> bool:
    shape = {"lora_rank", "lora_alpha", "lora_targets", "lora_tower"}
    return first.model_dump(include=shape) == other.model_dump(include=shape)


def _record(row: sa.Row[tuple[object, ...]]) -> ModelRecord:
    config = ModelConfig.model_validate(row.config or {})
    return ModelRecord(**{**row._mapping, "folder": Path(row.folder), "config": config})
