"""Tables of speed: our step against TRL's and what its parts cost (`make bench`), and small parts by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]
FIGURES = {
    "generated tokens per rollout second": "generated tokens, rollout",
    "trajectory tokens per training second": "trajectory tokens, training",
    "environment steps per second, end to end": "environment steps, end to end",
}


def bench_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench --json`. Wall figures are left out where the machine was not idle."""
    first = result["pairs"][0]
    rows = [
        [f"{pair['ours']}; {pair['theirs']}", *(_ratio(pair, figure) for figure in FIGURES)]
        for pair in result["pairs"]
    ]
    others_took = result["others_took_cores"]
    quiet = others_took is not None and others_took < 0.05
    wall = (
        [["ours", f"{first['wall_s'][0]:.1f}"], ["TRL", f"{first['wall_s'][1]:.1f}"]]
        if quiet
        else [
            [
                "not told: other work took of a core",
                "" if others_took is None else f"{others_took:.2f}",
            ]
        ]
    )
    tables = {
        "main": Table(["per CPU second: ours and TRL's, ratio [95 %]", *FIGURES.values()], rows),
        "wall": Table(["wall time of a step", "seconds"], wall),
        "first": Table(
            ["environment steps per CPU second at the first step", ""],
            [
                [name, f"{rate:.1f}"]
                for name, rate in sorted(result["tried"].items(), key=lambda kv: kv[1])
            ],
        ),
    }
    return tables | (_parts(result["parts"]) if result["parts"] else {})


def _ratio(pair: Result, figure: str) -> str:
    """Both figures, and the ratio of the first to the second."""
    ours, theirs = pair["figures"][figure]
    digits = 1 if "environment" in figure else 0
    ratio = pair["ratios"][figure]
    return (
        f"{ours:,.{digits}f} and {theirs:,.{digits}f}: "
        f"**{ratio['mean']:.1f}** [{ratio['low']:.1f}, {ratio['high']:.1f}]"
    )


def _parts(parts: Result) -> dict[str, Table]:
    ratio, durable, phases = parts["packing"]["ratio"], parts["durability"], parts["phases"]
    names = list(phases["float32"]["share"])
    return {
        "packing": Table(
            [
                "trained end to end over padded rows sorted by length",
                "tokens per CPU second, ratio",
            ],
            [
                [
                    f"{ratio['n']} repeats",
                    f"{ratio['mean']:.1f} [{ratio['low']:.1f}, {ratio['high']:.1f}]",
                ]
            ],
        ),
        "length": Table(
            ["turns", "tokens", "CPU-seconds, defaults", "of it sampling"],
            [
                [
                    str(row["turns"]),
                    f"{row['tokens']:,.0f}",
                    f"{row['s']:.2f}",
                    f"{row['rollout_s']:.2f}",
                ]
                for row in parts["turns"]["rows"]
            ],
        ),
        "durability": Table(
            [
                "what a FrozenLake step's durability costs",
                "CPU",
                "wall",
                "share of the step's CPU time",
            ],
            [
                [
                    f"mean of {durable['steps']} steps",
                    f"{durable['durable_cpu_ms']:.1f} ms",
                    f"{durable['durable_wall_ms']:.0f} ms",
                    f"{100 * durable['share']:.1f} %",
                ]
            ],
        ),
        "parts": Table(
            [
                "part of a step: share of its CPU time; of this machine's matrix product",
                *(f"{side} ({phase['peak_gflops']:.0f} GFLOP/s)" for side, phase in phases.items()),
            ],
            [[name, *(_part(phase, name) for phase in phases.values())] for name in names],
        ),
    }


def _part(phase: Result, name: str) -> str:
    share = f"{100 * phase['share'][name]:.1f} %"
    return f"{share}; {100 * phase['of_peak'][name]:.0f} %" if name in phase["of_peak"] else share


# ------------------------------------------------------------------------------------------------ small parts


def search_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.small search`."""
    rows = [
        [
            f"BM25, {index['documents']:,} documents of {index['words']} words, {len(index['build_cpu_s'])} times",
            f"{_time(median(index['build_cpu_s']))}, {index['peak_mb']:.0f} MB more",
            _time(median(index["query_cpu_s"])),
        ]
        for index in result["indexes"]
    ]
    asked = sorted(result["server_wall_s"])
    rows.append(
        [
            "a server on the same machine, the last of these; wall time",
            "",
            f"{_time(median(asked))}; 95th percentile {_time(asked[len(asked) * 95 // 100])}",
        ]
    )
    return {
        "main": Table(
            ["what", "building the index, CPU", "a query of six words, median of 300, CPU"], rows
        ),
        "files": Table(
            ["what", "measured"],
            [
                [
                    "reading HotpotQA's format, one record at a time",
                    f"{result['read_bytes'] / 1e6 / result['read_cpu_s']:.0f} MB/s",
                ]
            ],
        ),
    }


def watch_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.small watch`."""
    return {
        "main": Table(
            ["what is sent to be drawn", "CPU time, median", "size"],
            [
                [
                    f"a picture of {row['steps']:,} steps",
                    _time(median(row["cpu_s"])),
                    f"{row['bytes'] / 1e3:.0f} kB",
                ]
                for row in result["rows"]
            ],
        )
    }


def navigator_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.navigator`."""

    def spread(times_ms: Sequence[float]) -> list[str]:
        ordered = sorted(times_ms)
        return [f"{median(ordered):.0f} ms", f"{ordered[len(ordered) * 95 // 100]:.0f} ms"]

    one = [
        (f"kernel: the courses of a run of {result['steps']:,} steps", [result["open_ms"]]),
        (
            f"kernel: a step with {result['attempts']} trajectories of {result['tokens']:,} tokens, read for the first time",
            result["step_ms"],
        ),
        ("kernel: one of its trajectories", result["attempt_ms"]),
        ("kernel: the credit editor of that step, opened", [result["editor_opened_ms"]]),
        ("kernel: the credit of its 128,000 tokens after an edit", result["editor_edit_ms"]),
        ("kernel: the spread of every group of the run, 500 steps read", [result["spread_ms"]]),
        (
            f"browser: the editor's table of {result['attempts']} trajectories painted",
            [result["editor_paint_ms"]],
        ),
        ("browser: from a click on a trajectory until its tokens are painted", result["select_ms"]),
        (
            f"browser: a trajectory of {result['long_tokens']:,} tokens, first paint",
            [result["long_first_ms"]],
        ),
        ("browser: another lane of it", [result["long_lane_ms"]]),
        ("browser: worst frame while scrolling through it", [result["long_worst_frame_ms"]]),
    ]
    return {
        "main": Table(
            ["what, wall time", "median", "95 of 100 within"],
            [[what, *spread(times)] for what, times in one],
        ),
        "memory": Table(
            ["what", ""], [["browser: memory of the page", f"{result['heap_mb']:.0f} MB"]]
        ),
    }


def worker_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.small workers`."""
    freed, step = result["freed_wall_s"], result["step_wall_s"]
    more = median(_differences(step["worker"], step["inline"]))
    return {
        "main": Table(
            ["what", "measured, wall time"],
            [
                [
                    f"trajectories that hang, of {result['attempts']}, with a deadline of {result['deadline_s']:g} s",
                    str(result["hanging"]),
                ],
                ["each freed after", f"{min(freed):.2f} to {max(freed):.2f} s"],
                ["the whole batch", f"{result['batch_wall_s']:.1f} s"],
                [
                    f"a step in a worker process instead of the engine's tick, median of {len(step['worker'])} in turns",
                    f"{1e3 * more:.2f} ms more",
                ],
            ],
        )
    }


def adapter_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.small adapters`."""
    rows = []
    for shape in result["shapes"]:
        for way in ("merged", "alone"):
            said = shape[way]
            rows.append(
                [
                    f"{shape['parameters'] / 1e6:.1f} M parameters, {way}",
                    f"{said['bytes'] / 1e3:,.0f} kB",
                    _time(median(said["bring_s"])),
                    _time(median(said["sync_s"])),
                    f"{said['gap_max']:.0e}",
                ]
            )
    head = [
        f"adapters of rank {result['rank']} to a vLLM server, median of {result['syncs']}",
        "bytes",
        "until the digests are right, wall time",
        "with the probe, wall time",
        "largest gap, nats",
    ]
    return {"main": Table(head, rows)}


def _differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


def _time(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds >= 1
        else f"{1e3 * seconds:.3g} ms"
        if seconds >= 1e-3
        else f"{1e6 * seconds:.0f} µs"
    )


def sums_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.sums`: a step of a pretrained model, ours and TRL's, in turns."""
    if set(result["summary"]) != {"ours", "trl"}:
        return {"main": _sides_table(result)}
    ours = result["summary"]["ours"]
    trl = result["summary"]["trl"]
    wanted = {
        "step, CPU seconds": ("step_cpu_s", 1),
        "of it sampling": ("rollout_cpu_s", 1),
        "most memory of the process, GB": ("peak_gb", 2),
    }
    rows = [
        [
            words,
            f"{ours[name]:.{digits}f}",
            f"{trl[name]:.{digits}f}",
            f"{trl[name] / ours[name]:.2f}",
        ]
        for words, (name, digits) in wanted.items()
    ]
    counted = f"median of {ours['steps_counted']} steps; memory: largest of all"
    return {"main": Table([counted, "ours", "TRL", "TRL's over ours"], rows)}


def _sides_table(result: Result) -> Table:
    """Several ways of ours and of TRL's: each beside that one of TRL's whose steps are the shortest."""
    summary = result["summary"]
    best = min(result["times_as_fast"], key=lambda name: summary[name]["step_cpu_s"])
    rows = []
    for name, side in summary.items():
        ratio = result["times_as_fast"][best].get(name)
        cells = [f"{side[figure]:.1f}" for figure in ("step_cpu_s", "rollout_cpu_s")]
        rows.append([name, *cells, f"{side['peak_gb']:.2f}", _limits(ratio, 2) if ratio else ""])
    counted = f"median of {summary[best]['steps_counted']} steps; memory: largest of all"
    faster = f"times as fast as {best} [95 %]"
    head = [counted, "step, CPU seconds", "of it sampling", "most memory, GB", faster]
    return Table(head, rows)


def decode_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.decode`: both ways of `engine.decode`, in turns."""
    rows = []
    for shape, facts in result["decoding"].items():
        what = f"decoding alone, {shape}, {facts['rows']} rows"
        rows.append([f"{what}, {facts['context']} tokens before the first", *_both_ways(facts)])
    for preset, facts in result["rollouts"].items():
        rows.append(
            [f"whole rollouts, preset {preset}, {facts['tasks']} groups", *_both_ways(facts)]
        )
    head = [
        "tokens per CPU second, mean [least, most]",
        "plain",
        "fused",
        "ratio [95 %]",
        "the same tokens",
        "logprobs within",
    ]
    return {"main": Table(head, rows)}


def half_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.half`: the fused way of decoding in bfloat16, beside float32."""
    rows = []
    for name, facts in result["decoding"].items():
        ratio = facts["ratio"]
        cells = [f"{sum(rates) / len(rates):,.0f}" for rates in facts["rates"].values()]
        cells.append(f"**{ratio['mean']:.2f}** [{ratio['low']:.2f}, {ratio['high']:.2f}]")
        cells += [f"{taken / 1e6:,.0f} MB" for taken in facts["bytes"].values()]
        rows.append([f"{name}, {facts['context']} tokens before the first", *cells])
    head = [
        "tokens per CPU second, decoding alone",
        "float32",
        "bfloat16",
        "ratio [95 %]",
        "the engine's weights, float32",
        "bfloat16",
    ]
    gaps = [
        [f"{preset}, {way}", f"{gap['mean']:.1e}", f"{gap['largest']:.1e}", f"{gap['tokens']:,}"]
        for preset, ways in result["gaps"].items()
        for way, gap in ways.items()
    ]
    mean, largest = result["limits"]
    gaps.append(["limits of the lint's R23 for bfloat16", f"{mean:g}", f"{largest:g}", ""])
    about = "engine and trainer (float32) apart, nats a token"
    return {
        "main": Table(head, rows),
        "gaps": Table([about, "mean", "largest", "sampled tokens"], gaps),
    }


def nuclei_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.nuclei`: sampling at large vocabularies, with the kernel and without."""
    rows = []
    for name, facts in result["loads"].items():
        times = [f"{facts['ms'][way]:,.1f}" for way in ("softmax", "without", "kernel")]
        rows.append(
            [
                name,
                f"{facts['kept']:,.0f}",
                *times,
                _limits(facts["faster"], 1),
                _limits(facts["softmaxes"], 1),
                "yes" if facts["same_bits"] else "no",
            ]
        )
    head = [
        "sample_rows, rows x vocabulary",
        "tokens kept of a row",
        "a softmax, ms",
        "without the kernel, ms",
        "with it, ms",
        "times as fast [95 %]",
        "in softmaxes",
        "the same bits",
    ]
    return {"main": Table(head, rows)}


def group_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.groups`: a group's prompt kept once, or by each sequence."""
    names = {f"decoding alone, {name}": facts for name, facts in result["decoding"].items()}
    names |= {
        f"whole rollouts, preset {preset}, {facts['tasks']} groups": facts
        for preset, facts in result["rollouts"].items()
    }
    rows = []
    for name, facts in names.items():
        means = [f"{sum(rates) / len(rates):,.0f}" for rates in facts["rates"].values()]
        same = "yes" if facts["same_bits"] else "no"
        positions = [f"{facts['positions'][way]:,.0f}" for way in ("own", "once")]
        rows.append([name, *means, _limits(facts["ratio"], 2), " / ".join(positions), same])
    head = [
        "tokens per CPU second",
        "each its own copy",
        "one for all",
        "ratio [95 %]",
        "positions of keys and values, own / one",
        "the same bits",
    ]
    return {"main": Table(head, rows)}


def _limits(ratio: Result, digits: int) -> str:
    mean, low, high = (f"{ratio[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"**{mean}** [{low}, {high}]"


def _both_ways(facts: Result) -> list[str]:
    cells = []
    for rates in facts["rates"].values():
        mean = sum(rates) / len(rates)
        cells.append(f"{mean:,.0f} [{min(rates):,.0f}, {max(rates):,.0f}]")
    ratio = facts["ratio"]
    cells.append(f"**{ratio['mean']:.2f}** [{ratio['low']:.2f}, {ratio['high']:.2f}]")
    share = "all" if facts["same"] == 1 else f"{100 * facts['same']:.1f} %"
    return [*cells, f"{share} of {facts['compared']} turns", f"{facts['gap']:.0e}"]


def attention_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.attention`: the ways of `learner.attention` and `learner.layers`, in turns."""
    rows = []
    ways: list[str] = []
    for name, facts in result["updates"].items():
        size = f"{name}, {facts['parameters'] / 1e6:,.1f} million parameters"
        cells = [f"{size}, {facts['tokens']:,} tokens"]
        ways = list(facts["seconds"])
        for way, seconds in facts["seconds"].items():
            shares = facts["shares"][way]
            share = 100 * sum(shares) / len(shares)
            cells.append(f"{sum(seconds) / len(seconds):.2f} s, {share:.0f} %")
        ratio = facts["ratio"]
        cells.append(f"**{ratio['mean']:.2f}** [{ratio['low']:.2f}, {ratio['high']:.2f}]")
        rows.append([*cells, f"{facts['apart'] / facts['moved']:.0e}"])
    head = [
        "an update: CPU seconds, and attention's share of them",
        *ways,
        "times as fast [95 %]",
        "weights apart, of the way they went",
    ]
    return {"main": Table(head, rows)}


def draft_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.drafts`: the fused way of decoding without drafts and with them, in turns."""
    rows = []
    for preset, loads in result["rollouts"].items():
        for load in loads:
            rows.append(_draft_row(preset, load))
    head = [
        "whole rollouts, groups of 8",
        "tokens a pass",
        "drafts accepted",
        "passes, without / with",
        "tokens per CPU second, ratio [95 %]",
        "of the engine alone",
        "tokens that differ in a bit",
    ]
    passes = []
    for name, loads in result["passes"].items():
        for load in loads:
            passes.append(
                [f"{name}, {load['rows']} rows", f"{load['alone']:.2f}", f"{load['wider']:.2f}"]
            )
    widths = ["CPU milliseconds of a pass", "one position a row", "five"]
    return {"main": Table(head, rows), "passes": Table(widths, passes)}


def _draft_row(preset: str, load: Result) -> list[str]:
    ratio = load["ratio"]
    own = load["engine_ratio"]
    without, drafted = load["passes"].values()
    share = load["accepted"] / load["drafted"]
    return [
        f"{preset}, {load['groups']} {'group' if load['groups'] == 1 else 'groups'}",
        f"{load['tokens_per_pass']:.2f}",
        f"{100 * share:.0f} % of {load['drafted']:,}",
        f"{without:,} / {drafted:,}",
        f"**{ratio['mean']:.2f}** [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        f"{own['mean']:.2f} [{own['low']:.2f}, {own['high']:.2f}]",
        f"{load['unequal']} of {load['tokens']:,}",
    ]


def guard_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.guards`: steps of a run with the guards against bad input, and without."""
    rows = []
    for preset, facts in result["presets"].items():
        means = [sum(seconds) / len(seconds) for seconds in facts["seconds"].values()]
        cells = [f"{mean:.3f}" for mean in means]
        rows.append([preset, str(facts["ratio"]["n"]), *cells, _limits(facts["ratio"], 3)])
    head = ["preset", "pairs of steps", "CPU seconds with guards", "without", "ratio [95 %]"]
    return {"main": Table(head, rows)}


KINDS = {
    "bench": bench_tables,
    "search": search_tables,
    "watch": watch_tables,
    "workers": worker_tables,
    "navigator": navigator_tables,
    "adapters": adapter_tables,
    "sums": sums_tables,
    "decode": decode_tables,
    "half": half_tables,
    "attention": attention_tables,
    "drafts": draft_tables,
    "nuclei": nuclei_tables,
    "groups": group_tables,
    "guards": guard_tables,
}
