"""A served model's tokenizer, template and end-of-turn ids come from where it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollhook.errors import ConfigError
from rollhook.served import generation_ends, load_tokenizer, serve_model
from rollhook.testing import ScriptedEngine


@pytest.mark.parametrize(
    ("config", "ends"),
    [({"eos_token_id": [2, 0]}, {0, 2}), ({"eos_token_id": 2}, {2}), ({}, set()), (None, set())],
)
def test_the_generation_configuration_says_where_turns_end(
    tmp_path: Path, smollm2_tokenizer: Any, config: dict[str, Any] | None, ends: set[int]
) -> None:
    smollm2_tokenizer.save_pretrained(tmp_path)
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))

    assert generation_ends(load_tokenizer(str(tmp_path))) == ends


async def test_the_engine_names_the_tokenizer(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, []) as engine:
        from rollhook.engine import SGLangClient

        async with SGLangClient(engine.url) as client:
            served = await serve_model(client)

    assert served.tokenizer.get_vocab() == smollm2_tokenizer.get_vocab()


async def test_a_chat_template_that_is_not_there_stops_the_run(
    tmp_path: Path, smollm2_tokenizer: Any
) -> None:
    missing = tmp_path / "template.jinja"
    engine: Any = None

    with pytest.raises(ConfigError, match=r"chat_template: .*template\.jinja: "):
        await serve_model(engine, tokenizer=smollm2_tokenizer, chat_template=missing)


async def test_a_chat_template_of_the_runs_own_is_used(tmp_path: Path, smollm2_tokenizer: Any) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    engine: Any = None

    served = await serve_model(engine, tokenizer=smollm2_tokenizer, chat_template=template)

    opening = served.renderer.opening([{"role": "user", "content": "hi"}])
    assert smollm2_tokenizer.decode(opening) == "[hi]"
