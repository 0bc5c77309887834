"""How work runs: state, steps, scheduling, sampling."""
