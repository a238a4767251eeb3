"""Every topology on the small model that rollhook serves itself: real sampling, few tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollhook import Sample, run_rollout

TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The model's own, with tools."""

KINDS: dict[str, dict[str, list[str]]] = {
    "solver-rewriter-selector": {
        name: [name] for name in ("solver_1", "solver_2", "rewriter_1", "rewriter_2", "selector")
    },
    "best-of-n": {"candidate_1": ["candidate_1"], "candidate_2": ["candidate_2"]},
    "self-refine": {"generator": ["generator"], "critic": ["critic"]},
    "self-play": {"player_1": ["player_1"]},
    "orchestrator": {"orchestrator": ["orchestrator"]},
    "compact": {"main": ["wipe", "final"]},
}
SAID: dict[str, dict[str, Any]] = {
    "solver-rewriter-selector": {"candidates": 2},
    "best-of-n": {"candidates": 2},
    "self-refine": {"rounds": 1},
    "self-play": {"moves": 1},
    "compact": {"at_tokens": 5},
}
ENVIRONMENTS = {"self-play": "topologies/nim", "compact": "world/steps"}


async def test_every_topology_runs_on_a_real_model(player: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    runtime = await player.enter(engine="embedded", chat_template=str(tmp_path / "template.jinja"))
    found: dict[str, dict[str, list[str]]] = {}
    for name in KINDS:
        row = {
            "topology": {"name": f"topologies/{name}", **SAID.get(name, {})},
            "verifier": "number",
            "environment": ENVIRONMENTS.get(name),
            "limits": {"max_new_tokens": 6, "max_turns": 3},
        }
        sample = Sample(index=0, prompt="2 + 2?", label="4", metadata={"rollhook": row})
        samples = await run_rollout(runtime, sample, {"stop": [" "]})
        results = [made.metadata["rollhook_result"] for made in samples]

        assert [result["error"] for result in results] == [None] * len(results)
        assert sum(sum(made.loss_mask or []) for made in samples) == results[0]["sampled_tokens"]
        for result in results:
            found.setdefault(name, {}).setdefault(result["role"], []).append(result["kind"])

    assert found == KINDS
