"""Teachers of on-policy distillation: the logprobs of a student's sampled tokens under another registered model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hud.engine.cpu_threads import on_all_cores
from hud.engine.learn.scoring import scored_by
from hud.errors import UsageError
from hud.learning.datums import Datum, check_length
from hud_platform.access.secrets import Secrets
from hud_platform.models.provider_models import registered_model
from hud_platform.models.records import BASE, ModelRecord
from hud_platform.training.served_teacher import ServedTeacher

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat
    from hud.engine.policy import Policy
    from hud_platform.models.loaded_policies import Policies
    from hud_platform.models.registry import Registry


class Teacher:
    """A registered model, in this process or at a training backend."""

    def __init__(
        self, policies: Policies, model: ModelRecord, pinned: Callable[[], Policy] | None
    ) -> None:
        """`pinned` returns the policy at a checkpoint; None: the model is at its head."""
        self._policies, self._model, self._pinned = policies, model, pinned

    @staticmethod
    def named(
        registry: Registry,
        policies: Policies,
        reference: str,
        checkpoint: str | None,
        student: ModelRecord,
    ) -> Teacher | ServedTeacher:
        """Return the teacher with this slug or id, at a checkpoint or, where it is None, at its head.

        Raises `UsageError` for one that cannot score the student's tokens, and `NotFoundError` for an unknown checkpoint.
        """
        model = registry.of(student.team_id).model(reference)
        if model.id == student.id and checkpoint is None:
            raise UsageError(
                f"{student.slug!r} cannot be its own teacher at its head unless it reads a hint (--teacher-hint), or at a checkpoint; leave the "
                "teacher out for the KL to its base."
            )
        chat = policies.serving(student).policy.chat
        teacher: Teacher | ServedTeacher
        remote = model.config.provider is not None or model.config.backend is not None
        if remote and checkpoint is not None:
            raise _unable(model, student, "has no checkpoints on this platform")
        if model.config.provider is not None:
            secrets = Secrets(registry.home, student.team_id)
            teacher = ServedTeacher(registered_model(model, model.config.provider, secrets))
        else:
            pinned = None
            if checkpoint is not None:
                place = registry.tree.find(model, checkpoint) or BASE
                pinned = partial(policies.policy, model, place)
            teacher = Teacher(policies, model, pinned)
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
        if self._pinned is None:
            return serving.score(datums, top)
        decoder = self._pinned().decoder
        return on_all_cores(lambda: scored_by(decoder, datums, top))


def _unable(teacher: ModelRecord, student: ModelRecord, reason: str) -> UsageError:
    return UsageError(
        f"The teacher {teacher.slug!r} {reason}; learn from its runs: hud eval TASKS {teacher.slug} --all, then "
        f"hud train {student.slug} TASKS --from JOB."
    )
