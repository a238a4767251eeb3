"""One run whose rows take their pieces from four distributions, beside rows that name other things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollhook.testing import ScriptedEngine, ScriptedRequest
from tests.e2e.conftest import Rollhook, engine_thread, write_rows

CORPUS = Path(__file__).parents[2] / "plugins" / "search-r1" / "examples" / "corpus.jsonl"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>'


def say(request: ScriptedRequest) -> str:
    """A model that calculates, searches, then answers; each where its prompt allows it."""
    prompt = request.prompt
    if "Doc 1(Title: " in prompt:
        return "<answer>42</answer>"
    if "<tool_response>" in prompt:
        return "<search>capital of Australia</search>" if "<search>" in prompt else "42"
    if '"name": "calculator"' in prompt:
        return CALL
    return "42" if "other agents" not in prompt.lower() else "so 42"


def exported(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_row_of_four_distributions_and_rows_of_other_things_run_in_one_batch(
    tmp_path: Path, qwen3_tokenizer: Any, rollhook: Rollhook
) -> None:
    four = {
        "environment": "search-r1",  # rollhook-search-r1
        "tools": "calculator",  # rollhook-calculator
        "topology": {"name": "debate", "agents": 2, "rounds": 1, "extractor": "answer"},  # rollhook-debate
        "verifier": "number",  # rollhook
    }
    data = write_rows(
        tmp_path / "rows.jsonl",
        {"prompt": "What is six times seven?", "label": "42", "metadata": {"rollhook": four}},
        {
            "prompt": "6*7?",
            "label": "42",
            "metadata": {"rollhook": {"tools": "calculator", "verifier": "number"}},
        },
        {
            "prompt": "6*7?",
            "label": "41",
            "metadata": {"rollhook": {"topology": "debate", "verifier": "number"}},
        },
        {"prompt": "42", "label": "42", "metadata": {"rollhook": {"verifier": "exact_match"}}},
    )
    config = tmp_path / "rollhook.yaml"
    config.write_text(
        f"tool_parser: qwen25\nsettings:\n  search-r1: {{corpus: {CORPUS}, cache: {tmp_path / 'cache'}}}\n"
    )
    with engine_thread(qwen3_tokenizer, say) as engine:
        ran = rollhook(
            "run", data, "--engine", engine.url, "--tokenizer", qwen3_tokenizer.name_or_path,
            "--config", config, "--out", tmp_path / "out",
        )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    rollhook("export", tmp_path / "out", tmp_path / "samples.jsonl")
    samples = exported(tmp_path / "samples.jsonl")

    results = [sample["metadata"]["rollhook_result"] for sample in samples]
    assert [
        (s["index"], r["role"], r["turns"], s["reward"]) for s, r in zip(samples, results, strict=True)
    ] == [
        (0, "agent_1", 3, 1.0),
        (0, "agent_2", 3, 1.0),
        (1, "main", 2, 1.0),
        (2, "agent_1", 2, 0.0),
        (2, "agent_2", 2, 0.0),
        (2, "agent_3", 2, 0.0),
        (3, "main", 1, 1.0),
    ]
    assert {s["status"] for s in samples} == {"completed"}
    assert sum(sum(s["loss_mask"]) for s in samples) == sampled(engine)


def sampled(engine: ScriptedEngine) -> int:
    return sum(len(turn.token_ids) for turn in engine.sampled)
