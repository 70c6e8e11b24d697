"""The command `doctor`: what works on this machine, or what a run will need."""

from __future__ import annotations

import argparse
import json

from workbench.cli.opening import config_of
from workbench.cli.options import AddCommand, add_set
from workbench.values.errors import ConfigError


def add_doctor(command: AddCommand) -> None:
    sub = command("doctor", doctor_command)
    sub.add_argument(
        "--policy",
        help="also try the embedded engine on this model (shipped name, folder, hub name)",
    )
    sub.add_argument(
        "--plan",
        metavar="CONFIG",
        help="instead, measure the memory that one step of a preset or .toml file takes; "
        "exit 1 if this machine has less, or it could not be measured",
    )
    sub.add_argument("--json", action="store_true")
    add_set(sub)


def doctor_command(args: argparse.Namespace) -> int:
    from workbench.extensions.doctor import doctor

    if args.plan is not None:
        from workbench.extensions.doctor.plan import plan

        if args.policy is not None:
            raise ConfigError(
                "--plan takes the policy from its config: --set policy.name=...; --policy is for the "
                "trials"
            )
        report = plan(config_of(args.plan, args.settings))
    elif args.settings:
        raise ConfigError(
            "--set changes the config of --plan CONFIG; without it doctor looks at the machine alone"
        )
    else:
        report = doctor(args.policy)
    print(json.dumps(report.as_dict(), indent=1) if args.json else report.text)
    return 0 if report.ok else 1
