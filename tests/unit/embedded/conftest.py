"""A real model that takes milliseconds: a toy Qwen3 with random weights and SmolLM2's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rollhook.embedded.params import SamplingParams, parse_request

if TYPE_CHECKING:
    from rollhook.embedded.batcher import Batcher, Generation
    from rollhook.embedded.packed import PackedModel


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory, smollm2_tokenizer: Any) -> Path:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(smollm2_tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.3,  # wide enough that the answers are far from uniform
        eos_token_id=smollm2_tokenizer.eos_token_id,
        bos_token_id=None,
    )
    path = tmp_path_factory.mktemp("tiny-qwen3")
    Qwen3ForCausalLM(config).save_pretrained(path)
    smollm2_tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def one_thread() -> None:
    """torch on one thread, as the engine runs it on two cores: threads that spin for each other cost more."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tiny_path: Path, one_thread: None) -> PackedModel:
    import torch

    from rollhook.embedded.packed import PackedModel

    return PackedModel.load(tiny_path, torch.float32)


@pytest.fixture(scope="session")
def reference(tiny_path: Path) -> Any:
    """The same weights in transformers' own hands."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_path, dtype=torch.float32).eval()


class Bench:
    """A batcher over the tiny model, and what tests do with it."""

    def __init__(self, model: PackedModel, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer

    def batcher(self, *, max_batch: int = 8, max_tokens: int = 8192, chunk_tokens: int = 256) -> Batcher:
        from rollhook.embedded.batcher import Batcher

        return Batcher(
            self._model,
            self._tokenizer,
            max_batch=max_batch,
            max_tokens=max_tokens,
            chunk_tokens=chunk_tokens,
        )

    @staticmethod
    def add(batcher: Batcher, ids: list[int], rid: str = "r", **params: Any) -> Generation:
        return batcher.add(parse_request({"input_ids": ids, "sampling_params": params}), rid)

    @staticmethod
    def finish(batcher: Batcher, steps: int = 2000) -> None:
        for _ in range(steps):
            if batcher.idle:
                return
            batcher.step()
        raise AssertionError(f"still busy after {steps} steps")

    def answer(self, ids: list[int], **params: Any) -> Generation:
        """One request, alone in a batcher of its own."""
        batcher = self.batcher()
        sequence = self.add(batcher, ids, **params)
        self.finish(batcher)
        return sequence


@pytest.fixture
def bench(tiny: PackedModel, smollm2_tokenizer: Any) -> Bench:
    return Bench(tiny, smollm2_tokenizer)


@pytest.fixture(scope="session")
def greedy() -> SamplingParams:
    return SamplingParams(temperature=0.0)
