"""Draw who took part in a run: `python tree.py SAMPLES.jsonl OUT.png [--rollouts 3]`.

SAMPLES.jsonl is what `rollhook export` writes. From left to right: the run, its first rollouts, their agents
(one that another agent started hangs on that one), and each agent's segments: the samples that train.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from exported import read_rollouts
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMN_IN, ROW_IN = 2.6, 0.62
"""Inches for one level of the tree, and for one leaf."""
TINTS = {"run": "#dddddd", "rollout": "#cfe2f3", "agent": "#fff2cc", "segment": "#d9ead3"}


@dataclass
class Node:
    """One box. kind: which tint it gets. row: its height, in leaves from the top."""

    kind: str
    text: str
    children: list[Node] = field(default_factory=list)
    row: float = 0.0

    def leaves(self) -> int:
        return sum(child.leaves() for child in self.children) or 1

    def depth(self) -> int:
        return 1 + max((child.depth() for child in self.children), default=0)

    def place(self, top: float = 0.0) -> None:
        """Give every node its row: leaves one below the other, the rest in the middle of its children."""
        self.row = top + (self.leaves() - 1) / 2
        for child in self.children:
            child.place(top)
            top += child.leaves()


def run_tree(name: str, rollouts: Sequence[Sequence[dict[str, Any]]], shown: int) -> Node:
    """The tree of a run. shown: how many of its rollouts to draw."""
    rewards = [siblings[0]["metadata"]["rollhook_result"]["rollout_reward"] or 0.0 for siblings in rollouts]
    text = f"{name}\n{len(rollouts)} rollouts, mean reward {fmean(rewards):.2f}"
    return Node("run", text, [rollout_tree(siblings) for siblings in rollouts[:shown]])


def rollout_tree(siblings: Sequence[dict[str, Any]]) -> Node:
    """One rollout: its agents, and under each what it sampled."""
    result = siblings[0]["metadata"]["rollhook_result"]
    reward = result["rollout_reward"]
    root = Node(
        "rollout", f"rollout {siblings[0]['index']}\nreward {'-' if reward is None else f'{reward:.2f}'}"
    )
    agents: dict[str, Node] = {}
    for sample in siblings:
        role = sample["metadata"]["rollhook_result"]["role"]
        if role not in agents:
            agents[role] = Node("agent", role)
            above = next((agents[name] for name in starters(role) if name in agents), root)
            above.children.append(agents[role])
        agents[role].children.append(segment_node(sample))
    return root


def starters(role: str) -> Iterator[str]:
    """The roles that may have started this one, nearest first: `subagent_1` started `subagent_1_2`."""
    while "_" in role:
        role = role.rpartition("_")[0]
        yield "orchestrator" if role == "subagent" else role


def segment_node(sample: dict[str, Any]) -> Node:
    result = sample["metadata"]["rollhook_result"]
    turns = "1 turn" if result["turns"] == 1 else f"{result['turns']} turns"
    facts = f"{turns}, {sum(sample['loss_mask'])} tokens trained"
    return Node("segment", f"{result['kind']}: {facts}\n{sample['status']}, reward {sample['reward']:.2f}")


def draw(tree: Node, out: Path) -> None:
    """Write the picture of a tree as PNG."""
    tree.place()
    figure = Figure(
        figsize=(COLUMN_IN * tree.depth(), max(1.5, ROW_IN * tree.leaves())), layout="constrained"
    )
    axes = figure.add_subplot()
    axes.set(xlim=(-0.5, tree.depth() - 0.5), ylim=(tree.leaves() - 0.5, -0.5))
    axes.set_axis_off()
    _draw_node(axes, tree, column=0)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120, format="png")


def _draw_node(axes: Axes, node: Node, column: int) -> None:
    for child in node.children:
        axes.plot([column, column + 1], [node.row, child.row], color="#888888", linewidth=1, zorder=1)
        _draw_node(axes, child, column + 1)
    box = {"boxstyle": "round", "facecolor": TINTS[node.kind], "edgecolor": "#555555"}
    axes.text(column, node.row, node.text, ha="center", va="center", fontsize=7, bbox=box, zorder=2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a run's agents and segments with their rewards.")
    parser.add_argument("samples", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rollouts", type=int, default=3, help="how many rollouts to draw")
    arguments = parser.parse_args()
    rollouts = list(read_rollouts(arguments.samples))
    draw(run_tree(arguments.samples.stem, rollouts, arguments.rollouts), arguments.out)


if __name__ == "__main__":
    main()
