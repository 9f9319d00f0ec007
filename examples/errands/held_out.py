"""Errands that training never shows."""

from __future__ import annotations

from env import errand
from tasks import HELD_OUT

held_out = [errand(kind=kind, name=name) for kind, name in HELD_OUT]
