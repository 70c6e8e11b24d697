// What is watched live: one line of facts, a button to stop it, and curves (of a run) or rows (of a grid's jobs).
//
// anywidget calls `render`. All that is drawn is in the model, so that a page which is opened again has it too. What the
// kernel sends is small, and this script draws it alone: nothing else has to be loaded. All text is set as textContent.

const SILENT_MS = 20000; // without a word from the kernel, which sends one every five seconds
const GONE = ["restarting", "autorestarting", "dead", "terminating"]; // of a kernel
const WIDTH = 380, HEIGHT = 220, LEFT = 46, RIGHT = 10, TOP = 28, BOTTOM = 22; // of a panel, in units of its drawing
const DASHES = { dash: "6 4", dashdot: "8 3 2 3", dot: "2 3", longdash: "10 4", longdashdot: "10 3 2 3" };

function make(name, kind, text) {
  const node = document.createElement(name);
  if (kind) node.className = kind;
  if (text !== undefined) node.textContent = text;
  return node;
}

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

function number(value) {
  if (!known(value)) return "—";
  if (Number.isInteger(value)) return String(value).replace("-", "−");
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

// A colour as it reads on light and dark paper: what is all but black is the ink of the page, what is pale lets the paper
// through, and all others have some of the ink.
function paint(colour) {
  const channels = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const [red, green, blue] = channels;
  const light = 0.3 * red + 0.6 * green + 0.1 * blue;
  if (light < 50) return "currentColor";
  const inked = (from) => `color-mix(in srgb, ${from} 82%, currentColor)`;
  if (light < 160) return inked(colour);
  const share = Math.max(0.1, 1 - Math.min(...channels) / 255); // of white paper it would be the same
  const full = channels.map((channel) => Math.round((channel - (1 - share) * 255) / share));
  return `color-mix(in srgb, ${inked(`rgb(${full.join(" ")})`)} ${Math.round(100 * Math.max(share, 0.45))}%, transparent)`;
}

// About `count` round values from `low` to `high`: 1, 2, 2.5 or 5 times a power of ten apart.
function ticks(low, high, count, factors) {
  const step = tickStep(low, high, count, { factors });
  const values = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at += 1) values.push(Number((at * step).toPrecision(12)));
  return values;
}

// How the ticks of an axis are written: all with as many decimals as one of them needs, of very small or large ones by the
// power of ten of the largest.
function tickWords(values) {
  const largest = Math.floor(Math.log10(Math.max(...values.map(Math.abs))));
  const power = largest < -4 || largest > 5 ? largest : 0;
  const scaled = (value) => Number((value / 10 ** power).toPrecision(9));
  const decimals = Math.max(0, ...values.map((value) => (String(scaled(value)).split(".")[1] || "").length));
  return (value) => `${scaled(value).toFixed(decimals)}${power ? `e${power}` : ""}`.replaceAll("-", "−");
}

function powers(low, high) {
  const values = [];
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power += 1) values.push(10 ** power);
  return values.length > 1 ? values : ticks(low, high, 3);
}

// ------------------------------------------------------------------------------------------------ a panel

// One panel over `range` (first and last x), with the functions that place a value in it.
class Panel {
  constructor(panel, range) {
    this.panel = panel;
    this.range = range;
    const inside = panel.traces.flatMap((trace) => trace.y.filter((value, at) => known(value)
      && (trace.level || (trace.x[at] >= range[0] && trace.x[at] <= range[1])) && (!panel.log || value > 0)));
    let low = inside.length ? Math.min(...inside) : 0;
    let high = inside.length ? Math.max(...inside) : 1;
    if (!(high > low)) { const room = Math.abs(low) || 1; low -= panel.log ? low / 2 : room / 2; high += room / 2; }
    const scale = panel.log ? Math.log10 : (value) => value;
    const room = 0.04 * (scale(high) - scale(low));
    const [bottom, top] = [scale(low) - room, scale(high) + room];
    this.x = (value) => LEFT + ((value - range[0]) / (range[1] - range[0])) * (WIDTH - LEFT - RIGHT);
    this.y = (value) => TOP + (1 - (scale(value) - bottom) / (top - bottom)) * (HEIGHT - TOP - BOTTOM);
    this.marks = panel.log ? powers(low, high) : ticks(low, high, 4);
    this.svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "wb-live-panel", role: "img",
      "aria-label": `${panel.title}: ${panel.traces.map((trace) => `${trace.name} ${number(trace.y.filter(known).at(-1))}`).join(", ")}` });
    this.axes();
    const [x, y, width, height] = [LEFT - 4, TOP - 4, WIDTH - LEFT - RIGHT + 8, HEIGHT - TOP - BOTTOM + 8];
    this.plot = drawn("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` }); // cuts off what was zoomed away
    for (const trace of panel.traces) this.trace(trace);
    this.cursor = drawn("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "wb-live-cursor", visibility: "hidden" });
    this.zoom = drawn("rect", { y: TOP, height: HEIGHT - TOP - BOTTOM, class: "wb-live-zoom", visibility: "hidden" });
    this.svg.append(this.plot, this.cursor, this.zoom);
  }

  axes() {
    this.svg.append(drawn("text", { x: 2, y: 14, class: "wb-live-title" }, this.panel.title));
    const words = this.marks.every((value) => Number.isInteger(Math.log10(value))) ? number : tickWords(this.marks);
    for (const value of this.marks) this.svg.append(
      drawn("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: this.y(value), y2: this.y(value), class: "wb-live-grid" }),
      drawn("text", { x: LEFT - 5, y: this.y(value) + 4, "text-anchor": "end" }, words(value)));
    for (const value of ticks(...this.range, 5, [1, 2, 5, 10]).filter(Number.isInteger)) this.svg.append(
      drawn("text", { x: this.x(value), y: HEIGHT - 6, "text-anchor": "middle" }, number(value)));
  }

  trace({ name, x, y, mode, line, marker, error_y: bars }) {
    const group = drawn("g", { "data-trace": name, "data-points": x.length, stroke: paint(line.color), fill: "none", "stroke-width": line.width });
    const places = x.map((value, at) => (known(y[at]) && !(this.panel.log && y[at] <= 0) ? [this.x(value), this.y(y[at])] : null));
    if (mode.includes("lines")) {
      const dash = DASHES[line.dash];
      let pen = "M";
      let path = "";
      for (const place of places) {
        if (place) path += `${pen}${place[0].toFixed(1)} ${place[1].toFixed(1)}`;
        pen = place ? "L" : "M";
      }
      group.append(drawn("path", { d: path, ...(dash ? { "stroke-dasharray": dash } : {}) }));
    }
    places.forEach((place, at) => {
      if (!place) return;
      const [left, top] = place;
      if (bars && known(bars.array[at])) group.append(drawn("path", { d: `M${left} ${this.y(y[at] - bars.arrayminus[at])}L${left} ${this.y(y[at] + bars.array[at])}` }));
      if (!mode.includes("markers")) return;
      group.append(marker.symbol === "square-open" ? drawn("rect", { x: left - 3, y: top - 3, width: 6, height: 6 })
        : drawn("circle", { cx: left, cy: top, r: 3, fill: paint(marker.color) }));
    });
    this.plot.append(group);
  }

  // Where the pointer is, as an x of the data.
  at(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    return this.range[0] + Math.min(1, Math.max(0, share)) * (this.range[1] - this.range[0]);
  }

  // The values nearest to `x`, in words.
  read(x) {
    const steps = this.panel.traces.filter((trace) => !trace.level).flatMap((trace) => trace.x);
    const nearest = steps.reduce((best, step) => (Math.abs(step - x) < Math.abs(best - x) ? step : best), steps[0]);
    const words = [];
    for (const trace of this.panel.traces) {
      const value = trace.level ? trace.y[0] : trace.y[trace.x.indexOf(nearest)];
      if (known(value)) words.push(`${trace.name} ${number(value)}`);
    }
    return [nearest, `${this.panel.title}, step ${number(nearest)}: ${words.join(" · ")}`];
  }
}

// ------------------------------------------------------------------------------------------------ the view

class Live {
  constructor(model, el) {
    Object.assign(this, { model, zoomed: null, panels: [], dragged: null, heard: Date.now(), gone: "" });
    this.root = make("div");
    this.root.dataset.lmSuppressShortcuts = "true";
    this.facts = make("div", "wb-live-facts");
    this.problems = make("div", "wb-live-problems");
    this.lost = make("div", "wb-live-lost");
    this.lost.setAttribute("role", "status");
    this.stop = make("button", "wb-stop");
    this.stop.addEventListener("click", () => {
      this.stop.disabled = true; // until the kernel has said what comes of it
      model.send({ ask: "stop" });
    });
    this.whole = make("button", "wb-live-whole", "Show all steps");
    this.whole.addEventListener("click", () => this.show(null));
    const buttons = make("div", "wb-live-buttons");
    buttons.append(this.stop, this.whole);
    this.body = make("div", "wb-live-body");
    this.readout = make("div", "wb-live-readout");
    this.legend = make("div", "wb-live-legend");
    this.root.append(this.facts, this.problems, this.lost, buttons, this.body, this.readout, this.legend);
    this.drawFacts();
    this.drawBody();
    this.root.className = "wb-live"; // from here on the picture below is hidden (live.css): never before this one is drawn
    el.append(this.root);
    model.send({ ask: "drawn" });
  }

  // -------------------------------------------------------------------------------------------- facts

  news() {
    this.heard = Date.now();
    this.drawFacts();
  }

  drawFacts() {
    const status = this.model.get("status");
    const isLost = this.gone || Date.now() - this.heard > SILENT_MS;
    const badge = make("span", "wb-live-state", isLost ? "disconnected" : status.state);
    badge.style.background = isLost ? "#5a6775" : status.colour;
    const bar = make("progress");
    bar.max = 1;
    bar.value = status.share;
    this.facts.replaceChildren(make("b", "", status.name), badge, ...(status.share === null ? [] : [bar]), make("span", "", status.facts));
    this.problems.replaceChildren(...status.problems.map((problem) => make("div", "", `⚠ ${problem}`)));
    this.lost.textContent = !isLost ? "" : `${this.gone || `no word from the kernel for ${Math.round((Date.now() - this.heard) / 1000)} s`}; `
      + `last known state. ${this.model.get("again")}`;
    this.stop.hidden = Boolean(isLost);
    if (this.stop.textContent !== status.stop) this.stop.disabled = !status.stop;
    this.stop.textContent = status.stop || "Stopping";
    this.stop.title = status.stop_does;
  }

  // -------------------------------------------------------------------------------------------- curves or rows

  drawBody() {
    if (this.dragged) return; // not under somebody's hand; the next news draws it
    const { panels = [], columns = [], rows = [] } = this.model.get("body");
    const ends = panels.flatMap((panel) => panel.traces.filter((trace) => !trace.level).flatMap((trace) => [trace.x[0], trace.x.at(-1)])).filter(known);
    const first = Math.min(...ends);
    const last = Math.max(...ends);
    const range = this.zoomed || (last > first ? [first, last] : [first - 0.5, first + 0.5]);
    this.whole.hidden = !this.zoomed;
    this.panels = ends.length ? panels.map((panel) => new Panel(panel, range)) : [];
    for (const panel of this.panels) this.listen(panel);
    this.body.replaceChildren(...this.panels.map((panel) => panel.svg), ...(rows.length ? [this.table(columns, rows)] : []));
    this.drawLegend(panels);
  }

  table(columns, rows) {
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const name of columns) head.append(make("th", "", name));
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      for (const cell of row) line.append(make("td", "", cell));
    }
    return table;
  }

  drawLegend(panels) {
    const looks = new Map(panels.flatMap((panel) => panel.traces).map((trace) => [trace.name, trace]));
    this.legend.replaceChildren(...[...looks].map(([name, { mode, line, marker }]) => {
      const sample = drawn("svg", { width: 26, height: 10, stroke: paint(line.color), "stroke-width": 2, fill: "none" });
      if (mode.includes("lines")) sample.append(drawn("path", { d: "M1 5L25 5", "stroke-dasharray": DASHES[line.dash] || "none" }));
      if (mode.includes("markers")) sample.append(marker.symbol === "square-open" ? drawn("rect", { x: 10, y: 2, width: 6, height: 6 })
        : drawn("circle", { cx: 13, cy: 5, r: 2.5, fill: paint(line.color) }));
      const entry = make("span");
      entry.append(sample, make("span", "", name));
      return entry;
    }));
  }

  // -------------------------------------------------------------------------------------------- reading and zooming

  show(range) {
    this.zoomed = range;
    this.drawBody();
  }

  listen(panel) {
    panel.svg.addEventListener("pointermove", (event) => this.moved(panel, event));
    panel.svg.addEventListener("pointerleave", () => { if (!this.dragged) this.point(null); });
    panel.svg.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      panel.svg.setPointerCapture(event.pointerId);
      this.dragged = [panel.at(event), panel.at(event)];
    });
    panel.svg.addEventListener("pointerup", () => this.dropped());
    panel.svg.addEventListener("pointercancel", () => { this.dragged = null; });
    panel.svg.addEventListener("dblclick", () => this.show(null));
  }

  moved(panel, event) {
    const [nearest, words] = panel.read(panel.at(event));
    this.point(nearest);
    this.readout.textContent = words;
    if (!this.dragged) return;
    this.dragged[1] = panel.at(event);
    const [left, right] = this.dragged.map(panel.x).sort((a, b) => a - b);
    panel.zoom.setAttribute("x", left);
    panel.zoom.setAttribute("width", right - left);
    panel.zoom.setAttribute("visibility", "visible");
  }

  // The same step in all panels.
  point(step) {
    if (step === null) this.readout.textContent = "";
    for (const panel of this.panels) {
      if (step !== null) for (const end of ["x1", "x2"]) panel.cursor.setAttribute(end, panel.x(step));
      const isInside = step !== null && step >= panel.range[0] && step <= panel.range[1];
      panel.cursor.setAttribute("visibility", isInside ? "visible" : "hidden");
    }
  }

  dropped() {
    const [from, to] = (this.dragged || [0, 0]).slice().sort((a, b) => a - b);
    this.dragged = null;
    if (this.panels.length && to - from > 0.02 * (this.panels[0].range[1] - this.panels[0].range[0])) this.show([from, to]);
  }
}

function render({ model, el }) {
  const live = new Live(model, el);
  // Where this script fails, the picture below takes its place: it is hidden only beside a `.wb-live` (live.css).
  const orElsePicture = (draw) => () => {
    try { draw(); } catch (error) {
      live.root.remove();
      model.send({ ask: "failed" });
      throw error;
    }
  };
  const news = orElsePicture(() => live.news());
  const body = orElsePicture(() => { live.drawBody(); live.news(); });
  model.on("change:status", news);
  model.on("change:body", body);
  const clock = setInterval(() => live.drawFacts(), 1000);
  const kernel = model.widget_manager?.kernel;
  const ended = (_, status) => {
    if (!GONE.includes(status)) return;
    live.gone = "the kernel that drew this has ended";
    live.drawFacts();
  };
  kernel?.statusChanged?.connect(ended);
  return () => {
    clearInterval(clock);
    kernel?.statusChanged?.disconnect(ended);
    model.off("change:status", news);
    model.off("change:body", body);
  };
}

export default { render };
