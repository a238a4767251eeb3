from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rollhook.embedded.kv import SequenceCache
from rollhook.embedded.packed import PackedModel
from rollhook.errors import ConfigError


def plain_logits(reference: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = reference(input_ids=torch.tensor([ids])).logits[0, -1]
    return logits


def test_sequences_packed_in_one_row_get_the_logits_each_would_get_alone(
    tiny: PackedModel, reference: Any
) -> None:
    prompts = [list(range(10, 10 + n)) for n in (1, 7, 40)]
    caches = [SequenceCache(tiny.layout) for _ in prompts]
    first = tiny.forward(list(zip(caches, [ids[: len(ids) // 2 + 1] for ids in prompts], strict=True)))
    rest = [(cache, ids[len(cache.tokens) :] or [99]) for cache, ids in zip(caches, prompts, strict=True)]
    second = tiny.forward(rest)

    assert first.shape == second.shape == (3, tiny.vocabulary)
    for row, cache in enumerate(caches):
        torch.testing.assert_close(second[row], plain_logits(reference, cache.tokens), atol=1e-4, rtol=0)


def test_a_cache_that_grows_past_its_capacity_keeps_what_it_held(tiny: PackedModel, reference: Any) -> None:
    cache = SequenceCache(tiny.layout)
    ids = [(7 * n) % 1000 for n in range(300)]
    for start in range(0, 300, 100):
        logits = tiny.forward([(cache, ids[start : start + 100])])

    assert cache.tokens == ids
    assert cache.capacity >= 300
    torch.testing.assert_close(logits[0], plain_logits(reference, ids), atol=1e-4, rtol=0)


def test_a_copied_prefix_is_independent_of_its_source(tiny: PackedModel, reference: Any) -> None:
    source = SequenceCache(tiny.layout)
    tiny.forward([(source, [5, 6, 7, 8])])
    copy = source.copy_prefix(2)
    logits = tiny.forward([(copy, [9, 10]), (source, [11])])

    assert (copy.tokens, source.tokens) == ([5, 6, 9, 10], [5, 6, 7, 8, 11])
    torch.testing.assert_close(logits[0], plain_logits(reference, copy.tokens), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits[1], plain_logits(reference, source.tokens), atol=1e-4, rtol=0)


def test_a_model_whose_attention_cannot_be_honoured_is_refused(tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)

    with pytest.raises(ConfigError, match="its attention has a sliding_window; serve it with SGLang"):
        PackedModel.load(tmp_path, torch.float32)


def test_bfloat16_weights_stay_so_and_answer_about_the_same(
    tiny_path: Path, tiny: PackedModel, one_thread: None
) -> None:
    half = PackedModel.load(tiny_path, torch.bfloat16)
    wide, narrow = (
        model.forward([(SequenceCache(model.layout), [5, 6, 7])])[0].float() for model in (tiny, half)
    )

    assert half.layout.bytes_per_token * 2 == tiny.layout.bytes_per_token
    assert float((wide - narrow).abs().mean()) == pytest.approx(0.0, abs=0.1)
    assert not torch.equal(wide, narrow)


def test_a_directory_without_weights_is_a_config_error(tmp_path: Path, tiny_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_path / "config.json").read_bytes())

    with pytest.raises(ConfigError, match="cannot be loaded"):
        PackedModel.load(tmp_path, torch.float32)
