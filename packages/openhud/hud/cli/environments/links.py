"""Link of a folder to the platform, in its `.hud/config.json`, valid for one server and one team."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hud import exact_json, settings
from hud.client import connect
from hud.durable_files import write_file

VERSION = 1


async def scope() -> dict[str, Any]:
    """Return the server and the team of the ids."""
    me = await connect().get("/v2/auth/me")
    url = urlsplit(settings.load().api_url or "")
    origin = f"{url.scheme}://{url.netloc}" if url.netloc else "local"
    return {"origin": origin, "user_id": me["user_id"], "team_id": me["team_id"]}


async def linked(folder: Path, name: str) -> str | None:
    """Return the id stored under `name` (`taskset_id`, `registry_id`), unless it belongs to another server or team."""
    content = _read(folder)
    value = content.get(name)
    if not isinstance(value, str):
        return None
    return value if content.get("scope") == await scope() else None


async def link(folder: Path, **ids: str) -> None:
    """Store ids, removing those of another server or team."""
    content, now = _read(folder), await scope()
    if content.get("scope") != now:
        content = {}
    path = _path(folder)
    content = {**content, "version": VERSION, "scope": now, **ids}
    write_file(path, exact_json.dumps(content, option=exact_json.OPT_INDENT_2) + b"\n")


def _read(folder: Path) -> dict[str, Any]:
    try:
        content = exact_json.loads(_path(folder).read_bytes())
    except (OSError, exact_json.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def _path(folder: Path) -> Path:
    return (folder if folder.is_dir() else folder.parent) / ".hud" / "config.json"
