from __future__ import annotations

from typing import Any

import pytest

from rollhook.testing import Fault, Reply

NAME = "topologies/self-play"
NIM = {"environment": {"name": "topologies/nim", "sticks": 5, "most": 2}, "verifier": []}

LOOK = '<tool_call>\n{"name": "look", "arguments": {"what": "sticks"}}\n</tool_call>'


async def test_what_one_player_wins_the_other_loses(smollm2_tokenizer: Any, player: Any) -> None:
    played = await player.play(smollm2_tokenizer, ["I take 2", "2", "1"], NAME, **NIM)

    assert [(told.role, told.kind, told.reward, told.trained) for told in played.told] == [
        ("player_1", "player_1", 1.0, "I take 2|1|"),
        ("player_2", "player_2", -1.0, "2|"),
    ]
    assert (played.result()["rollout_reward"], played.scores) == (1.0, {"moves": 3.0})
    assert played.trained_tokens == played.sampled_tokens


async def test_a_player_is_told_its_seat_and_the_others_moves(smollm2_tokenizer: Any, player: Any) -> None:
    played = await player.play(smollm2_tokenizer, ["2", "2", "1"], NAME, **NIM)

    first, second, third = (request.prompt for request in played.engine.requests)
    assert "You are player_1; player_1 moves first." in first
    assert "You are player_2; player_1 moves first." in second
    assert "player_1 took 2, 3 left." in second
    assert "player_2 took 2, 1 left." in third
    assert "player_1 took" not in third


async def test_the_second_player_may_open(smollm2_tokenizer: Any, player: Any) -> None:
    row = {"name": NAME, "first": "player_2"}
    played = await player.play(smollm2_tokenizer, ["2", "2", "1"], row, **NIM)

    assert [(told.role, told.reward) for told in played.told] == [("player_2", 1.0), ("player_1", -1.0)]


async def test_a_frozen_opponent_of_another_model_gives_no_sample(
    smollm2_tokenizer: Any, player: Any
) -> None:
    row = {"name": NAME, "roles": {"player_2": {"model": "frozen"}}}
    played = await player.play(smollm2_tokenizer, ["2", "1"], row, models={"frozen": ["2"]}, **NIM)

    assert [(told.role, told.reward, told.trained) for told in played.told] == [("player_1", 1.0, "2|1|")]


async def test_a_player_that_reaches_a_limit_forfeits(smollm2_tokenizer: Any, player: Any) -> None:
    row = {"name": NAME, "forfeit": -2.0, "roles": {"player_1": {"max_turns": 1}}}
    played = await player.play(smollm2_tokenizer, ["1", "1"], row, **NIM)

    assert [(told.role, told.reward) for told in played.told] == [("player_1", -2.0), ("player_2", 2.0)]
    assert [sample.status.value for sample in played.samples] == ["truncated", "completed"]


@pytest.mark.parametrize(
    ("move", "budget"),
    [("3 are left, and so I take 1", {"max_new_tokens": 2}), (LOOK, {"max_turns": 1})],
    ids=["in its words", "in its tool calls"],
)
async def test_a_player_that_is_cut_short_in_its_move_has_made_none(
    qwen3_tokenizer: Any, player: Any, move: str, budget: Any
) -> None:
    row = {"name": NAME, "forfeit": -2.0, "roles": {"player_2": budget}}
    played = await player.play(qwen3_tokenizer, ["2", move], row, tools="world/look", **NIM)

    assert [(told.role, told.reward) for told in played.told] == [("player_1", 2.0), ("player_2", -2.0)]
    assert played.scores == {"moves": 1.0}
    assert [sample.status.value for sample in played.samples] == ["completed", "truncated"]


async def test_a_game_ends_at_the_most_moves_with_what_was_earned(
    smollm2_tokenizer: Any, player: Any
) -> None:
    played = await player.play(smollm2_tokenizer, ["1", "1"], {"name": NAME, "moves": 2}, **NIM)

    assert [told.reward for told in played.told] == [0.0, 0.0]


async def test_an_engine_that_fails_a_player_fails_the_game(smollm2_tokenizer: Any, player: Any) -> None:
    lines = ["1", Reply("1", fault=Fault.status(400, times=None))]
    played = await player.play(smollm2_tokenizer, lines, NAME, **NIM)

    assert (played.error["stage"], played.error["type"]) == ("engine", "EngineRejected")


async def test_a_row_without_an_environment_fails_before_the_first_token(
    smollm2_tokenizer: Any, player: Any
) -> None:
    played = await player.play(smollm2_tokenizer, [], NAME)

    assert "it plays in an environment" in played.error["message"]
    assert played.engine.requests == []


@pytest.mark.parametrize("move", ["3", "0", "I take -", "2 or 9999999999999999999999"])
async def test_a_move_that_the_rules_do_not_have_loses(
    smollm2_tokenizer: Any, player: Any, move: str
) -> None:
    played = await player.play(smollm2_tokenizer, ["2", move], NAME, **NIM)

    assert [(told.role, told.reward) for told in played.told] == [("player_1", 1.0), ("player_2", -1.0)]
    assert played.result()["environment"]["info"] == {"left": 3, "illegal": "player_2"}


async def test_the_game_brings_its_topology(smollm2_tokenizer: Any, player: Any) -> None:
    runtime, _ = await player.runtime(smollm2_tokenizer, [])

    assert runtime.resolver.resolve({"rollhook": "topologies/nim"}).topology.name == NAME


@pytest.mark.parametrize("roles", [{"referee": {}}, {"player_1": {"model": "x", "trained": True}}])
async def test_roles_that_cannot_be_played_are_refused(
    smollm2_tokenizer: Any, player: Any, roles: Any
) -> None:
    played = await player.play(smollm2_tokenizer, [], {"name": NAME, "roles": roles}, **NIM)

    assert played.error["stage"] == "resolve"
    assert played.error["message"].startswith("topology.roles.")
