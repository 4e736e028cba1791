"""The process runtime: every worker in a process of its own, over shared memory."""
