"""The graph of descent, from the facts of the results, and the flags that descendants inherit.

An edge leads from a merge, id@sha, to each of its pinned parents. Where two results name different parents for the
same commit, all of them count: naming fewer must not shake off a flag. The graph of strangers' facts may hold
cycles and chains of any length, and their flags repeat, so nothing recurses and what is listed is capped.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from hubmerge.board.values import Flag, RowFlag
from hubmerge.evaluation.result import EvaluationResult

MAX_ANCESTORS = 500  # listed per row
MAX_ROW_FLAGS = 50

Node = tuple[str, str]  # id, sha


class Lineage:
    """The graph of all results, whatever their suite; `alone`: further models, of which no result may be known."""

    def __init__(self, results: Iterable[EvaluationResult], alone: Iterable[Node] = ()) -> None:
        edges: dict[Node, dict[Node, None]] = {node: {} for node in alone}
        for result in results:
            known = edges.setdefault((result.model, result.sha), {})
            known.update(((p.id, p.sha), None) for p in result.facts.parents)
        self._parents: dict[Node, tuple[Node, ...]] = {node: tuple(found) for node, found in edges.items()}
        children: dict[Node, list[Node]] = defaultdict(list)
        by_id: dict[str, set[Node]] = defaultdict(set)
        for node, parents in self._parents.items():
            by_id[node[0]].add(node)
            for parent in parents:
                by_id[parent[0]].add(parent)
                children[parent].append(node)
        self._children: Mapping[Node, list[Node]] = children
        self._by_id: Mapping[str, set[Node]] = by_id

    def ancestors(self, node: Node) -> tuple[Node, ...]:
        """Breadth first: parents in the recipe's order, then theirs; never the node itself."""
        seen: dict[Node, None] = {}
        waiting = deque(self._parents.get(node, ()))
        while waiting and len(seen) < MAX_ANCESTORS:
            next_node = waiting.popleft()
            if next_node not in seen and next_node != node:
                seen[next_node] = None
                waiting.extend(self._parents.get(next_node, ()))
        return tuple(seen)

    def flagged(self, flags: Iterable[Flag]) -> dict[Node, tuple[RowFlag, ...]]:
        """Every node that carries flags, its own or ancestors': at most MAX_ROW_FLAGS."""
        told: dict[tuple[str, str | None], list[Flag]] = defaultdict(list)  # by the model
        for flag in sorted(flags, key=lambda f: (f.model, f.sha or "", f.kind, f.reason)):
            told[flag.model, flag.sha].append(flag)
        found: dict[Node, dict[RowFlag, None]] = defaultdict(dict)
        for (model, sha), same in told.items():
            own = {n for n in self._by_id.get(model, ()) if sha is None or n[1] == sha}
            seen = set(own)
            waiting = deque(own)
            while waiting:
                node = waiting.popleft()
                if (room := MAX_ROW_FLAGS - len(found[node])) <= 0:
                    continue  # nor have those that descend from it any room
                origin = None if node in own else model
                found[node] |= {RowFlag(f.kind, f.reason, origin): None for f in same[:room]}
                for child in self._children.get(node, ()):
                    if child not in seen:
                        seen.add(child)
                        waiting.append(child)

        def order(flag: RowFlag) -> tuple[str, str, str]:
            return (flag.inherited_from or "", flag.kind, flag.reason)

        return {node: tuple(sorted(own, key=order)) for node, own in found.items()}
