"""`/v1/models`, in Anthropic's and in OpenAI's form."""

from __future__ import annotations

from typing import Any

EPOCH = "1970-01-01T00:00:00Z"


def model_named(name: str, *, anthropic: bool) -> dict[str, Any]:
    """One model."""
    if anthropic:
        from anthropic.types import ModelInfo

        info = ModelInfo.model_validate(
            {"id": name, "type": "model", "display_name": name, "created_at": EPOCH, "lifecycle": "active"}
        )
        return info.model_dump(mode="json", exclude_unset=True)
    from openai.types import Model

    return Model(id=name, object="model", created=0, owned_by="rollhook").model_dump(mode="json")


def model_list(name: str, *, anthropic: bool) -> dict[str, Any]:
    """The one model that is served, as a page."""
    model = model_named(name, anthropic=anthropic)
    if anthropic:
        return {"data": [model], "first_id": name, "last_id": name, "has_more": False}
    return {"object": "list", "data": [model]}
