"""The model, run over a ragged batch: the new tokens of many sequences in one row, each with its own cache.

Invariant: nothing is padded. Linear layers see all tokens of a step at once, which is where batching pays;
attention runs sequence by sequence over each one's own keys and values, so no sequence sees another.

The seam is transformers' AttentionInterface: an attention function of our own, to which the model passes the
keyword argument `spans` through. It works for every model that follows that interface; `load` proves it for
the model at hand by comparing with the model's own attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from rollhook.embedded.kv import KVLayout, SequenceCache
from rollhook.embedded.models import quiet_progress
from rollhook.errors import ConfigError

_ATTENTION = "rollhook_packed"
_UNSUPPORTED = ("sliding_window", "softcap", "s_aux")  # what some families pass that changes the attention
_PROBE_IDS = (3, 1, 4, 1, 5, 9, 2, 6)
_PROBE_TOLERANCE = 1e-2


@dataclass(frozen=True)
class _Span:
    """One sequence's new tokens in the row, and views of its cache by layer."""

    length: int
    fresh: Sequence[torch.Tensor]  # [2, heads, length, head_dim]: to be written in this step
    keys: Sequence[torch.Tensor]  # [1, heads, held + length, head_dim]
    values: Sequence[torch.Tensor]  # [1, heads, held + length, head_dim]
    mask: torch.Tensor | None  # [length, held + length]; None where causal or all-seeing is right


class PackedModel:
    """A causal language model whose forward pass takes (cache, new ids) pairs."""

    def __init__(self, model: Any, layout: KVLayout, context_len: int, vocabulary: int) -> None:
        self.layout = layout
        self.context_len = context_len
        self.vocabulary = vocabulary
        self._model = model

    @classmethod
    def load(cls, path: Path, dtype: torch.dtype) -> PackedModel:
        """The model in `path`, checked. Raises ConfigError if its attention cannot be honoured."""
        from transformers import AttentionInterface, AutoModelForCausalLM

        AttentionInterface.register(_ATTENTION, _attend)
        try:
            with quiet_progress():
                model = AutoModelForCausalLM.from_pretrained(
                    path, dtype=dtype, attn_implementation=_ATTENTION, local_files_only=True
                ).eval()
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"the model in {path} cannot be loaded: {error}") from error
        text = model.config.get_text_config()
        heads = int(text.num_attention_heads)
        layout = KVLayout(
            layers=int(text.num_hidden_layers),
            heads=int(getattr(text, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
            dtype=dtype,
        )
        packed = cls(model, layout, int(text.max_position_embeddings), int(text.vocab_size))
        packed._prove(path)
        return packed

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The ids that end an answer, by the model's generation configuration."""
        eos = self._model.generation_config.eos_token_id
        return frozenset([eos] if isinstance(eos, int) else eos or [])

    def forward(self, batch: Sequence[tuple[SequenceCache, Sequence[int]]]) -> torch.Tensor:
        """Run each sequence's new ids, extend its cache, and return the logits after its last one.

        batch: N pairs of a cache and at least one new id. Returns [N, vocabulary].
        """
        with torch.inference_mode():
            spans: list[_Span] = []
            positions: list[torch.Tensor] = []
            for cache, ids in batch:
                held = len(cache.tokens)
                stop = held + len(ids)
                cache.grow(stop)
                keys, values = cache.held(stop)
                spans.append(_Span(len(ids), cache.fresh(held, stop), keys, values, _mask(held, len(ids))))
                positions.append(torch.arange(held, stop))
            logits = self._model(
                input_ids=torch.tensor([[token for _, ids in batch for token in ids]]),
                position_ids=torch.cat(positions)[None],
                logits_to_keep=torch.tensor([span.length for span in spans]).cumsum(0) - 1,
                use_cache=False,
                spans=spans,
            ).logits[0]
        for cache, ids in batch:
            cache.tokens.extend(ids)
        return logits

    def _prove(self, path: Path) -> None:
        """Compare with the model's own attention on a few tokens, half of them over a filled cache."""
        try:
            with _in_float32(
                self._model
            ):  # in bfloat16, rounding alone moves log-probabilities by more than 1
                cache, half = SequenceCache(replace(self.layout, dtype=torch.float32)), len(_PROBE_IDS) // 2
                self.forward([(cache, _PROBE_IDS[:half])])
                ours = self.forward([(cache, _PROBE_IDS[half:])])[0]
                self._model.set_attn_implementation("eager")
                with torch.inference_mode():
                    theirs = self._model(input_ids=torch.tensor([_PROBE_IDS]), use_cache=False).logits[0, -1]
                self._model.set_attn_implementation(_ATTENTION)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            raise ConfigError(f"the embedded engine cannot run the model in {path}: {error}") from error
        gap = float((ours.log_softmax(-1) - theirs.log_softmax(-1)).abs().max())
        if not gap < _PROBE_TOLERANCE:
            raise ConfigError(
                f"the embedded engine cannot run the model in {path}: its log-probabilities are {gap:.3g} "
                "away from the model's own; serve it with SGLang"
            )


@contextmanager
def _in_float32(model: Any) -> Iterator[None]:
    """The model with float32 weights, and with its own again. Buffers keep the type they were made in."""
    own = [(parameter, parameter.data) for parameter in model.parameters()]
    for parameter, data in own:
        parameter.data = data.float()
    try:
        yield
    finally:
        for parameter, data in own:
            parameter.data = data


def _mask(held: int, fresh: int) -> torch.Tensor | None:
    """Who sees whom when `fresh` tokens follow `held` ones; None if one new token or no old ones."""
    if fresh == 1 or held == 0:
        return None
    return torch.ones(fresh, held + fresh, dtype=torch.bool).tril(held)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    spans: Sequence[_Span],
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: query [1, heads, T, head_dim] -> [1, T, heads, head_dim]."""
    for name in _UNSUPPORTED:
        if others.get(name) is not None:
            raise ValueError(f"its attention has a {name}; serve it with SGLang")
    layer: int = module.layer_idx
    lengths = [span.length for span in spans]
    fresh = torch.stack((key[0], value[0])).split(lengths, dim=2)
    rows = []
    for span, new, asking in zip(spans, fresh, query.split(lengths, dim=2), strict=True):
        span.fresh[layer].copy_(new)
        keys, values = span.keys[layer], span.values[layer]
        if span.length == 1:
            # one new token sees everything: the heads of a group can stand as its queries, no key is copied
            grouped = asking.reshape(1, keys.shape[1], -1, keys.shape[3])
            seen = scaled_dot_product_attention(grouped, keys, values, scale=scaling)
            rows.append(seen.reshape(1, 1, -1, keys.shape[3]))
        else:
            seen = scaled_dot_product_attention(
                asking,
                keys,
                values,
                attn_mask=span.mask,
                is_causal=span.mask is None,
                scale=scaling,
                enable_gqa=True,
            )
            rows.append(seen.transpose(1, 2))
    return torch.cat(rows, dim=1), None
