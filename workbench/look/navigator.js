// The navigator: curves, the groups and trajectories of a step, a trajectory turn by turn, its tokens.
//
// In a notebook anywidget calls `render` with a model that sends questions to the kernel; a saved page calls `renderSaved`
// with the answers that it carries. All text is foreign: it is only ever set as textContent.

const AUTHORS = ["prompt", "template", "policy", "env"];
const CLASSES = ["prompt", "scaffold", "policy", "env"]; // of the style sheet
const SIGNS = ["P", "T", "A", "E"];
const DASHES = { random: "2 4", untrained: "6 4", solver: "10 4" };
const SLOW_MS = 8000;    // without an answer, until that is said
const ROW = 40;          // pixels of a line of tokens: the text, and below it the chosen metric
const LOW_ROW = 23;      // of one without a number of that metric
const MOST_HIGH = 300;   // pixels of the curves (navigator.css)
const COLUMNS = [        // of the table of trajectories: key, title, number?
  ["task", "task", true], ["attempt", "attempt", true], ["reward", "reward", true], ["success", "success", false],
  ["stop", "stopped", false], ["turns", "turns", true], ["tokens", "sampled tokens", true], ["surprise", "NLL per token", true],
  ["kept", "in update", false], ["findings", "lint", true], ["last", "final output", false]];

const PAIRS = /[\ud800-\udbff]/; // characters that JavaScript counts as two
const LARGEST_FIRST = ["turns", "tokens", "surprise", "findings"]; // when sorted; the others begin with the smallest

// ------------------------------------------------------------------------------------------------ small

function addressOf(place) {
  return ["step", "task", "attempt", "turn", "token"].filter((name) => known(place[name]))
    .map((name) => `${name} ${place[name]}`).join(" / ");
}

function placeOf(address) {
  const place = {};
  for (const part of address.split("/")) {
    const found = part.trim().match(/^(step|task|attempt|turn|token)\s+(\d+)$/);
    if (found) place[found[1]] = Number(found[2]);
  }
  return place;
}

// ------------------------------------------------------------------------------------------------ asking

// Each question has a number; a reply names the one that it answers, so that a late reply never takes the place of another.
function liveAsker(model, slow) {
  let last = 0;
  const waiting = new Map();
  model.on("msg:custom", (message, buffers) => {
    const done = waiting.get(message.id);
    if (!done) return;
    waiting.delete(message.id);
    done(decoded(message.content, message.arrays, buffers));
  });
  const asked = (question) => new Promise((done) => {
    last += 1;
    const timer = setTimeout(slow, SLOW_MS, question);
    waiting.set(last, (reply) => { clearTimeout(timer); done(reply); });
    model.send({ id: last, question });
  });
  // The first answers came with the widget: a kernel that is at the next cells answers none. Each counts once.
  const first = { ...model.get("first") };
  return (question) => {
    const key = JSON.stringify(question);
    const answer = first[key];
    delete first[key];
    return answer ? Promise.resolve(heldAnswer(answer)) : asked(question);
  };
}

function heldAnswer({ content, arrays, buffers }) {
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  return decoded(content, arrays, buffers.map(bytes));
}

// What a saved page carries: JSON, compressed.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function savedAsker(answers) {
  const search = ({ run, step, text }) => {
    const found = [];
    for (const [key, answer] of Object.entries(answers)) {
      const asked = JSON.parse(key);
      if (asked.ask !== "attempt" || asked.run !== run || asked.step !== step) continue;
      const { first, turns } = answer.content;
      const words = [...first, ...turns.flatMap((turn) => [["", turn.wrote], ...turn.reply])].map(([, words]) => words).join("\n");
      if (words.toLowerCase().includes(text.toLowerCase())) found.push([asked.task, asked.attempt]);
    }
    return { text, found };
  };
  return (question) => {
    if (question.ask === "search") return Promise.resolve(search(question));
    if (question.ask === "search_all") return Promise.resolve(savedSearch(answers, question));
    const key = JSON.stringify(question);
    const answer = answers[key];
    if (!answer) return Promise.resolve({ error: question.ask === "credit" ? "this page has no kernel: credit is recomputed in JupyterLab"
      : question.ask === "pairs" ? "this page holds the trajectories of tasks that were won or lost only"
      : "this page does not hold it: it was saved with other steps. Save it again with steps=[...]" });
    return Promise.resolve(heldAnswer(answer));
  };
}

function decoded(content, arrays, buffers) {
  const kinds = { f8: Float64Array, i4: Int32Array, u1: Uint8Array };
  const found = {};
  (arrays || []).forEach(([name, kind], index) => {
    const buffer = buffers[index];
    const whole = buffer instanceof ArrayBuffer ? buffer : buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength);
    found[name] = new kinds[kind](whole);
  });
  return Object.assign({}, content, { arrays: found });
}

// ------------------------------------------------------------------------------------------------ the navigator

class Navigator {
  constructor(el, ask, at, run, moved, saved = false) {
    Object.assign(this, { ask, moved, run, saved, place: {}, series: 0, lane: "", sort: null, filter: "", stop: "", marked: false, smooth: 5, axis: "step", log: false });
    this.status = make("div", { class: "wb-status", role: "status", "aria-live": "polite" });
    this.path = make("nav", { class: "wb-path", "aria-label": "where this is" });
    this.curves = make("section", { class: "wb-curves", "aria-label": "curves" });
    this.stepPanel = make("section", { class: "wb-step", "aria-label": "step" });
    this.trajectoryPanel = make("section", { class: "wb-trajectory", "aria-label": "trajectory" });
    this.root = make("div", { class: "wb-nav", "data-lm-suppress-shortcuts": "true" },
      this.path, this.keys = keysPanel(), this.curves, (this.searchPanel = new SearchPanel(this)).box, (this.pairs = new PairsPanel(this)).box, this.stepPanel, this.trajectoryPanel, this.status);
    el.append(this.root);
    this.root.addEventListener("keydown", (event) => {
      event.stopPropagation(); // JupyterLab has keys of its own
      if (event.key === "?" && !["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) this.listKeys();
    });
    this.turnAt = 0;
    this.begin(at);
  }

  say(text) { this.status.textContent = text; }

  listKeys() { this.keys.hidden = !this.keys.hidden; }

  async begin(at) {
    if (!await this.follow()) return;
    await this.go(placeOf(at));
    for (const run of this.runs.keys()) this.ask({ ask: "texts", run }); // a tokenizer takes seconds to load: now, not at a click
  }

  // Read the course of the runs; true if there is one.
  async follow() {
    const reply = await this.ask({ ask: "runs" });
    if (reply.error) { this.say(reply.error); return false; }
    if (this.runs?.some((run, index) => run.steps.length !== reply.runs[index].steps.length)) this.spread = null;
    this.runs = reply.runs;
    this.drawCurves();
    return true;
  }

  get titles() {
    const found = [];
    for (const run of this.runs) for (const curve of run.curves) if (!found.includes(curve.title)) found.push(curve.title);
    return found.length ? [...found, SPREAD] : found;
  }

  // Show a place; what is already shown of it stays.
  async go(place) {
    const turn = ++this.turnAt;
    const was = this.place;
    const same = (...names) => names.every((name) => was[name] === place[name]);
    this.place = place;
    this.moved(addressOf(place), this.run);
    this.drawPath();
    this.moveCursor();
    if (!known(place.step)) { this.stepPanel.replaceChildren(); this.trajectoryPanel.replaceChildren(); this.facts = null; return; }
    if (!this.facts || !same("step") || this.facts.run !== this.run) {
      const reply = await this.ask({ ask: "step", run: this.run, step: place.step });
      if (turn !== this.turnAt) return;
      if (reply.error) { this.say(reply.error); return; }
      this.facts = Object.assign(reply, { run: this.run });
      this.found = null;
      this.filter = "";
      this.stop = "";
      this.range = { key: "reward", least: null, most: null };
      this.drawStep();
    } else this.markStep();
    if (!known(place.attempt)) { this.trajectoryPanel.replaceChildren(); this.attempt = null; return; }
    if (!this.attempt || !same("step", "task", "attempt") || this.attempt.run !== this.run) {
      const reply = await this.ask({ ask: "attempt", run: this.run, step: place.step, task: place.task, attempt: place.attempt });
      if (turn !== this.turnAt) return;
      if (reply.error) { this.say(reply.error); return; }
      this.attempt = Object.assign(reply, { run: this.run });
      this.drawTrajectory();
      this.credit.moved();
    }
    if (known(place.token)) this.showToken(place.token);
    else if (known(place.turn)) this.showTurn(place.turn);
  }

  drawPath() {
    const levels = ["step", "task", "attempt", "turn", "token"].filter((name) => known(this.place[name]));
    const upTo = (name) => Object.fromEntries(["step", "task", "attempt", "turn", "token"]
      .slice(0, ["step", "task", "attempt", "turn", "token"].indexOf(name) + 1)
      .filter((each) => known(this.place[each])).map((each) => [each, this.place[each]]));
    const parts = [make("button", { text: this.runs[this.run].name, onclick: () => this.go({}) })];
    for (const name of levels) parts.push(make("span", { text: "/", "aria-hidden": "true" }),
      make("button", { text: `${name} ${this.place[name]}`, onclick: () => this.go(upTo(name)) }));
    this.path.replaceChildren(...parts);
  }

  // ---------------------------------------------------------------------------------------------- curves

  drawCurves() {
    const focused = document.activeElement?.classList.contains("wb-plot") && this.curves.contains(document.activeElement);
    this.drawPlot();
    if (focused) this.curves.querySelector(".wb-plot")?.focus(); // a run that trains is drawn anew under whoever uses the keys
  }

  drawPlot() {
    const titles = this.titles;
    if (!titles.length) { fill(this.curves, make("p", { text: "no steps yet" }), this.refresh()); return; }
    const title = titles[Math.min(this.series, titles.length - 1)];
    const height = 220, width = Math.max(900, Math.round((this.curves.clientWidth * height) / MOST_HIGH)), left = 56, right = 150, top = 12, bottom = 34;
    if (title === SPREAD && this.spread?.run !== this.run) this.readSpread();
    const spread = title === SPREAD && this.spread?.run === this.run ? this.spread : null;
    const own = this.runs.map((run) => run.curves.find((curve) => curve.title === title));
    const steps = this.runs.flatMap((run) => run.steps);
    const axis = axesOf(this.runs).includes(this.axis) ? this.axis : "step";
    const first = axis === "step" ? Math.min(...steps, 0) : 0;
    const last = axis === "step" ? Math.max(...steps, 1) : Math.max(...this.runs.map((run) => run.spent[axis].at(-1)));
    const values = own.flatMap((curve) => (curve ? [...curve.value, ...curve.points.map((p) => p[1]), ...curve.levels.map((l) => l[1])] : [])).filter(known);
    const isLog = this.log && values.every((value) => value > 0);
    const [onScale, offScale] = isLog ? [Math.log10, (place) => 10 ** place] : [(value) => value, (place) => place];
    let low = onScale(Math.min(...values)), high = onScale(Math.max(...values));
    if (!(high > low)) { low -= 0.5; high += 0.5; }
    const grid = !Number.isFinite(low) ? [] : isLog ? logTicks(offScale(low), offScale(high)) : ticks(low, high, 4);
    if (grid.length && !isLog) [low, high] = [grid[0], grid.at(-1)];
    const x = (step, run = this.run) => left + ((placeOn(axis, this.runs[run], step) - first) / Math.max(1e-9, last - first)) * (width - left - right);
    const y = (value) => top + (1 - (onScale(value) - low) / (high - low)) * (height - top - bottom);
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "xMinYMid", role: "img", tabindex: 0, class: "wb-plot",
      "aria-label": `${title} over steps; arrow keys choose a step, Enter opens it` });
    if (spread) drawSpread(svg, spread, { x, top, bottom: height - bottom, left, right, width });
    else if (title !== SPREAD) drawGrid(svg, grid, isLog ? said : inColumn(grid), { y, left, right, width });
    const along = ticks(first, last, 5, axis !== "seconds").filter((value) => value >= first && value <= last);
    const onAxis = inColumn(along, { digits: 9 });
    for (const value of along) svg.append(drawn("text", { x: left + ((value - first) / Math.max(1e-9, last - first)) * (width - left - right), y: height - 4,
      "text-anchor": "middle" }, axis === "step" ? `step ${value}` : `${onAxis(value)} ${axis}`));
    const onLevel = inColumn(own.flatMap((curve) => (curve ? curve.levels.map(([, level]) => level) : [])));
    let labels = [];
    own.forEach((curve, index) => {
      if (!curve) return;
      const colour = inked(RUN_COLOURS[index % RUN_COLOURS.length]);
      const course = (listed) => listed.map((value, i) => (known(value) ? `${x(this.runs[index].steps[i], index).toFixed(1)},${y(value).toFixed(1)}` : null));
      const mean = runningMean(curve.value, this.smooth);
      svg.append(drawn("path", { d: lineOf(course(curve.value)), stroke: colour, "stroke-width": 1, opacity: 0.45, fill: "none" }),
        drawn("path", { d: lineOf(course(mean)), class: "wb-mean", stroke: colour, "stroke-width": 2.2, fill: "none", "stroke-dasharray": index ? `${12 - index} 3` : "none" }));
      for (const [step, value, mode] of curve.points) if (known(value)) svg.append(mode === "greedy"
        ? drawn("rect", { x: x(step, index) - 4, y: y(value) - 4, width: 8, height: 8, fill: colour })
        : drawn("circle", { cx: x(step, index), cy: y(value), r: 4.5, fill: colour }));
      const end = mean.filter(known).at(-1);
      if (known(end)) labels.push([y(end), this.runs[index].name, colour]);
      if (index === 0) for (const [name, level] of curve.levels) {
        svg.append(drawn("line", { x1: left, x2: width - right, y1: y(level), y2: y(level), class: "wb-level", "stroke-dasharray": DASHES[name] || "4 4" }));
        labels.push([y(level), `${name} ${onLevel(level)}`, "currentColor"]);
      }
    });
    labels.sort((a, b) => a[0] - b[0]);
    const [line, longest] = this.curves.clientWidth < 800 ? [17, 16] : [13, 22]; // there letters are larger (navigator.css)
    let lowest = -Infinity;
    for (const [at, text, colour] of labels) {
      lowest = Math.max(at + 4, lowest + line);
      svg.append(drawn("text", { x: width - right + 6, y: lowest, fill: colour, style: `fill: ${colour}`, class: "wb-label" }, text.length > longest ? `${text.slice(0, longest - 1)}…` : text));
    }
    this.runs[this.run].marks.forEach(([step, what]) => {
      const mark = drawn("path", { d: `M${x(step) - 5},${height - 18} l5,-9 l5,9 z`, class: "wb-mark" });
      mark.append(drawn("title", {}, `step ${step}: ${what}`));
      svg.append(mark);
    });
    this.cursor = drawn("line", { y1: top, y2: height - bottom, class: "wb-cursor" });
    svg.append(this.cursor);
    this.x = x;
    const all = this.runs[this.run].steps;
    const nearest = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
      return all.reduce((best, step) => (Math.abs(x(step) - at) < Math.abs(x(best) - at) ? step : best), all[0]);
    };
    svg.addEventListener("mousemove", (event) => all.length && (spread ? this.say(spreadWords(spread, nearest(event))) : this.sayStep(title, nearest(event))));
    svg.addEventListener("click", (event) => all.length && this.go({ step: nearest(event) }));
    svg.addEventListener("keydown", (event) => {
      const now = all.indexOf(this.place.step);
      const to = { ArrowRight: Math.min(all.length - 1, now + 1), ArrowLeft: Math.max(0, now - 1), Home: 0, End: all.length - 1 }[event.key];
      if (to === undefined || !all.length) return;
      event.preventDefault();
      this.go({ step: all[to] });
      if (spread) this.say(spreadWords(spread, all[to]));
      else this.sayStep(title, all[to]);
    });
    const choice = make("select", { "aria-label": "curve", onchange: (event) => { this.series = event.target.selectedIndex; this.drawCurves(); this.moveCursor(); } },
      ...titles.map((each) => make("option", { text: each, selected: each === title })));
    const runs = this.runs.length > 1 ? make("select", { "aria-label": "run", class: "wb-run", onchange: (event) => this.choose(event.target.selectedIndex) },
      ...this.runs.map((run, index) => make("option", { text: run.name, selected: index === this.run }))) : null;
    const marks = this.runs[this.run].marks.length;
    const redraw = () => { this.drawCurves(); this.moveCursor(); };
    fill(this.curves, make("div", { class: "wb-bar" }, choice, runs, ...curveControls(this, redraw), this.refresh(), spread ? firstFlat(spread, (place) => this.go(place)) : null,
      make("span", { class: "wb-quiet", text: `click a step${marks ? `; ▲ ${marks} marks: lint, skipped updates, settings` : ""}; ${title === SPREAD ? "a dot: a group whose rewards differ; below: share of zero-variance groups in the step" : "dots: held out, squares: greedy"}` })), svg);
  }

  async readSpread() {
    const { run } = this;
    this.say("reading every group of the run …");
    const reply = await this.ask({ ask: "spread", run });
    if (reply.error) { this.say(reply.error); return; }
    this.spread = Object.assign(reply, { run });
    this.say(reply.steps.length < reply.of ? `${reply.steps.length} of ${reply.of} steps, evenly chosen` : "");
    if (this.run === run) { this.drawCurves(); this.moveCursor(); }
  }

  choose(run) {
    this.run = run;
    if (this.pairs.box.open) this.pairs.read();
    this.drawCurves();
    this.go(known(this.place.step) && this.runs[run].steps.includes(this.place.step) ? { step: this.place.step } : {});
  }

  refresh() {
    const state = this.runs[this.run];
    return make("button", { class: "wb-refresh", text: `${state.state}: step ${state.steps.at(-1) ?? 0}${state.of ? ` of ${state.of}` : ""} ↻`, title: "read the runs again",
      onclick: async () => { await this.follow(); this.moveCursor(); } });
  }

  sayStep(title, step) {
    const parts = this.runs.map((run) => {
      const curve = run.curves.find((each) => each.title === title);
      const index = run.steps.indexOf(step);
      return curve && index >= 0 ? `${run.name} ${said(curve.value[index])}` : null;
    }).filter(Boolean);
    const marks = this.runs[this.run].marks.filter(([at]) => at === step).map(([, what]) => what);
    this.say(`step ${step}: ${title} ${parts.join(", ")}${marks.length ? ` · ${marks.join("; ")}` : ""}`);
  }

  moveCursor() {
    if (!this.cursor) return;
    const shown = known(this.place.step);
    this.cursor.setAttribute("visibility", shown ? "visible" : "hidden");
    if (shown) for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(this.place.step));
  }

  // ---------------------------------------------------------------------------------------------- a step

  drawStep() {
    const { groups, attempts, findings, neighbours, step, removed, trained } = this.facts;
    const flat = groups.filter((group) => group.flat);
    const sides = [...new Set(flat.map((group) => group.flat))].map((side) => `${flat.filter((group) => group.flat === side).length} ${side}`);
    const left = groups.filter((group) => group.kept === false).length;
    const to = (at, text) => make("button", { text, disabled: at === null, onclick: () => this.go({ step: at }) });
    const mean = inColumn(groups.map((group) => group.mean), { sign: true }), std = inColumn(groups.map((group) => group.std));
    const reward = inColumn(groups.flatMap((group) => group.rewards), { sign: true });
    this.groupRows = groups.map((group) => row([
      [group.task, true], [group.name, false, "wb-name"], [known(group.succeeded) ? `${group.succeeded} of ${group.attempts}` : "—", true], [mean(group.mean), true],
      [std(group.std), true], [group.flat], [group.kept === null ? "—" : group.kept ? "yes" : "left out"], [group.rewards.map(reward).join("  "), false, "wb-rest"]],
      `task ${group.task}`, () => this.go({ step, task: group.task })));
    const stops = [...new Set(attempts.map((attempt) => attempt.stop))].sort();
    this.filterBox = make("input", { type: "search", placeholder: "text in the trajectory", "aria-label": "show trajectories that contain this text",
      oninput: (event) => this.search(event.target.value) });
    const stopBox = make("select", { "aria-label": "stopped because", onchange: (event) => { this.stop = event.target.value; this.drawTrajectories(); } },
      make("option", { text: "any stop", value: "" }), ...stops.map((each) => make("option", { text: each, value: each })));
    const numbers = COLUMNS.filter(([key, , number]) => number && !["task", "attempt"].includes(key));
    const bound = (end, words) => make("input", { type: "number", step: "any", class: "wb-bound", placeholder: words, "aria-label": `${words} of the chosen number`,
      oninput: (event) => { this.range[end] = event.target.value === "" ? null : Number(event.target.value); this.drawTrajectories(); } });
    const rangeBox = make("span", { class: "wb-range" }, make("select", { "aria-label": "number to filter by", onchange: (event) => { this.range.key = event.target.value; this.drawTrajectories(); } },
      ...numbers.map(([key, title]) => make("option", { text: title, value: key, selected: key === this.range.key }))), bound("least", "at least"), bound("most", "at most"));
    const markBox = make("label", {}, make("input", { type: "checkbox", onchange: (event) => { this.marked = event.target.checked; this.drawTrajectories(); } }), "with findings only");
    this.trajectoryTable = make("div", { class: "wb-scroll" });
    this.count = make("span", { class: "wb-quiet" });
    fill(this.stepPanel, 
      make("div", { class: "wb-bar" }, make("h3", { text: `step ${step}` }), to(neighbours[0], "◀ before"), to(neighbours[1], "after ▶"),
        make("span", { class: "wb-quiet", text: `${groups.length} groups, ${attempts.length} trajectories; ${flat.length} zero-variance${sides.length ? ` (${sides.join(", ")})` : ""}${left ? `; ${left} left out by the filter` : ""}` })),
      trained ? make("p", { class: "wb-authors", text: trained[1] ? `⚠ ${trained[1]} of ${trained[0]} trained tokens were not sampled by the policy` : `all ${trained[0]} trained tokens were sampled by the policy` }) : null,
      removed ? make("p", { class: "wb-removed", text: `the filter removed ${removed.attempts} trajectories with ${removed.tokens} sampled tokens, mean reward ${signed(removed.mean)}, ${removed.succeeded} successes${
        removed.groups.length ? `; whole groups: ${removed.groups.map((task, index) => `task ${task} (${removed.sides[index]})`).join(", ")}` : ""}` }) : null,
      findings.length ? this.findingsList(findings) : null,
      make("details", { open: true }, make("summary", { text: "groups" }),
        make("div", { class: "wb-scroll" }, table(["task", "name", "succeeded", "mean", "std (n − 1)", "zero variance", "in update", "rewards"], this.groupRows))),
      make("div", { class: "wb-bar" }, make("h3", { text: "trajectories" }), this.filterBox, stopBox, rangeBox, markBox,
        make("button", { class: "wb-all", text: "all tasks", onclick: () => this.go({ step }) }), this.count),
      this.trajectoryTable, (this.columns = make("details", { class: "wb-beside", ontoggle: () => this.drawColumns() }, make("summary", { text: "side by side: where the trajectories of a group diverge" }), make("div", {}))), (this.credit = new CreditPanel(this)).box);
    this.markStep();
  }

  async drawColumns() {
    const { run, place, columns } = this, box = columns.lastChild;
    if (!columns.open) return;
    const task = place.task ?? 0, key = `${run}/${place.step}/${task}`;
    if (columns.dataset.of === key) return;
    columns.dataset.of = key;
    const reply = await this.ask({ ask: "columns", run, step: place.step, task });
    if (columns.dataset.of !== key) return;
    fill(box, make("p", { class: "wb-quiet", text: `task ${task}${known(place.task) ? "" : "; click another group above"}` }),
      reply.error ? make("p", { text: reply.error }) : columnsOf(reply, (at) => this.go(at), { step: place.step, task }));
  }

  findingsList(findings) {
    return make("ul", { class: "wb-findings" }, ...findings.map((finding) => make("li", { class: finding.error ? "wb-error" : null },
      `${finding.severity} ${finding.rule}: ${finding.what} `,
      finding.at ? make("button", { text: finding.at, onclick: () => this.go(placeOf(finding.at)) }) : null)));
  }

  async search(text) {
    this.filter = text;
    if (!text) { this.found = null; this.drawTrajectories(); return; }
    const reply = await this.ask({ ask: "search", run: this.run, step: this.facts.step, text });
    if (reply.error) { this.say(reply.error); return; }
    if (reply.text !== this.filter) return;
    this.found = new Set(reply.found.map(([task, attempt]) => `${task}/${attempt}`));
    this.drawTrajectories();
  }

  drawTrajectories() {
    const { step, attempts } = this.facts;
    const { key: ranged, least, most } = this.range;
    const within = (value) => (least === null && most === null) || (known(value) && (least === null || value >= least) && (most === null || value <= most));
    let shown = attempts.filter((attempt) => within(attempt[ranged]) && (!known(this.place.task) || attempt.task === this.place.task) && (!this.stop || attempt.stop === this.stop)
      && (!this.marked || attempt.findings) && (!this.found || this.found.has(`${attempt.task}/${attempt.attempt}`)));
    if (this.sort) {
      const [key, up] = this.sort;
      const order = (value) => (known(value) ? value : -Infinity);
      shown = [...shown].sort((a, b) => { const [p, q] = [order(a[key]), order(b[key])]; return (p < q ? -1 : p > q ? 1 : 0) * (up ? 1 : -1); });
    }
    const heads = COLUMNS.map(([key, title]) => make("button", { text: title + (this.sort?.[0] === key ? (this.sort[1] ? " ▲" : " ▼") : ""),
      "aria-label": `sort by ${title}`, onclick: () => { this.sort = [key, this.sort?.[0] === key ? !this.sort[1] : !LARGEST_FIRST.includes(key)]; this.drawTrajectories(); } }));
    const format = Object.fromEntries(COLUMNS.map(([key, , number]) => [key, number ? inColumn(attempts.map((attempt) => attempt[key]), { sign: key === "reward" }) : said]));
    this.trajectoryRows = shown.map((attempt) => row(COLUMNS.map(([key, , number]) => [key === "kept"
      ? (known(attempt.kept) ? (attempt.kept ? "yes" : "left out") : "—") : format[key](attempt[key]), number, key === "last" ? "wb-rest" : null]),
      `task ${attempt.task}, attempt ${attempt.attempt}, reward ${signed(attempt.reward)}`,
      () => this.go({ step, task: attempt.task, attempt: attempt.attempt }), `${attempt.task}/${attempt.attempt}`));
    this.trajectoryTable.replaceChildren(table(heads, this.trajectoryRows));
    this.count.textContent = shown.length < attempts.length ? `${shown.length} of ${attempts.length}` : "";
    const chosen = `${this.place.task}/${this.place.attempt}`;
    for (const each of this.trajectoryRows) each.setAttribute("aria-selected", String(each.dataset.key === chosen));
  }

  markStep() {
    this.drawColumns();
    this.groupRows.forEach((each, task) => each.setAttribute("aria-selected", String(task === this.place.task)));
    this.drawTrajectories();
  }

  // ---------------------------------------------------------------------------------------------- a trajectory

  drawTrajectory() {
    const found = this.attempt;
    const { step, task, attempt } = found;
    const facts = [`reward ${signed(found.reward)}`, known(found.outcome) ? `outcome ${signed(found.outcome)}` : null, known(found.success) ? (found.success ? "success" : "no success") : null,
      `stopped: ${found.stop}`, `group mean ${signed(found.group.mean)}, std (n − 1) ${said(found.group.std)} of ${found.group.scored}`, found.error || null,
      found.updates > 1 ? `numbers of update ${found.update + 1} of ${found.updates}, the first that trained it` : null,
      found.ids ? "tokens are shown as ids: the policy that wrote them, and its tokenizer, are not here" : null];
    this.turns = found.turns.map((turn) => make("details", { open: found.turns.length <= 3, class: "wb-turn" },
      make("summary", { text: `turn ${turn.turn} · ${known(turn.reward) ? `reward ${signed(turn.reward)}` : "not scored"}${partsOf(turn.parts)}` }),
      message("policy output", turn.wrote), ...turn.reply.map(([role, text]) => message(role, text)),
      make("button", { text: "show this turn's tokens", onclick: () => this.go({ step, task, attempt, turn: turn.turn }) })));
    if (!(this.lane in found.lanes)) this.lane = Object.keys(found.lanes)[0] || "";
    this.laneBox = make("select", { "aria-label": "per-token metric", onchange: (event) => { this.lane = event.target.value; this.drawTokens(); } });
    this.drawLanes();
    const jump = (text, key, title) => make("button", { text, title: `${title} (key ${key})`, onclick: () => this.press(key) });
    this.tokenSearch = make("input", { type: "search", placeholder: "find in the tokens", "aria-label": "find in the tokens; Enter goes to the next",
      onkeydown: (event) => event.key === "Enter" && this.findText(event.target.value) });
    this.tokens = make("div", { class: "wb-tokens", tabindex: 0, role: "listbox", "aria-label": "tokens; arrow keys move, n next trained span, x largest of the metric, f next finding" });
    this.tokens.addEventListener("scroll", () => this.paint());
    this.tokens.addEventListener("keydown", (event) => { if (this.press(event.key)) event.preventDefault(); });
    this.tokens.addEventListener("click", (event) => { const at = event.target.closest("[data-token]"); if (at) this.chooseToken(Number(at.dataset.token)); });
    this.term = make("div", { class: "wb-term" });
    fill(this.trajectoryPanel, 
      make("div", { class: "wb-bar" }, make("h3", { text: `attempt ${attempt} at ${found.name}` }), ...copyButtons(found, (text) => this.say(text))),
      make("p", { class: "wb-quiet", text: facts.filter(Boolean).join(" · ") }),
      found.added ? make("details", { open: true }, make("summary", { text: "conversations" }), make("pre", { class: "wb-added", text: found.added })) : null,
      (this.boards = boardsOf(found.boards || [], (turn) => this.go({ step, task, attempt, turn }))),
      make("details", {}, make("summary", { text: "initial prompt" }), ...found.first.map(([role, text]) => message(role, text))), ...this.turns,
      make("div", { class: "wb-bar" }, make("h3", { text: "tokens" }), this.laneBox, jump("next trained", "n", "next trained span"), jump("largest", "x", "largest of this metric, then the next largest"),
        jump("next finding", "f", "next finding of the lint"), this.tokenSearch,
        make("span", { class: "wb-quiet", text: "A written by the policy, P prompt, T chat template, E environment; bar above: trained; below: the chosen per-token metric (bars: + up, − down)" })),
      this.tokens, this.term);
    this.token = null;
    this.rank = 0;
    this.drawTokens();
  }

  drawLanes() {
    this.laneBox.replaceChildren(...Object.keys(this.attempt.lanes).map((lane) => make("option", { text: lane, selected: lane === this.lane })));
  }

  // Lanes of the credit editor, in the place of those that it gave before.
  addLanes(lanes) {
    const { arrays, lanes: units } = this.attempt;
    for (const name of Object.keys(units)) if (name.startsWith("credit")) { delete units[name]; delete arrays[name]; }
    for (const [name, values] of Object.entries(lanes)) { units[name] = ""; arrays[name] = values; }
    const edited = Object.keys(lanes).find((name) => name.endsWith(", edited"));
    if (edited || !(this.lane in units)) this.lane = edited || Object.keys(units)[0];
    this.drawLanes();
    this.drawTokens();
    if (known(this.token)) this.showToken(this.token);
  }

  // Lines of tokens, as many as fit beside each other, a line feed ends one; only those in sight are in the page. A token with
  // a line feed inside has a piece in each of its lines: `pieces` are [token, text], `lines` [first piece, past the last].
  drawTokens() {
    const { texts, arrays, segments } = this.attempt;
    const lane = arrays[this.lane];
    const room = Math.max(20, ((this.tokens.clientWidth || 800) - 8) / 7.9 - 10.5); // characters beside the gutter
    const ends = new Set();
    segments.reduce((sum, length) => { ends.add(sum + length); return sum + length; }, 0);
    this.lines = [];
    this.pieces = [];
    this.heads = new Set([0]); // lines with which an author, a turn or a segment begins
    this.lineOf = new Int32Array(texts.length);
    let begin = 0, used = 0;
    const end = () => { if (this.pieces.length > begin) this.lines.push([begin, this.pieces.length]); begin = this.pieces.length; used = 0; };
    texts.forEach((text, token) => {
      const starts = token && (arrays.author[token] !== arrays.author[token - 1] || arrays.turn[token] !== arrays.turn[token - 1] || ends.has(token));
      if (starts) { end(); this.heads.add(this.lines.length); }
      const parts = text.includes("\n") ? text.split(/(?<=\n)/) : [text];
      parts.forEach((part, number) => {
        const length = Math.max(1, PAIRS.test(part) ? [...part].length : part.length) + 0.15; // with its border
        if (used + length > room) end();
        if (!number) this.lineOf[token] = this.lines.length;
        used += length;
        this.pieces.push([token, part]);
        if (part.endsWith("\n")) end();
      });
    });
    end();
    this.tops = new Int32Array(this.lines.length + 1);
    this.lines.forEach(([first, last], number) => {
      let tall = false;
      for (let piece = first; lane && piece < last && !tall; piece += 1) tall = known(lane[this.pieces[piece][0]]);
      this.tops[number + 1] = this.tops[number] + (tall ? ROW : LOW_ROW);
    });
    this.scale = 0;
    if (lane) for (const value of lane) if (known(value)) this.scale = Math.max(this.scale, Math.abs(value));
    this.order = null;
    this.sheet = make("div", { class: "wb-sheet", style: { height: `${this.tops.at(-1)}px` } });
    this.tokens.replaceChildren(this.sheet);
    this.paint();
  }

  paint() {
    const { scrollTop, clientHeight } = this.tokens;
    const first = Math.max(0, this.lineAt(scrollTop) - 4);
    const last = Math.min(this.lines.length, this.lineAt(scrollTop + (clientHeight || 400)) + 5);
    this.sheet.replaceChildren(...Array.from({ length: Math.max(0, last - first) }, (_, i) => this.line(first + i)));
  }

  // The line that holds so many pixels from the top.
  lineAt(pixels) {
    let low = 0, high = this.lines.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= pixels) low = middle; else high = middle - 1;
    }
    return low;
  }

  line(number) {
    const { arrays } = this.attempt;
    const [begin, end] = this.lines[number];
    const lane = arrays[this.lane];
    const [leading] = this.pieces[begin];
    const author = arrays.author[leading];
    const top = this.tops[number];
    const line = make("div", { class: `wb-line wb-${CLASSES[author]}`, style: { top: `${top}px`, height: `${this.tops[number + 1] - top}px` } },
      make("span", { class: "wb-gutter", text: this.heads.has(number) ? `${SIGNS[author]} turn ${arrays.turn[leading]}` : SIGNS[author], title: `${AUTHORS[author]}, turn ${arrays.turn[leading]}` }));
    for (let piece = begin; piece < end; piece += 1) {
      const [token, text] = this.pieces[piece];
      const trained = arrays.trained[token];
      const feeds = text.endsWith("\n");
      const cell = make("span", { class: `wb-token${trained ? " wb-trained" : ""}${trained === 3 ? " wb-wrong" : ""}`, "data-token": token, role: "option",
        "aria-selected": String(token === this.token), text: feeds ? text.slice(0, -1) : text });
      if (feeds) cell.append(make("span", { class: "wb-feed", text: "⏎" }));
      const value = lane && (!piece || this.pieces[piece - 1][0] !== token) ? lane[token] : NaN;
      if (known(value) && this.scale > 0) cell.append(make("i", { class: value < 0 ? "wb-down" : "wb-up", style: { height: `${Math.max(1, (7 * Math.abs(value)) / this.scale)}px` } }));
      line.append(cell);
    }
    return line;
  }

  chooseToken(token) {
    const { step, task, attempt } = this.attempt;
    this.go({ step, task, attempt, token });
  }

  showTurn(turn) {
    const { arrays } = this.attempt;
    let token = arrays.turn.findIndex((each, index) => each === turn && AUTHORS[arrays.author[index]] === "policy");
    if (token < 0) token = arrays.turn.indexOf(turn);
    if (token >= 0) this.showToken(token);
  }

  // Why what was sampled in this token's segment is not trained; "" where it is.
  leftOut(token) {
    const { segments, untrained } = this.attempt;
    let end = 0;
    const at = segments.findIndex((length) => { end += length; return token < end; });
    return (untrained || [])[at] || "";
  }

  showToken(token) {
    const { texts, arrays, lanes, group, reward } = this.attempt;
    if (!(token < texts.length)) return;
    this.token = token;
    const [top, bottom] = [0, 1].map((below) => this.tops[this.lineOf[token] + below]);
    if (top < this.tokens.scrollTop || bottom > this.tokens.scrollTop + this.tokens.clientHeight) this.tokens.scrollTop = top - this.tokens.clientHeight / 2;
    this.paint();
    markBoard(this.boards, arrays.turn[token]);
    const trained = arrays.trained[token];
    const facts = [["token", `${token} of ${texts.length}: “${texts[token]}”`], ["author", `${AUTHORS[arrays.author[token]]}, turn ${arrays.turn[token]}`],
      ["trained", trained === 3 ? "yes, although the policy did not sample it here" : trained ? "yes" : ["no", this.leftOut(token)].filter(Boolean).join(": ")],
      ["weights", arrays.version[token] < 0 ? "—" : `version ${arrays.version[token]}`],
      ...Object.keys(lanes).map((lane) => [lane, known(arrays[lane][token]) ? `${arrays[lane][token]} ${lanes[lane]}` : "—"]),
      ["reward of the trajectory", `${signed(reward)}; its group: mean ${signed(group.mean)}, std (n − 1) ${said(group.std)}`]];
    const loss = make("div", { class: "wb-loss" });
    this.term.replaceChildren(make("table", { class: "wb-facts" }, make("tbody", {}, ...facts.map(([name, value]) => make("tr", {}, make("th", { text: name, scope: "row" }), make("td", { text: value }))))), loss);
    if (trained) this.writeTerm(token, loss);
    this.say(facts.slice(0, 3).map(([name, value]) => `${name} ${value}`).join(", ")
      + (this.lane && known(arrays[this.lane][token]) ? `, ${this.lane} ${said(arrays[this.lane][token])}` : ""));
  }

  // How the token's part of the loss comes about, a row a number, in the order of computing.
  async writeTerm(token, box) {
    const shown = this.attempt;
    const { step, task, attempt } = shown;
    shown.terms ??= this.ask({ ask: "terms", run: this.run, step, task, attempt });
    const { error, rows, arrays } = await shown.terms;
    if (this.attempt !== shown || this.token !== token) return;
    const number = (row) => (row.words ? row.words[arrays[row.array][token]] : String(arrays[row.array][token]));
    const there = (rows || []).filter((row) => !row.array || (arrays[row.array] && known(arrays[row.array][token])));
    box.replaceChildren(make("h3", { text: "loss term of this token" }), error ? make("p", { text: error })
      : make("table", {}, make("tbody", {}, ...there.map((row) => make("tr", {}, make("th", { text: row.name, scope: "row" }),
        make("td", { text: row.array ? number(row) : "" }), make("td", { text: row.text }))))));
  }

  // What a key does in the tokens; true if it did something.
  press(key) {
    const { texts, arrays } = this.attempt;
    const now = this.token ?? -1;
    const line = this.lines[this.lineOf[Math.max(0, now)]];
    if (key === "n") return this.jump(texts.findIndex((_, at) => at > now && arrays.trained[at] && !(at && arrays.trained[at - 1])), "no trained span after this one");
    if (key === "x") return this.largest();
    if (key === "f") return this.nextFinding();
    const first = line && this.pieces[line[0]][0], last = line && this.pieces[line[1] - 1][0];
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, ArrowDown: line && Math.max(now, last) + 1 + Math.max(0, now - first), ArrowUp: line && first - 1, Home: 0, End: texts.length - 1 }[key];
    if (to === undefined) return false;
    this.chooseToken(Math.min(texts.length - 1, Math.max(0, to)));
    return true;
  }

  jump(token, otherwise) {
    if (token < 0) this.say(otherwise);
    else this.chooseToken(token);
    return true;
  }

  largest() {
    const lane = this.attempt.arrays[this.lane];
    if (!lane) { this.say("this trajectory has no per-token metric"); return true; }
    if (!this.order) {
      this.order = [...lane.keys()].filter((at) => known(lane[at])).sort((a, b) => Math.abs(lane[b]) - Math.abs(lane[a]) || a - b);
      this.rank = 0;
    }
    const at = this.order.length ? this.order[this.rank % this.order.length] : -1;
    this.rank += 1;
    return this.jump(at, `no token has a ${this.lane}`);
  }

  nextFinding() {
    const { step, task, attempt } = this.attempt;
    const here = this.facts.findings.map((finding) => placeOf(finding.at)).filter((place) => place.task === task && place.attempt === attempt && known(place.token)).map((place) => place.token).sort((a, b) => a - b);
    if (here.length) return this.jump(here.find((token) => token > (this.token ?? -1)) ?? here[0], "");
    const elsewhere = this.facts.findings.find((finding) => finding.at);
    if (!elsewhere) this.say(`the lint found nothing in step ${step} that lies in a trajectory`);
    else this.go(placeOf(elsewhere.at));
    return true;
  }

  findText(text) {
    if (!text) return;
    const { texts } = this.attempt;
    const whole = texts.join("").toLowerCase();
    const begins = new Int32Array(texts.length + 1);
    texts.forEach((each, at) => { begins[at + 1] = begins[at] + each.length; });
    let place = whole.indexOf(text.toLowerCase(), begins[(this.token ?? -1) + 1]);
    if (place < 0) place = whole.indexOf(text.toLowerCase());
    if (place < 0) { this.say(`“${text}” is not in these tokens`); return; }
    let token = 0;
    while (begins[token + 1] <= place) token += 1;
    this.chooseToken(token);
  }
}

function partsOf(parts) {
  const said = Object.entries(parts).map(([name, value]) => `${name} ${signed(value)}`);
  return said.length ? ` (${said.join(", ")})` : "";
}

function message(role, text) {
  return make("div", { class: "wb-message" }, make("b", { text: role }), make("pre", { text }));
}

// ------------------------------------------------------------------------------------------------ doors

function render({ model, el }) {
  const slow = (question) => question.ask !== "texts" && navigator.say("no answer yet: the kernel is busy, or it has ended (run the cell again)");
  const navigator = new Navigator(el, liveAsker(model, slow), model.get("at"), model.get("run"),
    (at, run) => { model.set("at", at); model.set("run", run); model.save_changes(); });
  const moved = () => { if (model.get("at") !== addressOf(navigator.place)) navigator.go(placeOf(model.get("at"))); };
  model.on("change:at", moved);
  const every = model.get("every_s");
  const timer = every > 0 ? setInterval(async () => {
    if (!document.hidden && navigator.runs?.some((run) => ["running", "stopping"].includes(run.state)) && await navigator.follow()) navigator.moveCursor();
  }, every * 1000) : null;
  return () => { model.off("change:at", moved); if (timer) clearInterval(timer); };
}

export function renderSaved(el, answers, at, run) {
  return new Navigator(el, savedAsker(answers), at, run, () => {}, true);
}

export default { render };
