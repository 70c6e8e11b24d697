"""`workbench check-env`: play an environment and say what is wrong with it."""
from __future__ import annotations

import argparse
import json

from workbench.cli.opening import overrides, put


def check_env_command(args: argparse.Namespace) -> int:
    from workbench.notebook.check_env import check_env

    found = check_env(args.env, overrides(args.settings), policy=args.policy, tasks=args.tasks, budget_s=args.seconds)
    if args.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        put(found.view, args.html)
    return 0 if found.ok else 1
