// Groups in the navigator: the reward std of every one over the run, and the trajectories of one side by side.

const SPREAD = "reward std of every group";
const FLAT_SIDES = ["all won", "all lost", "all the same"];

// Dots, a group each, above; below a row per side: how many of the step's groups have zero variance there. Draws into `plot`.
function drawSpread(plot, reply, { x, top, bottom, left, right, width }) {
  const rows = FLAT_SIDES.filter((side) => reply.groups.some((group) => group[3] === side));
  const floor = bottom - 20 * rows.length;
  const marks = ticks(0, Math.max(...reply.groups.map((group) => group[2] ?? 0), 1e-9), 3);
  const highest = marks.at(-1);
  const y = (std) => floor - 6 - (std / highest) * (floor - top - 12);
  drawGrid(plot, marks, inColumn(marks), { y, left, right, width });
  const dots = reply.groups.filter((group) => known(group[2]) && !group[3]).map(([step, , std]) => `M${x(step).toFixed(1)},${y(std).toFixed(1)}h0`);
  plot.append(drawn("path", { d: dots.join("") || "M0,0", class: "wb-dots" }));
  const count = new Map();
  for (const [step, , , side] of reply.groups) count.set(step, (count.get(step) || 0) + 1), side && count.set(`${step} ${side}`, (count.get(`${step} ${side}`) || 0) + 1);
  rows.forEach((side, index) => {
    const base = floor + 20 * (index + 1) - 2;
    const bars = reply.steps.filter((step) => count.get(`${step} ${side}`)).map((step) => `M${x(step).toFixed(1)},${base}v${(-16 * count.get(`${step} ${side}`)) / count.get(step)}`);
    plot.append(drawn("line", { x1: left, x2: width - right, y1: base, y2: base, class: "wb-grid" }),
      drawn("text", { x: width - right + 6, y: base, class: "wb-label" }, side), drawn("path", { d: bars.join("") || "M0,0", class: "wb-bars" }));
  });
  plot.append(drawn("text", { x: width - right + 6, y: top + 12, class: "wb-label" }, "std in a group (n − 1)"));
}

function spreadWords(reply, step) {
  const groups = reply.groups.filter((group) => group[0] === step);
  if (!groups.length) return `step ${step} was not read: ${reply.steps.length} of ${reply.of} steps were`;
  const sides = FLAT_SIDES.map((side) => [groups.filter((group) => group[3] === side).length, side]).filter(([number]) => number);
  return `step ${step}: ${groups.length} groups, ${groups.filter((group) => !group[3]).length} differ${sides.map(([number, side]) => `, ${number} ${side}`).join("")}`;
}

// The first step with a zero-variance group, as a button that leads there.
function firstFlat(reply, go) {
  const first = reply.groups.find((group) => group[3]);
  if (!first) return make("span", { class: "wb-quiet", text: "no zero-variance group" });
  const sides = FLAT_SIDES.map((side) => [reply.groups.filter((group) => group[0] === first[0] && group[3] === side).length, side]).filter(([number]) => number);
  return make("button", { class: "wb-first-flat", text: `first zero-variance groups: step ${first[0]} (${sides.map(([number, side]) => `${number} ${side}`).join(", ")})`, onclick: () => go({ step: first[0], task: first[1] }) });
}

// The trajectories of a group in columns; each but the best is marked where it diverges from the best.
function columnsOf(reply, go, place, names) {
  const reward = inColumn(reply.attempts.map((column) => column.reward), { sign: true });
  return make("div", { class: "wb-columns" }, ...reply.attempts.map((column) => {
    const { parts } = column, best = column.attempt === reply.best;
    const at = parts && { ...place, attempt: column.attempt, ...(known(parts.token) ? { token: parts.token } : { turn: parts.turn }) };
    const turns = column.turns.map((text, turn) => {
      const same = best ? false : !parts || turn < parts.turn;
      const differs = parts && turn === parts.turn;
      return make("details", { open: !same && (best || differs), class: differs ? "wb-parts" : null },
        make("summary", { text: `turn ${turn}${same ? " (identical text)" : differs ? " ◆ diverges here" : ""}` }),
        make("pre", { text }), column.replies[turn] ? make("pre", { class: "wb-quiet", text: column.replies[turn] }) : null);
    });
    return make("div", { class: "wb-column" },
      names ? make("b", { text: names[column.attempt] }) : make("button", { text: `attempt ${column.attempt}`, onclick: () => go({ ...place, attempt: column.attempt }) }),
      make("span", { text: ` ${reward(column.reward)}${known(column.success) ? (column.success ? " · success" : " · no success") : ""} · ${column.stop}` }),
      best ? make("p", { text: names ? "reference" : "reference (highest reward)" })
        : parts ? make("p", {}, make("button", { class: "wb-parting", disabled: Boolean(names), text: `◆ turn ${parts.turn}${known(parts.token) ? `, token ${parts.token}` : ", where it ends"}`, onclick: () => go(at) }),
          make("span", { text: ` ${parts.author}: ` }), make("b", { class: "wb-here", text: parts.here || "(ends)" }), make("span", { text: " instead of " }), make("span", { class: "wb-best", text: parts.best || "(ends)" }))
          : make("p", { text: "identical tokens" }),
      ...turns);
  }));
}

// Two policies at the same tasks: a run before and after training, or two runs.
class PairsPanel {
  constructor(navigator) {
    Object.assign(this, { navigator, other: -1, only: "" });
    this.body = make("div", {});
    this.box = make("details", { class: "wb-pairs", ontoggle: () => this.box.open && this.read() },
      make("summary", { text: "the same tasks before and after training, or in another run" }), this.body);
  }

  async read() {
    const { ask, run, runs } = this.navigator;
    if (this.other === run) this.other = -1;
    const against = make("select", { "aria-label": "paired with", onchange: (event) => { this.other = Number(event.target.value); this.read(); } },
      make("option", { text: "before training", value: -1, selected: this.other < 0 }),
      ...runs.map((each, index) => (index === run ? null : make("option", { text: each.name, value: index, selected: index === this.other }))).filter(Boolean));
    const reply = await ask({ ask: "pairs", run, other: this.other });
    if (reply.error) { fill(this.body, make("div", { class: "wb-bar" }, against), make("p", { text: reply.error })); return; }
    Object.assign(this, { reply, against });
    this.draw();
  }

  draw() {
    const { reply: { names, measure, difference, rows } } = this;
    const changes = [...new Set(["lost", "won", ...rows.map((each) => each.change)])];
    const count = (change) => rows.filter((each) => each.change === change).length;
    const only = make("div", { class: "wb-bar" }, ...["", ...changes].map((change) => make("button", { text: change ? `${count(change)} ${change}` : `all ${rows.length}`,
      "aria-pressed": String(this.only === change), onclick: () => { this.only = change; this.draw(); } })));
    const pair = make("div", {});
    const format = inColumn(rows.flatMap((each) => each[measure]), { sign: true });
    const made = rows.filter((each) => !this.only || each.change === this.only).map((each) => row([[each.name, false, "wb-name"], [each.change],
      ...each[measure].map((value) => [format(value), true]), [known(each.parts) ? `turn ${each.parts}` : "identical text", false]], `${each.name}: ${each.change}`, () => this.show(each.pair, pair)));
    fill(this.body, make("div", { class: "wb-bar" }, make("span", { text: "paired with" }), this.against,
      difference ? make("span", { class: "wb-difference", text: `Δ ${measure} (${names[1]} − ${names[0]}): ${signed(difference[0])} [${signed(difference[1])}, ${signed(difference[2])}], 95 %, paired by task` }) : null),
    only, make("div", { class: "wb-scroll" }, table(["task", "change", names[0], names[1], "first divergent turn"], made)), pair);
  }

  async show(number, box) {
    const { ask, run } = this.navigator;
    const reply = await ask({ ask: "pairs", run, other: this.other, pair: number });
    fill(box, reply.error ? make("p", { text: reply.error }) : columnsOf(reply, () => {}, {}, reply.names));
    box.scrollIntoView?.({ block: "nearest" });
  }
}
