"""The text protocol of ReTool: what the model is told, writes and is shown.

Invariant: tags of the protocol in what is shown come from here alone: output is cleaned of them, so that no
printed text can close the observation or pass for the model's own words. Source: arXiv 2504.11536.
"""

from __future__ import annotations

import re

STOP_STRINGS = ("</code>",)

INSTRUCTION = """\
Solve the problem below step by step. Where computing helps, write Python between <code> and </code>:

<code>
```python
print(2**10)
```
</code>

It is run for you, and what it printed is shown to you between <interpreter> and </interpreter>. Variables, \
functions and imports stay from one block to the next; numpy and sympy can be imported. You may run code as \
often as you need. When you know the answer, stop running code and end with:

<answer>
\\boxed{{the final answer}}
</answer>

Problem: {problem}"""

NO_CODE = "Error: write the code between <code> and </code>; there was none between them."


def instruct(problem: str) -> str:
    """The prompt that explains the protocol and poses `problem`."""
    return INSTRUCTION.format(problem=problem.strip())


def read_code(text: str) -> str | None:
    """The code of a turn that ends in </code>, exactly as it was written; None when there is none.

    A Markdown fence around it is not part of it.
    """
    opened = text.rfind("<code>")
    closed = text.find("</code>", opened)
    if opened < 0 or closed < 0:
        return None
    code = text[opened + len("<code>") : closed]
    fenced = _FENCE.fullmatch(code)
    code = fenced["code"] if fenced else code
    return code if code.strip() else None


def interpreter(shown: str) -> str:
    """An observation: `shown` between its tags, as it continues the open turn."""
    return f"\n\n<interpreter>\n{clean(shown)}\n</interpreter>\n\n"


def clean(text: str) -> str:
    """`text` with the protocol's tags broken up, so that they mean nothing."""
    return _TAG.sub(lambda found: found[0].replace("<", "< "), text)


def own_words(response: str) -> str:
    """What the model itself says: the response without its code and without what it was shown."""
    return _CODE.sub("", _SHOWN.sub("", response))


_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*\n(?P<code>.*?)\n?[ \t]*```\s*", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?(?:interpreter|code|answer)>", re.IGNORECASE)
_CODE = re.compile(r"<code>.*?(?:</code>|\Z)", re.DOTALL)
_SHOWN = re.compile(r"<interpreter>.*?(?:</interpreter>|\Z)", re.DOTALL)
