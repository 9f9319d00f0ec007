"""Kinds of tasks in the CRM."""

from hud_benchmarks.autonomy.applications.crm.kinds import accounts, sales
from hud_benchmarks.autonomy.web.application import Kind

KINDS: tuple[Kind, ...] = (*sales.KINDS, *accounts.KINDS)
