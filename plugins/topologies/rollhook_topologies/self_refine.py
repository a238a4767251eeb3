"""`self-refine`: an answer, feedback on it, the answer anew, until the feedback has nothing to say.

Invariant: the rollout's answer is the newest one that was finished; what goes wrong after the first answer
ends the refining and leaves that answer standing.

After Madaan et al., "Self-Refine: Iterative Refinement with Self-Feedback" (arXiv 2303.17651).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollhook import Outcome, RolesConfig, Rollout, Turn, settle
from rollhook_topologies.wording import question_of, said_by

FEEDBACK = """Question:

{question}

Answer:

{answer}

{criteria} If there is nothing to change, end with one line that says only: {stop}"""

AGAIN = """This is the answer now:

{answer}

Judge it by the same rules."""

REFINE = """Feedback on your answer:

{feedback}

Take it into account and answer the question again:

{question}"""


class Config(RolesConfig[Literal["generator", "critic"]]):
    """rounds: how often the answer may be refined. stop: the line with which feedback ends the refining,
    told by its letters and digits. criteria: what the feedback is to look at."""

    rounds: int = Field(3, ge=1, le=16)
    stop: str = Field("NOTHING TO CHANGE", max_length=100, pattern=r"[^\W_]")
    criteria: str = Field("Check each step and say what is wrong and how to put it right.", max_length=4000)


class SelfRefine:
    def __init__(self, config: Config, rollout: Rollout) -> None:
        del rollout
        self.config = config

    async def run(self, rollout: Rollout) -> Outcome:
        generator = self.config.role("generator").agent(rollout, "generator")
        critic = self.config.role("critic").agent(rollout, "critic", tools=[], stop=())
        question = question_of(rollout.messages)
        answer = first = said_by(await generator.loop(rollout.messages, environment=rollout.environment))

        rounds, ask = 0, FEEDBACK
        while rounds < self.config.rounds:
            told = ask.format(
                question=question, answer=answer, criteria=self.config.criteria, stop=self.config.stop
            )
            [feedback] = await settle(critic.loop(told))
            if not isinstance(feedback, Turn) or self._is_content(said_by(feedback)):
                break
            told = REFINE.format(feedback=said_by(feedback).strip(), question=question)
            [refined] = await settle(generator.loop(told))
            if not isinstance(refined, Turn) or generator.truncated:
                break
            answer, ask = said_by(refined), AGAIN
            rounds += 1

        score = await rollout.verify(answer, agent=generator)
        if score is None:
            return Outcome(response=answer, scores={"rounds": rounds})
        before = score if answer == first else await rollout.verify(first, agent=generator)
        assert before is not None  # the row has a verifier
        scores = {"rounds": float(rounds), "first": before.value, "final": score.value}
        return Outcome(response=answer, reward=score, scores=scores)

    def _is_content(self, feedback: str) -> bool:
        """Whether the last line is the stop line, case and punctuation aside."""
        lines = [line for line in feedback.splitlines() if line.strip()]
        return bool(lines) and _plain(lines[-1]) == _plain(self.config.stop)


def _plain(line: str) -> str:
    return "".join(letter for letter in line.casefold() if letter.isalnum())
