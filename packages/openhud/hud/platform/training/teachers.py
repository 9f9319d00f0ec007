"""Teachers of on-policy distillation: the logprobs of a student's sampled tokens under another registered model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hud.engine.cpu_threads import on_all_cores
from hud.engine.learn.scoring import logprobs_under
from hud.errors import UsageError
from hud.learning.datums import Datum, check_length
from hud.platform.models.provider_models import registered_model
from hud.platform.models.records import ModelRecord
from hud.platform.secrets import Secrets
from hud.platform.training.served_teacher import ServedTeacher

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat
    from hud.engine.policy import Policy
    from hud.platform.models.loaded_policies import Policies
    from hud.platform.models.registry import Registry


class Teacher:
    """A registered model in this process, at its head."""

    def __init__(self, policies: Policies, model: ModelRecord) -> None:
        self._policies, self._model = policies, model

    @staticmethod
    def named(
        registry: Registry, policies: Policies, reference: str, student: ModelRecord
    ) -> Teacher | ServedTeacher:
        """Return the teacher with this slug or id. Raises `UsageError` for one that cannot score the student's tokens."""
        model = registry.of(student.team_id).model(reference)
        if model.id == student.id:
            raise UsageError(
                f"{student.slug!r} cannot be its own teacher; leave the teacher out for the KL to its base."
            )
        chat = policies.serving(student).policy.chat
        teacher: Teacher | ServedTeacher
        if model.config.provider is not None:
            secrets = Secrets(registry.home, student.team_id)
            teacher = ServedTeacher(registered_model(model, model.config.provider, secrets))
        elif model.config.backend is not None:
            raise _unable(
                model, student, "has no weights on this platform, so that it scores no tokens"
            )
        else:
            teacher = Teacher(policies, model)
        if not teacher.has_tokens_of(chat):
            reason = f"has another tokenizer than {student.slug!r}, so that it cannot score the student's tokens"
            raise _unable(model, student, reason)
        return teacher

    def has_tokens_of(self, student: ChatFormat) -> bool:
        """Return whether every token id has the same text for both."""
        own = self._policy.chat.tokenizer
        return bool(student.tokenizer.get_vocab() == own.get_vocab())

    def score(self, datums: Sequence[Datum]) -> list[Datum]:
        """Return the datums with the teacher's logprobs as their reference. Raises `UsageError` beyond its context."""
        policy = self._policy
        most = policy.decoder.config.max_position_embeddings
        for datum in datums:
            check_length(datum.length, f"A run, for the teacher {self._model.slug!r},", most)
        with self._policies.fixed(self._model.id):
            rows = on_all_cores(lambda: logprobs_under(policy.decoder, datums))
        return [replace(datum, reference=row) for datum, row in zip(datums, rows, strict=True)]

    @property
    def _policy(self) -> Policy:
        return self._policies.policy(self._model, None)


def _unable(teacher: ModelRecord, student: ModelRecord, reason: str) -> UsageError:
    return UsageError(
        f"The teacher {teacher.slug!r} {reason}; learn from its runs: hud eval TASKS {teacher.slug} --all, then "
        f"hud train {student.slug} TASKS --from JOB."
    )
