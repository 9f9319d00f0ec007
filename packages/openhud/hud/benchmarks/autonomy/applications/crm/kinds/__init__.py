"""Kinds of tasks in the CRM."""

from hud.benchmarks.autonomy.applications.crm.kinds import accounts, sales
from hud.benchmarks.autonomy.web.application import Kind

KINDS: tuple[Kind, ...] = (*sales.KINDS, *accounts.KINDS)
