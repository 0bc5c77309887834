"""List the servers of this user that run: where each listens, what it has loaded, and how busy it is.

fastcore ps
fastcore ps --json
"""

import argparse
import json
import sys
import time
from dataclasses import asdict

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="a list of {pid, url, started, models, active_requests, memory_bytes}"
    )


def run(args: argparse.Namespace) -> int:
    from fastcore.running import running_servers

    servers = running_servers()
    if args.json:
        print(json.dumps([asdict(server) for server in servers], indent=2))
        return 0
    if not servers:
        print("no server runs; `fastcore serve` starts one", file=sys.stderr)
        return 0
    rows = [("PID", "ADDRESS", "REQUESTS", "MEMORY", "SINCE", "MODELS")]
    for each in servers:
        models = ", ".join(name if is_loaded else f"({name})" for name, is_loaded in each.models.items())
        memory = f"{each.memory_bytes / 1e6:,.0f} MB"
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.started))
        rows.append((str(each.pid), each.url, str(each.active_requests), memory, since, models))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    if not all(all(each.models.values()) for each in servers):
        print("models in parentheses are not loaded", file=sys.stderr)
    return 0
