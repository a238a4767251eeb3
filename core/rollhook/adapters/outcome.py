"""A finished session's Samples: its segments as siblings of one rollout, by the same rules as `generate`.

Invariant: at least one certified Sample comes back for every session, also for one that sampled nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollhook.adapters.sessions import Session
from rollhook.credit import Reward
from rollhook.errors import RolloutError
from rollhook.ledger import Segment
from rollhook.sample import Sample, Status, rollout_id_of
from rollhook.siblings import Origin, Part, aborted_siblings, failed_sample, merge_siblings

RECORD_KEY = "rollhook_adapter"


def session_samples(
    session: Session, base_sample: Sample, reward: float, extra_metadata: Mapping[str, Any]
) -> list[Sample]:
    """The session as training Samples. `metadata["rollhook_adapter"]` holds what its clients asked for."""
    ledgers = list(session.ledgers.values())
    origin = Origin(
        sample=base_sample,
        rollout_id=rollout_id_of(base_sample),
        sampled_tokens=sum(ledger.sampled_tokens for ledger in ledgers),
        trained_tokens=sum(ledger.trained_tokens for ledger in ledgers),
    )
    parts = [
        Part(segment, _status(session, segment), _response(session, segment))
        for segment in session.segments()
    ]
    if not parts:
        samples = [failed_sample(origin, RolloutError("nothing was sampled in the adapter's session"))]
    elif session.last_finish == "abort":
        samples = aborted_siblings(origin, parts)
    else:
        samples = merge_siblings(origin, parts, Reward(value=reward))
    for sample in samples:
        sample.metadata.update(extra_metadata)
        sample.metadata[RECORD_KEY] = session.record()
    if session.images_of:
        _give_images(session, samples)
    return samples


def _give_images(session: Session, samples: list[Sample]) -> None:
    """Each Sample's images, in the order of their places in its tokens, as processors take them."""
    shown = {
        tuple(segment.tokens): session.images_of.get(segment.request_ids[-1], ())
        for segment in session.segments()
    }
    for sample in samples:
        if digests := shown.get(tuple(sample.tokens)):
            sample.multimodal_inputs = {"images": [session.images[digest] for digest in digests]}


def _status(session: Session, segment: Segment) -> Status:
    cut = session.truncated or segment.finish_reason == "length"
    return Status.TRUNCATED if cut else Status.COMPLETED


def _response(session: Session, segment: Segment) -> str:
    renderer = next(iter(session.ledgers.values())).renderer
    return renderer.decode(segment.tokens[segment.prompt_length :])
