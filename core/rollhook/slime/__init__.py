"""What slime users call by dotted path beside `rollhook.generate` and `rollhook.reward`."""

from rollhook.slime.filters import keep_informative
from rollhook.slime.fully_async import fully_async_rollout, pause_rollouts, resume_rollouts
from rollhook.slime.rewards import normalize_rewards, reward_batch
from rollhook.slime.synchronous import generate_rollout
from rollhook.slime.thread import close, shutdown

__all__ = [
    "close",
    "fully_async_rollout",
    "generate_rollout",
    "keep_informative",
    "normalize_rewards",
    "pause_rollouts",
    "resume_rollouts",
    "reward_batch",
    "shutdown",
]
