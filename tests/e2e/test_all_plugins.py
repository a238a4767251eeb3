"""One run over rows of search-r1, retool, terminal, browser and debate: every reward is right."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollhook.testing import ScriptedRequest
from tests.e2e.conftest import Rollhook, engine_thread, write_rows

PLUGINS = Path(__file__).parents[2] / "plugins"
TASKS = PLUGINS / "terminal" / "examples" / "tasks"

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]


def say(request: ScriptedRequest) -> str:
    """A model that does what the last words of its prompt ask for."""
    asked, _, said = request.prompt.partition("<|im_start|>assistant")
    if "sales.csv" in asked:
        solution = (TASKS / "sum-sales" / "solution" / "solve.sh").read_text()
        call = {"name": "bash", "arguments": {"command": solution}}
        return "Done." if "tool_response" in said else f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    if "capital of Australia" in asked:
        return "<answer>Canberra</answer>" if "Doc 1(" in said else "<search>capital of Australia</search>"
    if "<interpreter>" in asked:
        computed = "7^{2024}" in asked and "\n401\n" in said
        return "<answer>\n\\boxed{401}\n</answer>" if computed else "<code>print(pow(7, 2024, 1000))</code>"
    if "Goal: " in asked:
        button = re.search(r"^\[(\d+)\] button", asked.rsplit("Page: ", 1)[1], re.MULTILINE)
        assert button is not None, asked
        return f'```\nclick("{button[1]}")\n```'
    return "I say 12." if "agents" in request.prompt else "The answer is 12."


def test_every_row_of_a_mixed_file_earns_what_it_should(
    tmp_path: Path, qwen3_tokenizer: Any, rollhook: Rollhook
) -> None:
    miniwob = {"name": "browser/miniwob", "task": "click-test", "seed": 0}
    rows: list[tuple[str, Any, Any, float]] = [
        ("What is the capital of Australia?", {"target": ["Canberra"]}, "search-r1", 1.0),
        ("What is the capital of Australia?", {"target": ["Sydney"]}, "search-r1", 0.0),
        ("What is the remainder when 7^{2024} is divided by 1000?", "401", "retool", 1.0),
        ("What is the remainder when 7^{2024} is divided by 1000?", "7", "retool", -1.0),
        ("sum-sales", None, {"environment": {"name": "terminal", "task": "sum-sales"}}, 1.0),
        ("Do the task on the page.", None, {"environment": miniwob}, 1.0),
        ("7 + 5?", "12", {"topology": "debate", "verifier": "number"}, 1.0),
        ("7 + 5?", "13", {"topology": "debate", "verifier": "number"}, 0.0),
    ]
    data = write_rows(
        tmp_path / "rows.jsonl",
        *(
            {"prompt": prompt, "label": label, "metadata": {"rollhook": spec}}
            for prompt, label, spec, _ in rows
        ),
    )
    search = {
        "corpus": str(PLUGINS / "search-r1" / "examples" / "corpus.jsonl"),
        "cache": str(tmp_path / "c"),
    }
    config = tmp_path / "rollhook.yaml"
    settings = {"search-r1": search, "terminal": {"tasks": str(TASKS)}}
    config.write_text(yaml.safe_dump({"tool_parser": "qwen25", "settings": settings}))

    with engine_thread(qwen3_tokenizer, say) as engine:
        ran = rollhook(
            "run", data, "--engine", engine.url, "--tokenizer", qwen3_tokenizer.name_or_path,
            "--config", config, "--out", tmp_path / "out", "--concurrency", 4,
        )  # fmt: skip
    rollhook("export", tmp_path / "out", tmp_path / "samples.jsonl")

    assert ran.exit_code == 0, ran.output
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [s["metadata"]["rollhook_result"]["error"] for s in samples] == [None] * len(samples)
    assert {s["index"]: round(s["reward"], 1) for s in samples} == {
        index: reward for index, (*_, reward) in enumerate(rows)
    }
    assert sum(sum(s["loss_mask"]) for s in samples) == sum(len(t.token_ids) for t in engine.sampled)
