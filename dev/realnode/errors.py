"""What goes wrong with a real node, in words for whoever runs it."""

from testbed.cluster import ClusterError


class NodeError(ClusterError):
    """The node, or an image for it, cannot be had; the message says why and what mends it."""
