"""What a round scheduler is told of nodes and GPUs: they fail, are drained, and come back."""

from __future__ import annotations

import logging

from gavel_py.io.locking import synchronized
from gavel_py.scheduling.node_states import NodeState
from gavel_py.scheduling.scheduler_core import SchedulerCore

__all__ = ["NodeEvents"]

logger = logging.getLogger(__name__)


class NodeEvents(SchedulerCore):
    """A scheduler that is told of nodes."""

    @synchronized
    def node_down(self, name: str) -> tuple[str, ...]:
        """Note that a node is lost, and return the jobs that ran there; they hold no GPUs any more.

        Nobody runs there until `node_up`. For these jobs the round does not count as delivered: it stays owed. What jobs are owed
        on the node's type is kept; those that can run nowhere else are excluded, with the reason. Raises `UnknownNameError`.
        """
        return self._node(name, NodeState.DOWN)

    @synchronized
    def drain(self, name: str) -> None:
        """Empty a node without harm: the gangs there run until their leases end, no lease is renewed, and no gang starts there.

        It is empty when the next round starts, or the one after that, where the next one has been planned already (`plan_next`).
        Raises `UnknownNameError`.
        """
        self._node(name, NodeState.DRAINING)

    @synchronized
    def node_up(self, name: str) -> None:
        """Use a node again from the next round on; GPUs of it that are lost stay lost. Raises `UnknownNameError`."""
        self._node(name, NodeState.UP)

    @synchronized
    def gpu_lost(self, node: str, index: int) -> tuple[str, ...]:
        """Note that one GPU of a node is lost, and return the job that ran there, if any, which holds no GPUs any more.

        The rest as for `node_down`. Raises `UnknownNameError`, and `InputError` for a number that no GPU of the node has.
        """
        self._state.turn(changed=self._state.nodes.lose(node, index))
        stopped = self._state.stop_lost()
        logger.info("GPU %d of node %s is lost, and stops %d gangs", index, node, len(stopped))
        return stopped

    @synchronized
    def gpu_back(self, node: str, index: int) -> None:
        """Use a lost GPU again from the next round on; raises as `gpu_lost`."""
        self._state.turn(changed=self._state.nodes.give_back(node, index))
        logger.info("GPU %d of node %s is back", index, node)

    def _node(self, name: str, to: NodeState) -> tuple[str, ...]:
        self._state.turn(changed=self._state.nodes.put(name, to))
        stopped = self._state.stop_lost()
        logger.info("node %s is %s, which stops %d gangs", name, to, len(stopped))
        return stopped
