"""The three kernels that SGLang's CPU path takes from vLLM, in plain torch and with vLLM's signatures.

All write their result into an argument. Norms are computed in float32, as the kernels do.
"""

import torch


def _normalize(hidden, weight, epsilon):
    wide = hidden.float()
    scale = wide.square().mean(dim=-1, keepdim=True).add(epsilon).rsqrt()
    return (wide * scale).to(hidden.dtype) * weight


def rms_norm(out, hidden, weight, epsilon):
    """out = RMSNorm(hidden) * weight; both [..., hidden]."""
    out.copy_(_normalize(hidden, weight, epsilon))


def fused_add_rms_norm(hidden, residual, weight, epsilon):
    """residual += hidden; hidden = RMSNorm(residual) * weight; both [tokens, hidden]."""
    residual.add_(hidden)
    hidden.copy_(_normalize(residual, weight, epsilon))


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):  # noqa: PLR0917  vLLM's
    """Rotate query and key in place.

    positions: [tokens]. query, key: [tokens, heads * head_size]; key may be None. cos_sin_cache: [positions,
    rotated], the cosines in its first half and the sines in its second. is_neox: the two halves of a head's
    rotated part are the pairs' members; else they alternate.
    """
    cos, sin = cos_sin_cache[positions.flatten()].float()[:, None].chunk(2, dim=-1)
    rotated = 2 * cos.shape[-1]
    for tensor in (query, key):
        if tensor is None:
            continue
        heads = tensor.view(positions.numel(), -1, head_size)[..., :rotated]
        if is_neox:
            first, second = heads.float().chunk(2, dim=-1)
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        else:
            first, second = heads[..., 0::2].float(), heads[..., 1::2].float()
            turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
        heads.copy_(turned)
