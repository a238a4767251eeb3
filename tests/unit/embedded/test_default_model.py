"""The claims that only the real model can prove: what it answers is what transformers would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rollhook.embedded import resolve_model
from rollhook.embedded.batcher import Batcher
from rollhook.embedded.packed import PackedModel
from tests.unit.embedded.conftest import Bench


@pytest.fixture(scope="module")
def path(one_thread: None) -> Path:
    return resolve_model()


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def test_the_default_model_answers_as_transformers_does(path: Path, reference: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    bench = Bench(PackedModel.load(path, torch.float32), tokenizer)
    prompts: list[list[int]] = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in ("What is 7 + 5?", "Name three rivers of France and the seas they flow to.")
    ]

    batcher: Batcher = bench.batcher(chunk_tokens=32)
    greedy = [bench.add(batcher, ids, temperature=0.0, max_new_tokens=12) for ids in prompts]
    sampled = [bench.add(batcher, ids, temperature=0.8, seed=1, max_new_tokens=12) for ids in prompts]
    bench.finish(batcher)

    for ids, answer in zip(prompts, greedy, strict=True):
        prompt = torch.tensor([ids])
        expected = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
        )
        assert answer.ids == expected[0].tolist()
    for answer, temperature in [(each, 1.0) for each in greedy] + [(each, 0.8) for each in sampled]:
        with torch.inference_mode():
            logits = reference(input_ids=torch.tensor([answer.ids])).logits[0, answer.prompt_tokens - 1 : -1]
        logprobs = (logits / temperature).log_softmax(-1)
        recomputed = [float(row[token]) for row, token in zip(logprobs, answer.output_ids, strict=True)]
        assert answer.logprobs == pytest.approx(recomputed, abs=1e-3)
