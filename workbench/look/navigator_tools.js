// Tools of the navigator: how curves are drawn, a search over the whole run, copies of a trajectory, the list of keys.

const AXES = { step: "step", tokens: "sampled tokens", seconds: "seconds at work" };
const SMOOTHING = [1, 3, 5, 10, 20, 50]; // steps in the running mean
const MOST_SQUARES = 1600; // of a board that is drawn
const KEYS = [
  ["← → Home End", "on the curves: another step; in the tokens: another token"],
  ["↑ ↓", "in a table: another row; in the tokens: another line"],
  ["Enter", "open a row; in a search field: the next match"],
  ["n", "in the tokens: the next trained span"],
  ["x", "in the tokens: the largest of the chosen metric, then the next largest"],
  ["f", "in the tokens: the next finding of the lint"],
  ["?", "this list"],
];

// The mean of the last `width` values at each place; what was not computed is left out, not counted as zero.
function runningMean(values, width) {
  return values.map((_, end) => {
    const last = values.slice(Math.max(0, end - width + 1), end + 1).filter(known);
    return last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : null;
  });
}

// Where a step of a run lies on an axis: its number, or what was spent up to its end.
function placeOn(axis, run, step) {
  if (axis === "step") return step;
  let low = -1, high = run.steps.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (run.steps[middle] <= step) low = middle; else high = middle - 1;
  }
  return low < 0 ? 0 : run.spent[axis][low];
}

// Axes that every one of these runs can be drawn over.
function axesOf(runs) {
  return Object.keys(AXES).filter((axis) => axis === "step" || runs.every((run) => run.spent && run.spent[axis].at(-1) > 0));
}

// Controls of the curves: smoothing, x axis, logarithmic scale.
function curveControls(nav, changed) {
  const smooth = make("select", { "aria-label": "smoothing", class: "wb-smooth", title: "steps in the running mean; the thin line is what was logged",
    onchange: (event) => { nav.smooth = Number(event.target.value); changed(); } },
  ...SMOOTHING.map((width) => make("option", { text: width === 1 ? "no smoothing" : `mean of ${width}`, value: width, selected: width === nav.smooth })));
  const axis = make("select", { "aria-label": "x axis", class: "wb-axis", onchange: (event) => { nav.axis = event.target.value; changed(); } },
    ...axesOf(nav.runs).map((name) => make("option", { text: `x: ${AXES[name]}`, value: name, selected: name === nav.axis })));
  const log = make("label", {}, make("input", { type: "checkbox", class: "wb-log", checked: nav.log, onchange: (event) => { nav.log = event.target.checked; changed(); } }), "log");
  const keys = make("button", { class: "wb-keys-button", text: "? keys", title: "list the keys (key ?)", onclick: () => nav.listKeys() });
  return [smooth, axis, log, keys];
}

// Lines across at `marks`, and what they are.
function drawGrid(plot, marks, words, { y, left, right, width }) {
  for (const value of marks) plot.append(drawn("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "wb-grid" }),
    drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", class: "wb-tick" }, words(value)));
}

// ------------------------------------------------------------------------------------------------ boards

const isSmall = (board) => board && board.length * board[0].length <= MOST_SQUARES;

// The states of a game as coloured squares, one before each turn and the last one, and what the characters mean.
function boardsOf(boards, go) {
  if (!boards.some(isSmall)) return null;
  const meanings = new Map();
  const square = ([character, meaning, background, color]) => {
    meanings.set(character, [meaning, background, color]);
    return make("span", { class: "wb-square", text: character, title: meaning, style: { background, color } });
  };
  const drawnOnes = boards.map((board, turn) => (isSmall(board) ? make("button", { class: "wb-board", "data-turn": turn, onclick: () => go(Math.min(turn, boards.length - 2)), disabled: boards.length < 2 },
    make("span", { class: "wb-squares", style: { gridTemplateColumns: `repeat(${board[0].length}, auto)` } }, ...board.flat().map(square)),
    make("span", { text: turn < boards.length - 1 ? `turn ${turn}` : "end" })) : null)).filter(Boolean);
  const legend = [...meanings].map(([character, [meaning, background, color]]) => make("span", {}, make("span", { class: "wb-square", text: character, style: { background, color } }), ` ${meaning}`));
  return make("div", { class: "wb-boards" }, make("div", { class: "wb-board-row" }, ...drawnOnes), make("div", { class: "wb-board-legend wb-quiet" }, ...legend));
}

// The board that the policy saw in this turn.
function markBoard(boards, turn) {
  for (const each of boards?.querySelectorAll(".wb-board") || []) each.setAttribute("aria-pressed", String(Number(each.dataset.turn) === turn));
}

// ------------------------------------------------------------------------------------------------ search

// All trajectories of all steps, of all runs: text, stop reason, findings of the lint.
class SearchPanel {
  constructor(nav) {
    this.nav = nav;
    const enter = (event) => event.key === "Enter" && this.search();
    const field = (words, label) => make("input", { type: "search", placeholder: words, "aria-label": label, onkeydown: enter });
    this.text = field("text in any trajectory", "text to search all steps for");
    this.finding = field("finding: a rule, or words", "finding of the lint to search all steps for");
    this.stop = make("select", { "aria-label": "stop reason to search all steps for" });
    this.result = make("div", {});
    this.box = make("details", { class: "wb-search", ontoggle: () => this.box.open && this.offer() }, make("summary", { text: "search all steps" }),
      make("div", { class: "wb-bar" }, this.text, this.stop, this.finding, make("button", { class: "wb-search-go", text: "search", onclick: () => this.search() })), this.result);
  }

  offer() {
    const chosen = this.stop.value;
    const stops = [...new Set(this.nav.runs.flatMap((run) => run.stops || []))].sort();
    fill(this.stop, make("option", { text: "any stop", value: "" }), ...stops.map((stop) => make("option", { text: stop, value: stop, selected: stop === chosen })));
  }

  async search() {
    fill(this.result, make("p", { class: "wb-quiet", text: "reading every step …" }));
    const reply = await this.nav.ask({ ask: "search_all", text: this.text.value, stop: this.stop.value, finding: this.finding.value });
    if (reply.error) { fill(this.result, make("p", { text: reply.error })); return; }
    const { matches, hidden } = reply;
    const several = this.nav.runs.length > 1;
    const reward = inColumn(matches.map((match) => match.reward), { sign: true });
    const rows = matches.map((match) => row([...(several ? [[this.nav.runs[match.run].name, false, "wb-name"]] : []), [match.at], [reward(match.reward), true], [match.stop], [match.where], [match.excerpt, false, "wb-rest"]],
      match.at, () => this.open(match)));
    fill(this.result, make("p", { class: "wb-quiet wb-matches", text: `${matches.length + hidden} trajectories${hidden ? `, the first ${matches.length} shown` : ""}` }),
      rows.length ? make("div", { class: "wb-scroll" }, table([...(several ? ["run"] : []), "place", "reward", "stopped", "found in", "excerpt"], rows)) : null);
  }

  open(match) {
    if (match.run !== this.nav.run) { this.nav.run = match.run; this.nav.drawCurves(); }
    this.nav.go(placeOf(match.at));
  }
}

// The same over what a saved page holds.
function savedSearch(answers, { text, stop, finding }) {
  const matches = [];
  const words = text.toLowerCase(), about = finding.toLowerCase();
  const findings = {};
  for (const [key, answer] of Object.entries(answers)) {
    const asked = JSON.parse(key);
    if (asked.ask === "step") findings[`${asked.run}/${asked.step}`] = answer.content.findings;
  }
  for (const [key, answer] of Object.entries(answers)) {
    const { ask, run, step, task, attempt } = JSON.parse(key);
    if (ask !== "attempt" || (stop && answer.content.stop !== stop)) continue;
    const at = `step ${step} / task ${task} / attempt ${attempt}`;
    const own = (findings[`${run}/${step}`] || []).filter((each) => each.at === at || each.at.startsWith(`${at} /`));
    if (about && !own.some((each) => `${each.rule} ${each.what}`.toLowerCase().includes(about))) continue;
    const { first, turns, reward } = answer.content;
    const said = [...first.map(([role, words]) => [`prompt, ${role}`, words]),
      ...turns.flatMap((turn) => [[`turn ${turn.turn}`, turn.wrote], ...turn.reply.map(([role, words]) => [`turn ${turn.turn}, ${role}`, words])])];
    const place = said.find(([, message]) => message.toLowerCase().includes(words));
    if (!place) continue;
    const begin = Math.max(0, place[1].toLowerCase().indexOf(words) - 40);
    matches.push({ run, at, reward, stop: answer.content.stop, where: words ? place[0] : "", excerpt: words ? place[1].slice(begin, begin + 120).replaceAll("\n", " ") : "" });
  }
  return { matches, hidden: 0 };
}

// ------------------------------------------------------------------------------------------------ copies

// As `Trajectory.json` in Python, with its address.
function asJson(facts) {
  const messages = (listed) => listed.map(([role, text]) => ({ role, text }));
  const { step, task, attempt, name, number, reward, outcome, success, stop, error, first, turns } = facts;
  return JSON.stringify({ at: `step ${step} / task ${task} / attempt ${attempt}`, task: name, attempt: number, reward, outcome, success, stop_reason: stop, error: error || "",
    prompt: messages(first), turns: turns.map((turn) => ({ turn: turn.turn, text: turn.wrote, reward: turn.reward, reward_parts: turn.parts, reply: messages(turn.reply) })) }, null, 1);
}

// As `Trajectory.text`.
function asText(facts) {
  const { name, number, reward, stop, first, turns } = facts;
  const message = (who, text) => `[${who}]\n${text}`;
  const parts = [`${name}, attempt ${number}: reward ${known(reward) ? (Number.isInteger(reward) ? reward.toFixed(1) : reward) : "None"}, ${stop}`, ...first.map(([role, text]) => message(`prompt, ${role}`, text))];
  for (const turn of turns) parts.push(message(`turn ${turn.turn}`, turn.wrote), ...turn.reply.map(([role, text]) => message(`turn ${turn.turn}, ${role}`, text)));
  return parts.join("\n\n");
}

async function copy(text) {
  try { await window.navigator.clipboard.writeText(text); return true; } catch { /* a page that may not: by hand, below */ }
  const area = make("textarea", { style: { position: "fixed", opacity: 0 } });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

function copyButtons(facts, say) {
  const button = (words, make_text) => make("button", { class: "wb-copy", text: words, onclick: async () => {
    const text = make_text(facts);
    say(await copy(text) ? `${text.length} characters are in the clipboard` : "this page may not write to the clipboard");
  } });
  return [button("copy text", asText), button("copy JSON", asJson)];
}

// ------------------------------------------------------------------------------------------------ keys

function keysPanel() {
  return make("table", { class: "wb-keys", hidden: true, "aria-label": "keys" },
    make("tbody", {}, ...KEYS.map(([key, what]) => make("tr", {}, make("th", { scope: "row" }, make("kbd", { text: key })), make("td", { text: what })))));
}
