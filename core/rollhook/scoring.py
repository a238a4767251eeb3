"""Finished Samples in, their scores out: by the verifiers that their rows name, and without an engine.

Invariant: every Sample gets a Score or the RolloutError that kept it from one; a fault of one row takes no
score from another, unless a verifier that sees the whole group failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace

from rollhook.errors import RolloutError, RowError
from rollhook.hookspecs import VerifierSpec
from rollhook.opened import OpenVerifier, weighted_sum
from rollhook.protocols import EnvironmentResult, Score, View
from rollhook.rollout import LiveRollout, prompt_messages
from rollhook.runtime import Runtime
from rollhook.sample import Sample, rollout_id_of
from rollhook.siblings import result_of
from rollhook.spec import Choice

_RECORDED = {each.name for each in fields(EnvironmentResult)}


@dataclass(slots=True)
class _Answer:
    """One Sample on its way to a score. scores: what each verifier gave. error: what ended it."""

    sample: Sample
    rollout: LiveRollout
    chosen: Sequence[Choice] = ()
    scores: dict[str, tuple[OpenVerifier, Score]] = field(default_factory=dict)
    error: RolloutError | None = None

    def result(self) -> Score | RolloutError:
        """The weighted sum in the order of the row, or the error."""
        return self.error or weighted_sum([self.scores[choice.name] for choice in self.chosen])


async def score_samples(
    runtime: Runtime, samples: Sequence[Sample], *, by: Choice | None = None
) -> list[Score | RolloutError]:
    """The score of each Sample, in order, whatever its reward says.

    by: one verifier for all, in place of those that the rows name; where a row names it too, as the row
    configures it. A verifier that sees all answers to a prompt is given those of `samples` with the same
    group_index, one for each rollout.
    """
    async with AsyncExitStack() as stack:
        answers = []
        for sample in samples:
            rollout = LiveRollout(runtime=runtime, row=sample, rollout_id=rollout_id_of(sample), sampling={})
            answers.append(_Answer(sample, rollout))
            await stack.enter_async_context(rollout.closing)
        async with asyncio.TaskGroup() as tasks:
            for answer in answers:
                tasks.create_task(_score_alone(answer, by))
        async with asyncio.TaskGroup() as tasks:
            for group in _groups(answers):
                tasks.create_task(_score_together(group))
        return [answer.result() for answer in answers]


async def _score_alone(answer: _Answer, by: Choice | None) -> None:
    """Ask the verifiers that need no other answer."""
    try:
        answer.chosen = _choices(answer, by)
        for choice in answer.chosen:
            if not _is_group(choice):
                verifier = await answer.rollout.open_verifier(choice)
                answer.scores[choice.name] = (verifier, await verifier.score(_view(answer)))
    except RolloutError as error:
        answer.error = error


def _choices(answer: _Answer, by: Choice | None) -> Sequence[Choice]:
    resolver, metadata = answer.rollout.runtime.resolver, answer.rollout.metadata
    if by is not None:
        named = resolver.resolve(metadata).verifiers if metadata.get("rollhook") is not None else ()
        return [next((replace(own, weight=1.0) for own in named if own.name == by.name), by)]
    chosen = resolver.resolve(metadata).verifiers
    if not chosen:
        raise RowError("verifier: the row names none and neither does the run; set one of them")
    return chosen


def _is_group(choice: Choice) -> bool:
    return isinstance(choice.spec, VerifierSpec) and choice.spec.group


@dataclass(slots=True)
class _Group:
    """The answers to one prompt that one verifier sees together."""

    choice: Choice
    members: list[_Answer] = field(default_factory=list)


def _groups(answers: Sequence[_Answer]) -> list[_Group]:
    found: dict[tuple[object, str, str], _Group] = {}
    for answer in answers:
        for choice in answer.chosen if answer.error is None else ():
            if _is_group(choice):
                key = (answer.sample.group_index, choice.name, choice.config.model_dump_json())
                found.setdefault(key, _Group(choice)).members.append(answer)
    return list(found.values())


async def _score_together(group: _Group) -> None:
    """Ask one verifier of a whole group; the siblings of one rollout are one answer."""
    rollouts = {member.rollout.rollout_id: member for member in reversed(group.members)}
    first, name = group.members[0], group.choice.name
    try:
        if len(rollouts) < 2:
            raise RowError(
                f"verifier: {name} compares the answers to a prompt, and got one: hand over whole groups "
                "(in a file, rows that follow each other; in slime, --group-rm with return_shape: sample)",
                plugin=name,
            )
        verifier = await first.rollout.open_verifier(group.choice)
        scores = await verifier.score_group([_view(member) for member in rollouts.values()])
    except RolloutError as error:
        for member in group.members:
            member.error = error
        return
    by_rollout = dict(zip(rollouts, scores, strict=True))
    for member in group.members:
        member.scores[name] = (verifier, by_rollout[member.rollout.rollout_id])


def _view(answer: _Answer) -> View:
    """What a verifier sees of a finished Sample: the recorded answer, else all of its response."""
    sample = answer.sample
    result = result_of(sample)
    recorded = result.get("environment")
    said = result.get("answer")
    response = said if isinstance(said, str) else sample.response
    environment = None
    if isinstance(recorded, dict) and recorded.keys() == _RECORDED:
        environment = EnvironmentResult(**recorded)
    return View(
        prompt=sample.prompt,
        label=sample.label,
        messages=[*prompt_messages(sample), {"role": "assistant", "content": response}],
        response=response,
        metadata=sample.metadata,
        environment=environment,
    )
