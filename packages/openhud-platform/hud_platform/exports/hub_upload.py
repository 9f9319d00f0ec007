"""Uploads of exported folders to the Hugging Face hub, by its own client."""

from __future__ import annotations

from pathlib import Path

from hud.errors import ConflictError, UsageError, reason_of
from hud_platform.models.weight_sources import is_hub_id


def check_repository(repository: str) -> None:
    """Raise `UsageError` for what is no hub id, and where this machine has no token of the hub."""
    if not is_hub_id(repository):
        raise UsageError(f"{repository!r} is no id of the hub; write it as OWNER/NAME.")
    try:
        from huggingface_hub import get_token
    except ImportError:
        raise UsageError(
            "Uploading a model needs huggingface_hub: pip install 'openhud[train]'."
        ) from None
    if get_token() is None:
        raise UsageError(
            "There is no token of the Hugging Face hub on this machine. Log in with `hf auth login`, or set HF_TOKEN."
        )


def create_repository(repository: str, *, private: bool) -> None:
    """Create a model's repository on the hub. Raises `ConflictError` for a name that is taken, `UsageError` where it fails."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().create_repo(repository, private=private)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status == 409:
            raise ConflictError(
                f"{repository} exists on the hub already; choose another name, or delete it there first."
            ) from error
        if status in (401, 403):
            raise UsageError(
                f"The hub's token of this machine may not create {repository}. Use one that may write there (HF_TOKEN)."
            ) from error
        raise _failed(repository, error) from error
    # The client raises errors of its HTTP library where no server answers.
    except Exception as error:
        raise _failed(repository, error) from error


def upload(folder: Path, repository: str, *, message: str) -> str:
    """Upload a folder as one commit; return the repository's address. Raises `UsageError` where it fails."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except Exception as error:
        raise _failed(repository, error) from error
    return f"{api.endpoint}/{repository}"


def _failed(repository: str, error: Exception) -> UsageError:
    return UsageError(
        f"{repository} could not be uploaded to the hub ({reason_of(error)}). Check the network; the exported folder is complete, and "
        f"`hf upload {repository} FOLDER` uploads it."
    )
