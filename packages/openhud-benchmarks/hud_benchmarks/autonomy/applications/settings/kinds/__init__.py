"""Kinds of tasks in the panel."""

from hud_benchmarks.autonomy.applications.settings.kinds import access, account, people

KINDS = (*people.KINDS, *access.KINDS, *account.KINDS)
