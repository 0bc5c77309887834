"""Measuring: workloads, peers, the machine's limits."""
