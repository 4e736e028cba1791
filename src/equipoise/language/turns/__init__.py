"""Partners of conversations, and the threads in which their steps run."""
