"""Stands in for vLLM, of which SGLang's CPU path calls three kernels."""
