#!/usr/bin/env python3
"""Draws docs/forecast.svg, the picture in the README, from a result document.
usage: build/release/stepcast simulate scenarios/moe-1.8t-1024xh100.json --json | scripts/picture.py > docs/forecast.svg"""
import json
import sys

COLOURS = {"gemm": "#0072b2", "attention": "#56b4e9", "memory_bound": "#8fb8d8", "tp": "#e69f00", "cp": "#b8860b",
           "ep": "#d55e00", "pp": "#cc79a7", "dp": "#f0c05a", "bubble": "#999999", "imbalance": "#777777",
           "host": "#bbbbbb", "optimizer": "#009e73", "jitter": "#dddddd", "other": "#cccccc"}
MEMORY = [("parameters_bytes", "weights", "#0072b2"), ("gradients_bytes", "gradients", "#56b4e9"),
          ("optimizer_bytes", "optimizer", "#009e73"), ("activations_bytes", "activations", "#d55e00"),
          ("buffers_bytes", "buffers", "#e69f00"), ("runtime_bytes", "runtime", "#999999")]
GIB = 2 ** 30
WIDTH = 860


def text(x, y, words, size=13, anchor="start", weight="normal", fill="#222"):
    return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{fill}">{words}</text>')


def bar(x, y, width, height, colour):
    return f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{height}" fill="{colour}"/>'


def loss_rows(result, y):
    step = result["step_time_s"]
    at, out = 0.0, []
    for name, seconds in result["breakdown_s"].items():
        if seconds < step * 0.001:
            continue
        out += [text(130, y + 13, name.replace("_", " "), anchor="end"),
                bar(140 + 520 * at / step, y, 520 * seconds / step, 17, COLOURS[name]),
                text(672, y + 13, f"{seconds:.3f} s"), text(800, y + 13, f"{100 * seconds / step:.1f} %", anchor="end")]
        at += seconds
        y += 22
    return out, y


def memory_rows(result, y):
    capacity = result["memory"]["capacity_bytes"]
    stages = result["memory"]["stages"]
    shown = stages[::max(1, len(stages) // 6)]
    out = []
    for stage in shown:
        out.append(text(130, y + 13, f"pipeline rank {stage['stage']}", anchor="end"))
        at = 0
        for key, _, colour in MEMORY:
            out.append(bar(140 + 520 * at / capacity, y, 520 * stage[key] / capacity, 17, colour))
            at += stage[key]
        out.append(text(672, y + 13, f"{stage['device_bytes'] / GIB:.1f} GiB"))
        y += 22
    out.append(f'<line x1="660" y1="{y - 22 * len(shown) - 4}" x2="660" y2="{y}" stroke="#222" stroke-dasharray="3 3"/>')
    out.append(text(660, y + 14, f"capacity {capacity / GIB:.1f} GiB", 12, "middle"))
    x = 140
    for _, words, colour in MEMORY:
        out += [bar(x, y + 26, 12, 12, colour), text(x + 17, y + 36, words, 12)]
        x += 30 + 7 * len(words)
    return out, y + 50


def main():
    result = json.load(sys.stdin)
    gpus = result["scenario"]["cluster"]["gpus"]
    verdict = "fits" if result["fits"] else "does not fit"
    out = [text(20, 30, result["name"], 18, weight="bold"),
           text(20, 54, f"{verdict}; step {result['step_time_s']:.2f} s; {result['tokens_per_s']:,.0f} tokens/s on {gpus} "
                        f"GPUs; {result['model_tflops_per_gpu']:.0f} TFLOP/s per GPU; MFU {100 * result['mfu']:.1f} %", 14),
           text(20, 86, "Where the step goes", 14, weight="bold")]
    rows, y = loss_rows(result, 98)
    out += rows
    out.append(text(20, y + 20, "Memory of each GPU", 14, weight="bold"))
    rows, y = memory_rows(result, y + 32)
    out += rows
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 10}" viewBox="0 0 {WIDTH} {y + 10}" '
          f'font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="#fff"/>')
    print("\n".join(out))
    print("</svg>")


main()
