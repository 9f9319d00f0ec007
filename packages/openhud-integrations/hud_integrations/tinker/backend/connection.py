"""Connection to a Tinker service: its client, and its errors as ours.

Knows addresses, keys and base models; nothing of datums, checkpoints or chat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from hud.errors import HudError, NotFoundError, PlatformError, UsageError
from hud.eval.tasksets.suggestions import did_you_mean

WAIT_SECONDS = 1800.0
"""Most seconds that an answer of the service takes."""
CLOSE_SECONDS = 10.0
KEY = "TINKER_API_KEY"
_KEY_START = "tml-"


class LostClient(PlatformError):
    """The service does not know a session or a training client any more: it has expired, or its process was started again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 503)


def tinker_package() -> ModuleType:
    """Import the client. Raises `UsageError` where it is not installed."""
    try:
        import tinker
    except ImportError:
        raise UsageError(
            "Models on a Tinker service need its client where the platform runs: pip install tinker"
        ) from None
    module: ModuleType = tinker
    return module


class TinkerService:
    """A session with a Tinker service, opened with the first request and shared by the models of this process."""

    def __init__(self, url: str | None, key: str | None) -> None:
        """`url`: None for the client's own default. Raises `UsageError` without the package, or for a missing or wrong key."""
        self._tinker = tinker_package()
        if not key:
            raise UsageError(
                f"Models on a Tinker service need its key in {KEY}, which is not set: hud set {KEY}=tml-..."
            )
        if not key.startswith(_KEY_START):
            raise UsageError(f"{KEY} does not begin with {_KEY_START!r}, as every key of Tinker.")
        self.url, self._key = url, key
        self._opened: Any = None

    def new_training_client(self, base_model: str, rank: int, seed: int) -> Any:
        """Return a training client of new adapters on a base model."""
        with self.errors():
            made = self._client.create_lora_training_client(base_model, rank=rank, seed=seed)
            return made.result(WAIT_SECONDS)

    def loaded_training_client(self, path: str) -> Any:
        """Return a training client of a saved state, optimizer included."""
        with self.errors():
            made = self._client.create_training_client_from_state_with_optimizer(path)
            return made.result(WAIT_SECONDS)

    def sampling_client(self, *, base_model: str | None = None, path: str | None = None) -> Any:
        """Return a sampling client of a base model, or of saved weights."""
        with self.errors():
            made = self._client.create_sampling_client(model_path=path, base_model=base_model)
            return made.result(WAIT_SECONDS)

    def tokenizer_of(self, base_model: str) -> str:
        """Return the hub id or the folder of a base model's tokenizer. Raises `NotFoundError` for an unknown base model."""
        self._check_base_model(base_model)
        client = self.new_training_client(base_model, 1, 0)  # Only a training client has it.
        with self.errors():
            tokenizer_id = client.get_info().model_data.tokenizer_id
        return str(tokenizer_id or base_model)

    def close(self) -> None:
        """End the session."""
        opened, self._opened = self._opened, None
        if opened is not None:
            # A service that does not answer ends a session without heartbeats by itself.
            with suppress(HudError), self.errors():
                opened.close("success").result(CLOSE_SECONDS)

    @property
    def _client(self) -> Any:
        """The session's client; a new one after the service has lost it."""
        if self._opened is None:
            self._opened = self._tinker.ServiceClient(base_url=self.url, api_key=self._key)
        return self._opened

    def _check_base_model(self, base_model: str) -> None:
        with self.errors():
            client = self._tinker.RestClient(base_url=self.url, api_key=self._key)
            models = client.get_server_capabilities().result(WAIT_SECONDS).supported_models
        names = [
            model.model_name
            for model in models
            if model.model_name and model.trainable is not False
        ]
        if base_model not in names:
            hint = did_you_mean(base_model, names)
            raise NotFoundError(
                f"The Tinker service {self._place} has no base model {base_model!r}{hint}"
            )

    @property
    def _place(self) -> str:
        return f"at {self.url}" if self.url else "of Thinking Machines"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise the client's errors as ours: `UsageError` for a refused request, `PlatformError` 503 where a retry may help."""
        tinker = self._tinker
        try:
            yield
        except HudError:
            raise
        except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
            raise UsageError(
                f"The Tinker service {self._place} refuses the key in {KEY}: {_sentence(error)}"
            ) from error
        except tinker.NotFoundError as error:
            self._opened = None
            raise LostClient(f"The Tinker service {self._place}: {_sentence(error)}") from error
        except (tinker.BadRequestError, tinker.UnprocessableEntityError) as error:
            raise UsageError(
                f"The Tinker service {self._place} refuses a request: {_sentence(error)}"
            ) from error
        except tinker.RequestFailedError as error:
            text = f"The Tinker service {self._place} failed a request: {_sentence(error)}"
            if str(error.category).lower().endswith("user"):
                raise UsageError(text) from error
            raise PlatformError(text, 503) from error
        except (tinker.TinkerError, TimeoutError, RuntimeError) as error:
            raise PlatformError(
                f"The Tinker service {self._place} does not answer: {_sentence(error)}", 503
            ) from error


def _sentence(error: BaseException) -> str:
    """Return an error's first line; of a body in our form, its sentence."""
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        for name in ("detail", "message", "error"):
            if isinstance(body.get(name), str):
                return str(body[name])
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
