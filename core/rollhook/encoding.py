"""Text to token ids, exactly as the tokenizer cuts a whole conversation, in which messages cannot forge.

Invariant: a control token's id comes out of `encode` only where the template wrote it. Control-token strings
inside messages are shielded before rendering and come out as the ids of ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rollhook.errors import ConfigError, RenderError
from rollhook.families import neutralised_tokens

SHIELD = "\ufdd0"
"""A Unicode noncharacter, not for interchange: put inside a control-token string, it keeps it text. Text that
holds it nevertheless has it doubled while it is shielded, and keeps it."""

_HALF_PAIR = re.compile("[\ud800-\udfff]")
_SHIELDS = re.compile(f"{SHIELD}({SHIELD}?)")


class TextEncoder:
    """Encodes rendered text with one tokenizer.

    tokenizer: a Hugging Face fast tokenizer. Raises ConfigError for any other.
    neutralised: the control-token strings that stay text inside messages.
    added: every added token, by its text.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(
                f"{type(tokenizer).__name__} is no fast tokenizer: rollhook needs one with a tokenizer.json"
            )
        self._tokenizer = tokenizer
        self._backend = backend
        decoder = backend.get_added_tokens_decoder()
        self.added: dict[str, int] = {token.content: token_id for token_id, token in decoder.items()}
        self._added_ids = frozenset(decoder)
        self.neutralised = neutralised_tokens(
            (token.content for token in decoder.values() if token.special),
            (token.content for token in decoder.values() if not token.special),
        )
        longest_first = sorted(self.neutralised, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._anchor = self._choose_anchor()

    def shield(self, text: str) -> str:
        """`text` in which no control token can be recognised; `encode` takes the marks out again."""
        return self._controls.sub(_shielded, text.replace(SHIELD, SHIELD * 2))

    def encode(self, text: str) -> list[int]:
        """The ids of a text that opens a conversation or starts with a control token; nothing is added.

        Raises RenderError for half of a surrogate pair, which no tokenizer can encode.
        """
        if self._backend.truncation is not None:  # left behind by another user of this tokenizer
            self._backend.no_truncation()
        if half := _HALF_PAIR.search(text):
            raise RenderError(
                f"the text {text[max(half.start() - 20, 0) : half.end() + 20]!r} holds half of a surrogate "
                "pair, which is no character"
            )
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        return self._encode_shielded(text, ids, encoding.offsets) if SHIELD in text else ids

    def encode_after_text(self, text: str) -> list[int]:
        """The ids of a text that follows other text, with no blank put before it."""
        return self.encode(self._anchor + text)[1:]

    def _encode_shielded(self, text: str, ids: list[int], offsets: list[tuple[int, int]]) -> list[int]:
        """Encode again, as ordinary text, each stretch between added tokens that holds a shield."""
        result: list[int] = []
        stretch_at, first = 0, 0
        ends = [(i, *offsets[i]) for i, token_id in enumerate(ids) if token_id in self._added_ids]
        for i, start, end in [*ends, (len(ids), len(text), len(text))]:
            stretch = text[stretch_at:start]
            result += (
                self._encode_ordinary(_SHIELDS.sub(r"\1", stretch)) if SHIELD in stretch else ids[first:i]
            )
            result += ids[i : i + 1]
            stretch_at, first = end, i + 1
        return result

    def _encode_ordinary(self, text: str) -> list[int]:
        """The ids of `text` by the tokenizer's model alone: its added tokens are not looked for."""
        backend = self._backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        pieces = [text]
        if backend.pre_tokenizer is not None:
            pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        ids = [token.id for piece in pieces for token in backend.model.tokenize(piece)]
        forged = self._controls_among(ids)
        if forged:
            raise RenderError(
                f"this tokenizer makes the control token {forged!r} out of ordinary text, "
                "so messages could forge it"
            )
        return ids

    def _controls_among(self, ids: Sequence[int]) -> str | None:
        for token_id in self._added_ids.intersection(ids):
            token: str = self._backend.id_to_token(token_id)
            if token in self.neutralised:
                return token
        return None

    def _choose_anchor(self) -> str:
        """A token behind which text is cut as in the middle of a conversation."""
        probe = "x y"
        for anchor in sorted(self.neutralised):
            ids = self._backend.encode(anchor + probe, add_special_tokens=False).ids
            if ids[:1] == [self.added[anchor]] and self._tokenizer.decode(ids[1:]) == probe:
                return anchor
        raise ConfigError(
            "this tokenizer puts a blank before text after every control token; it cannot be used"
        )


def _shielded(match: re.Match[str]) -> str:
    token = match.group()
    return token[0] + SHIELD + token[1:]
