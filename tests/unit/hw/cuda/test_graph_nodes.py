from underclock.hw.cuda.graphs import GraphNode, cleared_before
from underclock.records.launches import Node, NodeKind


def kernel(*words: int) -> GraphNode:
    return GraphNode(Node(kind=NodeKind.KERNEL, function="k"), None, words)


def memset(start: int, size: int) -> GraphNode:
    return GraphNode(Node(kind=NodeKind.MEMSET, bytes=size), None, (start,))


def test_a_kernel_finds_the_memsets_of_memory_it_is_given() -> None:
    nodes = [memset(100, 32), kernel(5, 131), kernel(132), memset(500, 8), kernel(100, 507)]
    assert cleared_before(nodes) == ((), (0,), (), (), (0, 3))


def test_the_last_memset_of_the_same_memory_counts() -> None:
    nodes = [memset(100, 32), memset(100, 32), kernel(101)]
    assert cleared_before(nodes) == ((), (), (1,))


def test_a_memset_that_comes_later_serves_nobody_before_it() -> None:
    assert cleared_before([kernel(100), memset(100, 4)]) == ((), ())
