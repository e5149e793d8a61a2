"""Who generates, where, and how stale it may become: the lag gate and the executors."""
