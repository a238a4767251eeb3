"""What slime users call by dotted path beside `rollhook.generate` and `rollhook.reward`."""

from rollhook.runtime import close_runtimes

__all__ = ["shutdown"]


async def shutdown() -> None:
    """Close what `rollhook.generate` and `rollhook.reward` opened on this event loop.

    Await it on each loop that called them, before the loop ends: connections, embedded engines and what
    plugins share are closed here.
    """
    await close_runtimes()
