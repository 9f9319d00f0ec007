"""Teachers of on-policy distillation: the logprobs of a student's sampled tokens under another registered model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.learning.datums import Datum, check_length
from hud.platform.models.provider_models import registered_model
from hud.platform.models.records import ModelRecord
from hud.platform.secrets import Secrets
from hud.platform.training.served_teacher import ServedTeacher

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat
    from hud.platform.models.loaded_policies import Policies
    from hud.platform.models.registry import Registry


class Teacher:
    """A registered model at its head, in this process or at a training backend."""

    def __init__(self, policies: Policies, model: ModelRecord) -> None:
        self._policies, self._model = policies, model

    @staticmethod
    def named(
        registry: Registry,
        policies: Policies,
        reference: str,
        student: ModelRecord,
        *,
        hinted: bool = False,
    ) -> Teacher | ServedTeacher:
        """Return the teacher with this slug or id. `hinted`: it reads more than the student, and may be the same model.

        Raises `UsageError` for one that cannot score the student's tokens.
        """
        model = registry.of(student.team_id).model(reference)
        if model.id == student.id and not hinted:
            raise UsageError(
                f"{student.slug!r} cannot be its own teacher unless it reads a hint (--teacher-hint); leave the teacher out for the KL "
                "to its base."
            )
        chat = policies.serving(student).policy.chat
        teacher: Teacher | ServedTeacher
        if model.config.provider is not None:
            secrets = Secrets(registry.home, student.team_id)
            teacher = ServedTeacher(registered_model(model, model.config.provider, secrets))
        else:
            teacher = Teacher(policies, model)
        if not teacher.has_tokens_of(chat):
            reason = f"has another tokenizer than {student.slug!r}, so that it cannot score the student's tokens"
            raise _unable(model, student, reason)
        return teacher

    def has_tokens_of(self, student: ChatFormat) -> bool:
        """Return whether every token id has the same text for both."""
        own = self._policies.serving(self._model).policy.chat.tokenizer
        return bool(student.tokenizer.get_vocab() == own.get_vocab())

    def score(self, datums: Sequence[Datum], top: int) -> list[Datum]:
        """Return the datums with the teacher's logprobs, and its `top` likeliest tokens, as their reference. Raises `UsageError` beyond its context."""
        serving = self._policies.serving(self._model)
        most = serving.policy.decoder.config.max_position_embeddings
        for datum in datums:
            check_length(datum.length, f"A run, for the teacher {self._model.slug!r},", most)
        return serving.score(datums, top)


def _unable(teacher: ModelRecord, student: ModelRecord, reason: str) -> UsageError:
    return UsageError(
        f"The teacher {teacher.slug!r} {reason}; learn from its runs: hud eval TASKS {teacher.slug} --all, then "
        f"hud train {student.slug} TASKS --from JOB."
    )
