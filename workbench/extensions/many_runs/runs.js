// The table of runs: sorted by a column, filtered by text, grouped by a setting; a sparkline of each run with its baselines.

const POLICIES = ["trained", "random", "untrained", "solver"];
const SHOWN_SETTINGS = 6;

// Success over the steps, the baselines as lines.
function sparkline(run) {
  const width = 120, height = 26;
  const levels = Object.entries(run.baselines).filter(([, value]) => known(value));
  const values = [...run.curve, ...levels.map(([, value]) => value)].filter(known);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "wb-spark", role: "img",
    "aria-label": `training from ${said(run.train_first)} to ${said(run.train_last)}${levels.map(([name, value]) => `, ${name} ${said(value)}`).join("")}` });
  if (!values.length) return svg;
  let low = Math.min(...values), high = Math.max(...values);
  if (!(high > low)) { low -= 0.5; high += 0.5; }
  const x = (index) => 2 + (index / Math.max(1, run.curve.length - 1)) * (width - 4);
  const y = (value) => 2 + (1 - (value - low) / (high - low)) * (height - 4);
  const dashes = { random: "2 3", untrained: "5 3", solver: "8 3" };
  for (const [name, value] of levels) {
    const line = drawn("line", { x1: 0, x2: width, y1: y(value), y2: y(value), class: "wb-level", "stroke-dasharray": dashes[name] || "3 3" });
    line.append(drawn("title", {}, `${name} ${said(value)}`));
    svg.append(line);
  }
  svg.append(drawn("path", { d: lineOf(run.curve.map((value, index) => (known(value) ? `${x(index).toFixed(1)},${y(value).toFixed(1)}` : null))), fill: "none", stroke: inked(RUN_COLOURS[0]), "stroke-width": 1.6 }));
  return svg;
}

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function std(values) { // n - 1
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}

class RunsTable {
  constructor(el, table, refresh) {
    Object.assign(this, { table, by: null, up: false, text: "", group: "" });
    this.filter = make("input", { type: "search", placeholder: "filter: words, learner.lr=0.001", "aria-label": "filter runs by text", oninput: (event) => { this.text = event.target.value; this.draw(); } });
    this.groups = make("select", { "aria-label": "group by a setting", onchange: (event) => { this.group = event.target.value; this.draw(); } });
    this.count = make("span", { class: "wb-quiet wb-count" });
    this.body = make("div", { class: "wb-scroll wb-runs-table" });
    this.root = make("div", { class: "wb-nav wb-runs", "data-lm-suppress-shortcuts": "true" }, make("div", { class: "wb-bar" }, this.filter, this.groups,
      refresh ? make("button", { text: "↻", title: "read the runs again", onclick: refresh }) : null, this.count), this.body);
    this.root.addEventListener("keydown", (event) => event.stopPropagation()); // JupyterLab has keys of its own
    el.append(this.root);
    this.take(table);
  }

  take(table) {
    this.table = table;
    fill(this.groups, make("option", { text: "no groups", value: "" }), ...table.differing.map((name) => make("option", { text: `by ${name}`, value: name, selected: name === this.group })));
    this.draw();
  }

  columns() {
    const settings = this.table.differing.slice(0, SHOWN_SETTINGS).map((name) => [name, name, (run) => run.settings[name] ?? "not set", false]);
    return [["name", "run", (run) => run.name, false], ["state", "state", (run) => run.state, false], ["step", "step", (run) => run.step, true], ...settings,
      ["train_last", "training", (run) => run.train_last, true], ["measured", "measured after", (run) => run.measured, true],
      ["trained", "trained", (run) => run.trained, true], ...POLICIES.slice(1).map((name) => [name, name, (run) => run.baselines[name], true])];
  }

  // Numbers as numbers, also where a setting is text; what is not known comes last in both directions.
  compare(a, b) {
    const numbers = [a, b].map((value) => (value === "" || value === null || value === undefined ? NaN : Number(value)));
    const empty = [a, b].map((value) => value === null || value === undefined || value === "");
    if (empty[0] || empty[1]) return empty[0] - empty[1];
    const order = numbers.some(Number.isNaN) ? String(a).localeCompare(String(b)) : numbers[0] - numbers[1];
    return this.up ? order : -order;
  }

  shown() {
    const words = this.text.toLowerCase().split(/\s+/).filter(Boolean);
    const searched = (run) => [run.name, run.state, run.problem, ...Object.entries(run.settings).map(([name, value]) => `${name}=${value}`)].join("\n").toLowerCase();
    let rows = this.table.rows.filter((run) => { const text = words.length ? searched(run) : ""; return words.every((word) => text.includes(word)); });
    if (this.by) {
      const [, , value] = this.columns().find(([key]) => key === this.by) || [];
      if (value) rows = [...rows].sort((a, b) => this.compare(value(a), value(b)));
    }
    return rows;
  }

  draw() {
    const rows = this.shown();
    this.count.textContent = rows.length < this.table.rows.length ? `${rows.length} of ${this.table.rows.length} runs` : `${rows.length} runs`;
    if (this.group) { fill(this.body, this.grouped(rows)); return; }
    const heads = this.columns().map(([key, title]) => make("button", { text: title + (this.by === key ? (this.up ? " ▲" : " ▼") : ""), "aria-label": `sort by ${title}`,
      onclick: () => { this.up = this.by === key ? !this.up : false; this.by = key; this.draw(); } }));
    fill(this.body, table(heads, rows.map((run) => this.row(run))));
  }

  row(run) {
    const cells = this.columns().map(([key, , value, number]) => {
      if (key === "train_last") return make("td", {}, sparkline(run));
      if (POLICIES.includes(key)) return make("td", { class: "wb-number", text: run.rates[key] });
      if (key === "step") return make("td", { class: "wb-number", text: `${run.step}${known(run.steps) ? ` of ${run.steps}` : ""}` });
      return make("td", { class: number ? "wb-number" : "wb-name", text: said(value(run)), title: key === "name" ? run.problem || run.path : said(value(run)) });
    });
    return make("tr", { "data-run": run.name }, ...cells);
  }

  // A row a group: mean and standard deviation (n - 1) over its runs.
  grouped(rows) {
    const groups = new Map();
    for (const run of rows) {
      const value = run.settings[this.group] ?? "not set";
      groups.set(value, [...(groups.get(value) || []), run]);
    }
    const measured = [...groups].map(([value, own]) => {
      const reached = own.map((run) => run.trained).filter(known);
      const beside = POLICIES.slice(1).map((name) => mean(own.map((run) => run.baselines[name]).filter(known)));
      return { value, own, counts: [own.length, reached.length], rates: [mean(reached), std(reached), ...beside] };
    });
    const rate = inColumn(measured.flatMap((group) => group.rates));
    const lines = measured.map(({ value, own, counts, rates }) => make("tr", {}, make("td", { text: value }),
      ...[...counts.map(String), ...rates.map(rate)].map((text) => make("td", { class: "wb-number", text })),
      make("td", { class: "wb-rest", text: own.map((run) => run.name).join(", ") })));
    return table([this.group, "runs", "measured", "trained, mean", "std (n − 1)", ...POLICIES.slice(1), "which"], lines);
  }
}

function render({ model, el }) {
  const table = new RunsTable(el, model.get("table"), () => model.send({ ask: "refresh" }));
  model.on("change:table", () => table.take(model.get("table")));
}

export function renderSaved(el, table) {
  return new RunsTable(el, table, null);
}

export default { render };
